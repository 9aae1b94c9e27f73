"""One decision for one caller, in several requests at once if a server takes fewer questions, or finds one of them wrong."""

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
"""Sends one request. The error of the request is in its result."""


class DividedDecision:
    """Sends one decision in parts.

    Args:
        send: sends one request.
        most: returns the largest number of questions in a request, as far as is known now.
        options: the scheduling options of the requests. Their timeout is that of the call, from ``began``.
        clock: returns monotonic seconds.
        began: when the call began.
    """

    def __init__(self, send: Send, most: Callable[[], int], options: RequestOptions, clock: Callable[[], float], began: float) -> None:
        self._send, self._most, self._options, self._clock, self._began = send, most, options, clock, began

    async def result(self, call: WireRequest, failed: Result[Any] | None = None) -> Decision:
        """Return the decision.

        Args:
            call: the request.
            failed: the result of sending it as a whole, with an error; None if it was not sent.

        Raises the error of the request, or that of the first part if all parts failed. If the caller is cancelled, the requests are too.
        """
        calls = divided(call, self._most()) if failed is None else self._smaller(call, failed)
        outcome = await self._joined(calls)
        if isinstance(outcome, QRewardError):
            raise outcome
        return outcome

    def _smaller(self, call: WireRequest, failed: Result[Any]) -> list[WireRequest]:
        """Return the parts in which a request is sent again. Raises its error if it is not."""
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
        """Return the options with what is left of the timeout."""
        timeout = self._options.timeout
        return self._options if timeout is None else self._options._replace(timeout=max(self._began + timeout - self._clock(), 1e-3))
