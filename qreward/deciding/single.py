"""Send one decision of one caller. A decision becomes several requests if it has too many questions, or if the server rejects a
question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.deciding.parts import Outcome, divided, joined, smaller
from qreward.decisions import Decision
from qreward.errors import QRewardError
from qreward.results import Result
from qreward.scheduler.state import RequestOptions

Send = Callable[[WireRequest, RequestOptions], Awaitable[Result[Any]]]
"""A function that sends one request and returns its result. If the request failed, the result has the error."""


class DividedDecision:
    """Sends one decision as one or several requests.

    Args:
        send: function that sends one request.
        most: function that returns the largest number of questions per request, as far as this number is known.
        options: the scheduling options of the requests. The timeout is for the whole call, and starts at ``began``.
        clock: function that returns monotonic seconds.
        began: time on this clock when the call began.
    """

    def __init__(self, send: Send, most: Callable[[], int], options: RequestOptions, clock: Callable[[], float], began: float) -> None:
        self._send, self._most, self._options, self._clock, self._began = send, most, options, clock, began

    async def result(self, call: WireRequest, failed: Result[Any] | None = None) -> Decision:
        """Return the decision.

        Args:
            call: the request.
            failed: the failed result of the undivided request; None if the undivided request was not sent.

        Raises:
            QRewardError: the request failed and cannot be divided, or all its parts failed. If all parts failed, the error is that of the
                first part.
        """
        calls = divided(call, self._most()) if failed is None else self._smaller(call, failed)
        outcome = await self._joined(calls)
        if isinstance(outcome, QRewardError):
            raise outcome
        return outcome

    def _smaller(self, call: WireRequest, failed: Result[Any]) -> list[WireRequest]:
        """Divide a request that failed. Raises the error of the request if the request must not be sent again."""
        assert failed.error is not None
        calls = smaller(call, failed.error, failed.attempts, self._most())
        if not calls:
            raise failed.error
        return calls

    async def _joined(self, calls: list[WireRequest]) -> Outcome:
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(self._part(call)) for call in calls]
        return joined(calls, [part.result() for part in parts])

    async def _part(self, call: WireRequest) -> Outcome:
        try:
            result = await self._send(call, self._options_now())
            return result.value if result.error is None else await self._joined(self._smaller(call, result))
        except QRewardError as error:
            return error

    def _options_now(self) -> RequestOptions:
        """Return the options, with the time that is left as the timeout."""
        timeout = self._options.timeout
        return self._options if timeout is None else self._options._replace(timeout=max(self._began + timeout - self._clock(), 1e-3))
