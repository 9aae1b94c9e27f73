"""Calls of a scheduled function at given times, in virtual time, with the same interface for both kinds of functions.

``Async`` runs them on a virtual loop, ``Blocking`` in virtual threads. Both give the same ``Outcome``, so that a test is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from virtual_threads import VirtualThreads

from qreward.functions.function import schedule
from qreward.testing.virtual_time import run_in_virtual_time

Behave = Callable[..., tuple[float, Any]]
"""Given the number of the try (from 0) and the call's arguments: the seconds it takes, and what it returns or raises."""
Event = tuple[float, Callable[[Any], object]]
"""A time, and what is then done to the decorated function."""

SLACK = 1 / 64 + 1e-6
"""Seconds by which what is due may come late: the width of a bucket of the timing wheel."""


@dataclass
class End:
    """How a call ended, and when."""

    at: float
    value: Any = None
    error: BaseException | None = None


@dataclass
class Outcome:
    """What came of the calls.

    Attributes:
        starts: when tries began, and with which arguments.
        ended: when tries ended, by their number; ``cancelled`` those that were stopped.
        most: tries under way at once.
        calls: the ends of the calls, in the order in which they were given.
        stats, settled: what the function says of itself when they have ended, and when all tries have.
    """

    starts: list[tuple[float, tuple[Any, ...]]] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    now: int = 0
    most: int = 0
    calls: list[End] = field(default_factory=list)
    stats: Any = None
    settled: Any = None

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.starts]

    @property
    def values(self) -> list[Any]:
        return [end.value for end in self.calls]

    @property
    def errors(self) -> list[str]:
        """Names of the errors' classes, ``-`` for a call that returned."""
        return ["-" if end.error is None else type(end.error).__name__ for end in self.calls]

    def began(self, at: float, args: tuple[Any, ...]) -> int:
        self.starts.append((at, args))
        self.now += 1
        self.most = max(self.most, self.now)
        return len(self.starts) - 1

    def over(self, number: int, at: float) -> None:
        self.now -= 1
        self.ended[number] = at


def at_times(times: Iterable[float], *args: Any) -> list[tuple[Any, ...]]:
    """Calls at these times, all with the same arguments."""
    return [(time, *args) for time in times]


class Async:
    """Async functions, on a virtual loop."""

    cancels = True

    def run(self, behave: Behave, calls: Sequence[tuple[Any, ...]], events: Sequence[Event] = (), **settings: Any) -> Outcome:
        outcome = Outcome()
        run_in_virtual_time(self._run(outcome, behave, calls, events, settings))
        return outcome

    async def _run(self, outcome: Outcome, behave: Behave, calls: Sequence[Any], events: Sequence[Event], settings: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time

        async def body(*args: Any) -> Any:
            number = outcome.began(now(), args)
            seconds, what = behave(number, *args)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                outcome.cancelled.append(number)
                raise
            finally:
                outcome.over(number, now())
            if isinstance(what, BaseException):
                raise what
            return what

        function = schedule(**settings)(body)

        async def call(at: float, *args: Any) -> End:
            await asyncio.sleep(at)
            try:
                value = await function(*args)
                return End(now(), value)
            except BaseException as error:
                return End(now(), error=error)

        async def event(at: float, do: Callable[[Any], object]) -> None:
            await asyncio.sleep(at)
            do(function)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(*each)) for each in calls]
            for each in events:
                group.create_task(event(*each))
        outcome.calls = [task.result() for task in tasks]
        outcome.stats = outcome.settled = function.stats()


class Blocking:
    """Functions that block, in virtual threads."""

    cancels = False

    def run(self, behave: Behave, calls: Sequence[tuple[Any, ...]], events: Sequence[Event] = (), **settings: Any) -> Outcome:
        outcome = Outcome()
        with VirtualThreads() as threads:

            def body(*args: Any) -> Any:
                number = outcome.began(threads.now(), args)
                seconds, what = behave(number, *args)
                threads.sleep(seconds)
                outcome.over(number, threads.now())
                if isinstance(what, BaseException):
                    raise what
                return what

            function = schedule(**settings)(body)

            def call(at: float, *args: Any) -> End:
                threads.sleep(at)
                try:
                    value = function(*args)
                    return End(threads.now(), value)
                except BaseException as error:
                    return End(threads.now(), error=error)

            def event(at: float, do: Callable[[Any], object]) -> None:
                threads.sleep(at)
                do(function)

            spawned = [threads.spawn(partial(call, *each)) for each in calls]
            happening = [threads.spawn(partial(event, *each)) for each in events]
            outcome.calls = [thread.join() for thread in spawned]
            for thread in happening:
                thread.join()
            outcome.stats = function.stats()
            threads.sleep(1000.0)  # tries that were given up end by themselves
            outcome.settled = function.stats()
        return outcome


KINDS = [Async(), Blocking()]


def kind_name(kind: object) -> str:
    return type(kind).__name__


def most_in_any_window(times: Sequence[float], window: float) -> int:
    """The most times in any half-open interval of this length."""
    ordered = sorted(times)
    return max(sum(begin <= time < begin + window - 1e-9 for time in ordered) for begin in ordered)
