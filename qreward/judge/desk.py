"""One item, judged for one caller who waits for it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import copy_context
from math import inf
from typing import Any

from qreward.core.pool import Pool
from qreward.core.task import Attempt, Feed, Task, Terms
from qreward.engine.shell import Shell
from qreward.errors import ClientClosed
from qreward.judge.ballots import Juror
from qreward.judge.flights import Bench, Flight, Keep, late
from qreward.judge.polls import Ask, Poll, error_of
from qreward.judge.settling import Decide
from qreward.judge.words import Vote


class Desk(Bench):
    """A bench for one poll."""

    def __init__(
        self, shell: Shell, table: dict[Hashable, Flight], terms: Terms, pools: dict[Juror, Pool], keep: Keep | None, born: float
    ) -> None:
        self._sit(shell, table, terms, pools, keep)
        self.context = copy_context()
        self._born = born
        self._poll: Poll | None = None

    async def outcome(self, asks: Sequence[Ask], decide: Decide, known: Sequence[Vote | None]) -> tuple[Poll, Any]:
        """The poll, and what was decided; raises the error if it is one. If the caller is cancelled, so is what only it waits for."""
        shell = self.shell
        until = inf if self._terms.timeout is None else self._born + self._terms.timeout
        poll = self._poll = Poll(asks, decide, self, 0, self._born, until)
        self._waiter = shell.loop.create_future()
        shell.sinks[self] = None
        try:
            self.begin(poll, known)
            decided = await self._waiter
        except GeneratorExit:  # thrown away, perhaps by the garbage collector amid our own work, where the lock is held
            shell.later(self._leave)
            raise
        except BaseException:
            self._leave()
            raise
        self._leave()
        error = error_of(decided)
        if error is not None:
            raise error
        return poll, decided

    def _leave(self) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.leave()
        self.shell.sinks.pop(self, None)

    def decided(self, poll: Poll, decided: Any) -> None:  # noqa: ARG002 - there is one
        if not self._waiter.done():
            self._waiter.set_result(decided)

    def send(self, flight: Flight, *, again: bool) -> None:  # noqa: ARG002 - a single call always goes at once
        poll = self._poll
        timeout = self._terms.timeout
        if poll is not None and timeout is not None:
            timeout = poll.until - self.shell.engine.clock()
            if timeout <= 0:
                flight.end(late(self._terms.timeout, flight.ask.juror.model))
                return
        self.shell.submit(self.request(flight, timeout))

    # what the shell asks

    def start(self, attempt: Attempt) -> None:
        self.shell.spawn(attempt, self.context.copy())

    def read(self, feed: Feed) -> bool:
        raise AssertionError(f"a single call has no feed: {feed}")

    def close(self) -> None:
        error = ClientClosed("the client was closed before the verdict was there")
        tasks, self.requests = list(self.requests), {}
        self.shell.withdraw(tasks, error)
        if self._poll is not None:
            self._poll.end(error)

    def abandon(self) -> list[Task]:
        tasks, self.requests = list(self.requests), {}
        return tasks
