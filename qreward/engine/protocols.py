"""The interfaces between the engine and its neighbours: the backend, the waiters of tasks, and the scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from qreward.errors import QRewardError
from qreward.scheduler.health import HealthChange
from qreward.scheduler.outcome import Answer, Failure
from qreward.scheduler.scheduler import Command
from qreward.scheduler.state import Attempt, BatchFeed, Source, Task

if TYPE_CHECKING:
    from qreward.engine.driver import LoopDriver
    from qreward.scheduler.outcome import Outcome


class Wire(Protocol):
    """A backend that sends requests. Each event loop has its own.

    A backend that supports streams also has ``stream``; see ``stream_attempt``. A backend that can probe endpoints has ``look``; see
    ``probing``. A backend that holds resources per endpoint may have ``keep(endpoints)``, which is called in the event loop when
    endpoints other than these are no longer used.
    """

    async def send(self, endpoint: Any, call: Any) -> Answer | Failure:
        """Make one attempt. Raises only ``CancelledError``; the connection is then closed."""

    async def aclose(self) -> None: ...


class Waiter(Protocol):
    """The receiver of the outcomes of tasks: a single call or a batch. It is the ``waiter`` of its tasks.

    Attributes:
        shell: the loop driver that runs its attempts.
        context: the context variables of its caller.
        carry: carries out one attempt, or None to use ``Wire.send``. Raises only ``CancelledError``.
    """

    shell: LoopDriver
    context: Context

    @property
    def carry(self) -> Callable[[Attempt], Awaitable[Outcome]] | None: ...

    def start(self, attempt: Attempt) -> None:
        """Have ``LoopDriver.carry_out`` run for an attempt, in a task whose context is the caller's or a copy of it."""

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None: ...

    def read(self, feed: BatchFeed) -> bool:
        """Put more input into the feed's buffer. Returns False if that happens later, followed by ``LoopDriver.refill``."""

    def close(self) -> None:
        """End unfinished tasks with ``ClientClosed``, because the client is closed."""

    def abandon(self) -> list[Task]:
        """Return the unfinished tasks without notifying their caller. Called when the event loop was closed."""


class CommandRunner(Protocol):
    """Runs the commands of its waiters: a loop driver or a thread driver."""

    def run(self, out: list[Command]) -> object: ...

    def post(self, command: Command) -> None:
        """Run a command, from any thread."""


class WakeListener(Protocol):
    """A user of an engine other than its loop drivers."""

    def wake_soon(self) -> None:
        """Check the next wake time again, because the scheduler was changed elsewhere."""


class SchedulerProtocol(Protocol):
    """The inputs that the engine gives to a scheduler.

    After each input, the engine takes the resulting commands from ``out`` and the changes from ``health_changes``.
    """

    out: list[Command]
    health_changes: list[HealthChange]

    def submit(self, now: float, task: Any, /) -> None: ...

    def withdraw(self, now: float, tasks: list[Any], /) -> None: ...

    def event(self, now: float, attempt: Any, outcome: Any) -> None: ...

    def tick(self, now: float, /) -> None: ...

    def next_wake(self) -> float | None: ...
