"""All dialects by name, and the memory of which endpoint speaks which. Knows how no dialect looks."""

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
"""Every dialect, by its name."""
EXPECTED: Mapping[str, str] = {"sglang": "sglang", "vllm": "vllm"}
"""Kind of an endpoint -> the dialect that it is taken to speak until it is known; ``openai`` for all others."""
PROBE = DecisionInput("2 + 2 = 4", (YesNo("The sum is right."),))
"""The smallest decision. It is valid at OpenAI and at vLLM, so that a vLLM server whose model gives no decisions says just that (501).
SGLang refuses its type ``predicate``. A server of vLLM that answers is told from OpenAI by its ``kind``, or by the first limit that it
complains about."""

MOST_KNOWN = 8192
"""Endpoints and models that are remembered. It is bounded because the names of models come from callers."""


class DialectTable:
    """What is known of the dialects of endpoints: (name of an endpoint, its address, model) -> dialect."""

    default = OPENAI

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], str] = {}
        self._assumed: dict[tuple[str, str, str], str] = {}

    def known(self, endpoint: Endpoint, model: str) -> Dialect | None:
        """Return the dialect that an endpoint was found to speak for a model; None if that is not known."""
        name = self._known.get((endpoint.name, endpoint.base_url, model))
        return None if name is None else DIALECTS[name].at(endpoint)

    def expected(self, endpoint: Endpoint, model: str) -> Dialect:
        """Return the dialect of the setting ``Endpoint.decisions``, else the one known or assumed, else that which its kind suggests."""
        key = endpoint.name, endpoint.base_url, model
        name = endpoint.decisions or self._known.get(key) or self._assumed.get(key) or EXPECTED.get(endpoint.kind, "openai")
        return DIALECTS[name].at(endpoint)

    def assume(self, endpoint: Endpoint, model: str, name: str) -> None:
        """Take an endpoint to speak a dialect until it is known."""
        if len(self._assumed) >= MOST_KNOWN:
            self._assumed.clear()
        self._assumed[endpoint.name, endpoint.base_url, model] = name

    def remember(self, endpoint: Endpoint, model: str, name: str) -> Dialect:
        """Note which dialect an endpoint speaks for a model, and return it. Raises ``ConfigError`` for a name that is not known."""
        if name not in DIALECTS:
            raise ConfigError(f"there is no dialect {name!r} of decisions; known are {', '.join(DIALECTS)}")
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[endpoint.name, endpoint.base_url, model] = name
        return DIALECTS[name].at(endpoint)

    def forget(self, endpoint: Endpoint, model: str) -> None:
        """Forget what is known of an endpoint and a model, as after its server was replaced."""
        self._known.pop((endpoint.name, endpoint.base_url, model), None)

    def limits(self, endpoints: Iterable[Endpoint], model: str) -> tuple[int, int]:
        """Return the largest number of questions in a request, and of options in a question, that all of the endpoints take."""
        dialects = [self.expected(endpoint, model) for endpoint in endpoints]
        return min(dialect.most_questions for dialect in dialects), min(dialect.most_options for dialect in dialects)
