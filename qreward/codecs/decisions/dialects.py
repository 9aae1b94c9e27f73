"""All dialects by name, and a table of the dialects that endpoints use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qreward.codecs.decisions.base import DecisionInput, Dialect
from qreward.codecs.decisions.chat import CHAT_DECISIONS
from qreward.codecs.decisions.generative_scoring import GENERATIVE_SCORING
from qreward.codecs.decisions.openai import OPENAI, VLLM
from qreward.codecs.decisions.sglang import SGLANG
from qreward.codecs.decisions.systemone import SYSTEMONE
from qreward.decisions import YesNo
from qreward.errors import ConfigError
from qreward.settings.policies import Endpoint

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (OPENAI, VLLM, SGLANG, SYSTEMONE, GENERATIVE_SCORING, CHAT_DECISIONS)
}
"""Name of a dialect -> the dialect."""
EXPECTED: Mapping[str, str] = {"sglang": "sglang", "vllm": "vllm"}
"""Kind of an endpoint -> the dialect to try first. For all other kinds, the dialect to try first is ``openai``."""
PROBE = DecisionInput("2 + 2 = 4", (YesNo("The sum is right."),))
"""A small decision that shows which dialect a server uses. OpenAI and vLLM answer this decision in the dialect ``openai``, and SGLang
refuses it. A vLLM server whose model cannot decide answers 501."""

MOST_KNOWN = 8192
"""Maximum number of pairs of endpoint and model that are remembered. A full table is emptied. There is a limit because callers choose the
names of models."""


class DialectTable:
    """Stores the dialect of each pair of endpoint and model."""

    default = OPENAI

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], str] = {}
        self._assumed: dict[tuple[str, str, str], str] = {}

    def known(self, endpoint: Endpoint, model: str) -> Dialect | None:
        """Return the dialect that an endpoint was found to use for a model; None if no dialect was found yet."""
        name = self._known.get((endpoint.name, endpoint.base_url, model))
        return None if name is None else DIALECTS[name].at(endpoint)

    def expected(self, endpoint: Endpoint, model: str) -> Dialect:
        """Return the dialect to use for an endpoint and a model.

        The method looks for a dialect in this order: the setting ``Endpoint.decisions``, the known dialect, the assumed dialect, and the
        dialect in ``EXPECTED`` for the kind of the endpoint. The first dialect found is returned.
        """
        key = endpoint.name, endpoint.base_url, model
        name = endpoint.decisions or self._known.get(key) or self._assumed.get(key) or EXPECTED.get(endpoint.kind, "openai")
        return DIALECTS[name].at(endpoint)

    def assume(self, endpoint: Endpoint, model: str, name: str) -> None:
        """Use a dialect for a pair of endpoint and model until the dialect of this pair is known."""
        if len(self._assumed) >= MOST_KNOWN:
            self._assumed.clear()
        self._assumed[endpoint.name, endpoint.base_url, model] = name

    def remember(self, endpoint: Endpoint, model: str, name: str) -> Dialect:
        """Store the dialect that an endpoint was found to use for a model, and return it. Raises ``ConfigError`` for an unknown name."""
        if name not in DIALECTS:
            raise ConfigError(f"there is no dialect {name!r} of decisions; known are {', '.join(DIALECTS)}")
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[endpoint.name, endpoint.base_url, model] = name
        return DIALECTS[name].at(endpoint)

    def forget(self, endpoint: Endpoint, model: str) -> None:
        """Remove the known dialect of an endpoint and a model, for example because the server was replaced."""
        self._known.pop((endpoint.name, endpoint.base_url, model), None)

    def limits(self, endpoints: Iterable[Endpoint], model: str) -> tuple[int, int]:
        """Return two limits that all the endpoints accept: the maximum number of questions in a request, and of options in a question."""
        dialects = [self.expected(endpoint, model) for endpoint in endpoints]
        return min(dialect.most_questions for dialect in dialects), min(dialect.most_options for dialect in dialects)
