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


class SingleDecision:
    """Sends one decision.

    Args:
        send: sends one request.
        most: returns the largest number of questions in a request, as far as is known now.
        options: the scheduling options of the requests. Their timeout is that of the call, from now.
        clock: returns monotonic seconds.
    """

    def __init__(self, send: Send, most: Callable[[], int], options: RequestOptions, clock: Callable[[], float]) -> None:
        self._send, self._most, self._options, self._clock = send, most, options, clock
        self._born = clock()

    async def result(self, call: WireRequest) -> Decision:
        """Return the decision.

        Raises the error of the request, or that of the first part if all parts failed. If the caller is cancelled, the requests are too.
        """
        outcome = await self._decided(call, self._options)
        if isinstance(outcome, QRewardError):
            raise outcome
        return outcome

    async def _decided(self, call: WireRequest, options: RequestOptions) -> Outcome:
        calls = divided(call, self._most())
        if len(calls) == 1:
            try:
                result = await self._send(call, options)
            except QRewardError as error:  # the client was closed, for example
                return error
            if result.error is None:
                decision: Decision = result.value
                return decision
            calls = smaller(call, result.error, result.attempts, self._most())
            if not calls:
                return result.error
            options = self._left()
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(self._decided(part, options)) for part in calls]
        return joined(calls, [part.result() for part in parts])

    def _left(self) -> RequestOptions:
        """Return the options with what is left of the timeout."""
        timeout = self._options.timeout
        return self._options if timeout is None else self._options._replace(timeout=max(self._born + timeout - self._clock(), 1e-3))
