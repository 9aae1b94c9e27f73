"""``Decide``, the codec of a decision until an endpoint is chosen. The dialect of the endpoint then encodes the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput, DecisionReply, Dialect, valid_input
from qreward.codecs.decisions.dialects import DialectTable
from qreward.settings.policies import Endpoint

NO_SUCH_PATH = frozenset({404, 405, 501})
"""HTTP statuses of responses from servers that do not have the path of a request."""
OTHER_BODY = frozenset({400, 422})
"""HTTP statuses of responses from servers that expect another form of the body."""


class Decide:
    """Checks decisions and estimates their tokens. ``Decide`` is the codec of a ``WireRequest`` whose ``inputs`` are a ``DecisionInput``.

    Args:
        table: the dialects of endpoints.
        learned: function that is called after an error response has shown that an endpoint uses another dialect.
    """

    name = "decide"
    path = ""

    def __init__(self, table: DialectTable, learned: Callable[[], object] = lambda: None) -> None:
        self.table, self._learned = table, learned

    def dialect_at(self, endpoint: Endpoint, model: str) -> Dialect:
        """Return the dialect in which the next request to an endpoint is encoded."""
        return self.table.expected(endpoint, model)

    def learns(self, endpoint: Endpoint, model: str, name: str | None) -> bool:
        """Store the dialect that an error response has shown. Returns True if the request should be sent again in this dialect.

        If ``name`` is None or ``Endpoint.decisions`` names a dialect, nothing is stored, and the method returns False.
        """
        if name is None or endpoint.decisions is not None:
            return False
        self.table.remember(endpoint, model, name)
        self._learned()
        return True

    def advice(self, endpoint: Endpoint, model: str, error: Exception) -> str:
        """Return a hint to add to an error that a wrong dialect may have caused; ``""`` for any other error."""
        status = getattr(error, "status_code", None)
        if status not in NO_SUCH_PATH and (status not in OTHER_BODY or endpoint.decisions or self.table.known(endpoint, model)):
            return ""
        name = self.dialect_at(endpoint, model).name
        return (
            f"; the decision was sent in the dialect {name!r}; if the server uses another one, set decisions= of endpoint {endpoint.name!r}"
        )

    def validate(self, inputs: Any) -> DecisionInput:
        """Return checked input and questions, as :func:`valid_input` does."""
        return valid_input(inputs)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return the estimate of the default dialect. Other dialects need about as many tokens."""
        return self.table.default.estimate_tokens(call)

    def encode(self, call: WireRequest, model: str) -> bytes:  # noqa: ARG002 - as all codecs have it
        raise TypeError("the body of a decision depends on the endpoint; bind the call to an endpoint first")

    def decode(self, body: bytes, call: WireRequest) -> DecisionReply:  # noqa: ARG002 - as all codecs have it
        raise TypeError("the response to a decision depends on the endpoint; bind the call to an endpoint first")

    def __repr__(self) -> str:
        return "<Decide>"
