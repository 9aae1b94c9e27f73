"""``Decide``, the codec of a decision until an endpoint is chosen. The dialect of the endpoint then encodes the request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qreward.codecs.base import Unbound, WireRequest
from qreward.codecs.decisions.base import DecisionInput, Dialect, valid_input
from qreward.codecs.decisions.dialects import DIALECTS, OPENAI, ORDER, OTHERS, ChatDialect
from qreward.decisions import YesNo
from qreward.errors import InvalidResponse
from qreward.settings.policies import Endpoint

PROBE = DecisionInput(
    [{"role": "system", "content": "Judge the sum."}, {"role": "user", "content": "2 + 2 = 4"}], (YesNo("The sum is right."),), 0.0
)
"""A small decision that shows which dialect a server uses. vLLM takes no system message, so that it refuses the dialect ``openai``."""
NO_SUCH_PATH = frozenset({404, 405, 501})
"""HTTP statuses of responses from servers that do not have the path of a request."""
OTHER_BODY = frozenset({400, 422})
"""HTTP statuses of responses from servers that expect another form of the body."""
MOST_KNOWN = 8192
"""Maximum number of pairs of endpoint and model that are remembered. A full table is emptied. There is a limit because callers choose the
names of models."""


class Decide(Unbound):
    """Checks decisions, and remembers the dialect of each pair of endpoint and model. ``Decide`` is the codec of a ``WireRequest`` whose
    ``inputs`` are a ``DecisionInput``. ``learned`` is called after an answer has shown a dialect."""

    name = "decide"

    def __init__(self, learned: Callable[[Endpoint, str, Dialect], object] = lambda *_: None) -> None:
        self._learned = learned
        self._known: dict[tuple[str, ...], Dialect] = {}

    def known(self, endpoint: Endpoint, model: str) -> Dialect | None:
        """Return the dialect in which an endpoint has answered for a model; None if it has not answered yet, or must use another one."""
        found = self._known.get(key_of(endpoint, model))
        return found if found is None or endpoint.decisions in (None, found.name) else None

    def is_certain(self, endpoint: Endpoint, model: str) -> bool:
        return endpoint.decisions is not None or self.known(endpoint, model) is not None

    def to_try(self, endpoint: Endpoint) -> list[Dialect]:
        names = (endpoint.decisions,) if endpoint.decisions else ORDER.get(endpoint.kind, OTHERS)
        return [dialect for name in names for dialect in DIALECTS[name](endpoint)]

    def dialect_at(self, endpoint: Endpoint, model: str) -> Dialect:
        return self.known(endpoint, model) or self.to_try(endpoint)[0]

    def most_questions(self, endpoints: Iterable[Endpoint], model: str) -> int:
        """Return the largest number of questions in a request that all endpoints accept; 1 if there is no endpoint."""
        return min((self.dialect_at(endpoint, model).most_questions for endpoint in endpoints), default=1)

    def next_dialect(self, endpoint: Endpoint, model: str, tried: Sequence[tuple[Dialect, Exception]]) -> Dialect | None:
        """Return the dialect in which a refused request is sent again: a server that does not have the path is asked in the others, and so
        is one that refuses the body and has not answered before. ``tried`` has the dialects so far, with the errors."""
        known, last, sent = self.known(endpoint, model), tried[-1][1], [dialect for dialect, _ in tried]
        if _status(last) not in NO_SUCH_PATH and (known in sent or not refuses_body(last)):
            return None
        missing = {dialect.path for dialect, error in tried if _status(error) in NO_SUCH_PATH}
        rows = [*([] if known is None else [known]), *self.to_try(endpoint)]
        found = next((each for each in rows if each not in sent and each.path not in missing), None)
        if found is not None and known in sent:  # the server was replaced; its path is gone
            self.remember(endpoint, model, found)
        return found

    def answered(self, endpoint: Endpoint, model: str, dialect: Dialect, tried: Sequence[tuple[Dialect, Exception]] = ()) -> None:
        """Remember the dialect of an answer, unless another one is known that was not refused."""
        known = self.known(endpoint, model)
        if known is not dialect and (known is None or known in [each for each, _ in tried]):
            self.remember(endpoint, model, dialect)

    def remember(self, endpoint: Endpoint, model: str, dialect: Dialect) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key_of(endpoint, model)] = dialect
        self._learned(endpoint, model, dialect)

    def advice(self, endpoint: Endpoint, model: str, sent: Dialect, error: Exception) -> str:
        """Return a hint to add to an error that a wrong dialect may have caused; ``""`` for any other error."""
        status = _status(error)
        if isinstance(sent, ChatDialect) and status in OTHER_BODY and "logprob" in str(error).lower():
            return "; decisions need the log probabilities of the first token: let the server return 20 of them (vLLM: --max-logprobs 20)"
        if status not in NO_SUCH_PATH and (status not in OTHER_BODY or endpoint.decisions or self.known(endpoint, model)):
            return ""
        where = f"set decisions= of endpoint {endpoint.name!r}"
        return f"; the decision was sent in the dialect {sent.name!r}; if the server uses another one, {where}"

    def validate(self, inputs: Any) -> DecisionInput:
        return valid_input(inputs)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return OPENAI.estimate_tokens(call)  # other dialects need about as many tokens


def refuses_body(error: Exception) -> bool:
    return _status(error) in OTHER_BODY or isinstance(error, InvalidResponse)


def key_of(endpoint: Endpoint, model: str) -> tuple[str, ...]:
    return endpoint.name, endpoint.base_url, endpoint.kind, model


def _status(error: Exception) -> int | None:
    return getattr(error, "status_code", None)
