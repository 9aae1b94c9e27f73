"""Who is told what the engine does: watchers, such as telemetry. They see and change nothing, and no failure of theirs reaches a call.

A watcher is told in the loop of the call, never under the engine's lock, and is quick. What it is told of a call comes in order: ``began``
once, ``sent`` and ``ended`` for each attempt, ``first`` when its answer begins to be given out, ``done`` once. An attempt that lost may
end after its call is done.

A room that merges several calls into one sends a task of its own, whose ``items`` are the tasks that it carries::

    watch.began(item)                  # when the item comes, in its caller's context: item.sink.context
    merged.items = (item, other)       # before the merged task is submitted
    watch.done(item, answer, source)   # when its share of the answer is there; what was used is told by the merged task
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import Protocol, TypeVar

from qreward.core.outcome import Answer, Cancelled, Outcome
from qreward.core.source import Source
from qreward.core.task import Attempt, Task
from qreward.errors import ClientClosed

T = TypeVar("T")

LOG = logging.getLogger("qreward")
GIVEN_UP, TOLD = 1, 2
"""States of ``Task.told``: what carried it was cancelled from outside, and its end was told."""
UNWANTED = -1
"""The ``Task.serial`` of a call that nobody wants to hear of."""

_SERIALS = count(1)

End = Answer | BaseException | None
"""How a call ended: an answer, an error, or None if its caller gave it up."""


class Scope(Protocol):
    """What surrounds the sending of an attempt, kept in ``Attempt.span``."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Watcher(Protocol):
    """See the head of this file. ``now`` is the engine's clock, in seconds."""

    def began(self, task: Task, now: float, /) -> bool:
        """A call was made. False if nothing more of it is of interest; if that is so for all watchers, none is told more."""

    def sent(self, attempt: Attempt, /) -> None: ...
    def first(self, attempt: Attempt, now: float, /) -> None: ...
    def gaps(self, attempt: Attempt, gaps: list[float], /) -> None: ...
    def ended(self, attempt: Attempt, outcome: Outcome, now: float, /) -> None: ...
    def done(self, task: Task, end: End, source: Source | None, now: float, /) -> None: ...


class Watch:
    """Tells watchers, each call and each attempt once.

    Args:
        watchers: one that raises is told further; that it did is logged once.
        clock: the engine's.
    """

    def __init__(self, watchers: Iterable[Watcher], clock: Callable[[], float]) -> None:
        self._watchers = tuple(watchers)
        self._clock = clock
        self._complained: set[int] = set()

    def began(self, task: Task) -> None:
        """A call was made. Before it is submitted; a bulk's item, before it is sent."""
        now, wanted = self._clock(), False
        task.serial = next(_SERIALS)
        if not task.number:  # the scheduler has not seen it
            task.born = now
        for watcher in self._watchers:
            try:
                wanted = watcher.began(task, now) or wanted
            except Exception as error:
                self._complain(watcher, error)
        if not wanted:
            task.serial = UNWANTED

    def sent(self, attempt: Attempt) -> None:
        """An attempt is about to begin."""
        task = attempt.task
        if not task.serial:
            self.began(task)
        if task.serial == UNWANTED:
            return
        for watcher in self._watchers:
            try:
                watcher.sent(attempt)
            except Exception as error:
                self._complain(watcher, error)

    def first(self, attempt: Attempt) -> None:
        """The first piece of its answer is there."""
        if attempt.task.serial == UNWANTED:
            return
        now = self._clock()
        for watcher in self._watchers:
            try:
                watcher.first(attempt, now)
            except Exception as error:
                self._complain(watcher, error)

    def gaps(self, attempt: Attempt, gaps: list[float]) -> None:
        """Seconds that passed between pieces of its answer."""
        if attempt.task.serial == UNWANTED:
            return
        for watcher in self._watchers:
            try:
                watcher.gaps(attempt, gaps)
            except Exception as error:
                self._complain(watcher, error)

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt ended, and the scheduler knows. Once."""
        task = attempt.task
        if task.serial == UNWANTED:
            return
        if attempt.why is None and isinstance(outcome, Cancelled):  # not by us: by its caller, or by the loop's end
            task.told = task.told or GIVEN_UP
        now = self._clock()
        for watcher in self._watchers:
            try:
                watcher.ended(attempt, outcome, now)
            except Exception as error:
                self._complain(watcher, error)

    def done(self, task: Task, end: End, source: Source | None = None) -> None:
        """A call is over. What comes later is ignored."""
        if not task.serial and end is not None:  # read ahead, and never sent
            self.began(task)
        if task.serial <= 0 or task.told == TOLD:
            return
        if task.told == GIVEN_UP and isinstance(end, ClientClosed):
            end = None
        task.told = TOLD
        now = self._clock()
        for watcher in self._watchers:
            try:
                watcher.done(task, end, source, now)
            except Exception as error:
                self._complain(watcher, error)

    def withdrawn(self, tasks: Iterable[Task], error: BaseException | None = None) -> None:
        """Calls were given up, or end with an error that is not the scheduler's."""
        for task in tasks:
            self.done(task, error)

    def _complain(self, watcher: Watcher, error: Exception) -> None:
        if id(watcher) not in self._complained:
            self._complained.add(id(watcher))
            LOG.warning("%s raised %s; calls are not affected, and it stays registered", type(watcher).__name__, type(error).__name__)


async def within(scope: Scope, work: Awaitable[T]) -> T:
    """Await work inside a scope, as far as that can be entered."""
    entered = _did(scope.enter)
    try:
        found = await work
    except GeneratorExit:  # thrown away, perhaps in another context: there is nothing to leave
        raise
    except BaseException:
        if entered:
            _did(scope.leave)
        raise
    if entered:
        _did(scope.leave)
    return found


def _did(step: Callable[[], None]) -> bool:
    try:
        step()
    except Exception as error:
        LOG.debug("a watcher's scope failed with %s", type(error).__name__)
        return False
    return True
