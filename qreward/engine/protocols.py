"""What the engine sees of others: the wire, who waits for tasks, and the scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from qreward.errors import QRewardError
from qreward.scheduler.endpoint_state import Source
from qreward.scheduler.health import HealthChange
from qreward.scheduler.outcome import Answer, Failure
from qreward.scheduler.request import Attempt, BatchFeed, Task
from qreward.scheduler.scheduler import Command

if TYPE_CHECKING:
    from qreward.engine.driver import LoopDriver
    from qreward.scheduler.outcome import Outcome


class Wire(Protocol):
    """How the engine reaches the outside, one for each event loop.

    One that is used for streams has ``stream`` as well; see ``flow``. One that holds something for each endpoint may have
    ``keep(endpoints)``, which is called in the loop when others than these are not used any more.
    """

    async def send(self, endpoint: Any, call: Any) -> Answer | Failure:
        """Try once. Never raises but ``CancelledError``, after which the connection is closed."""

    async def aclose(self) -> None: ...


class Waiter(Protocol):
    """Who waits for tasks: a single caller, or a bulk.

    Attributes:
        shell: where its attempts run.
        context: its caller's context variables.
        carry: its own way to try once, or None for ``Wire.send``. Raises nothing but ``CancelledError``.
    """

    shell: LoopDriver
    context: Context

    @property
    def carry(self) -> Callable[[Attempt], Awaitable[Outcome]] | None: ...

    def start(self, attempt: Attempt) -> None:
        """See that ``LoopDriver.carry_out`` is run for an attempt, in a task whose context is the caller's or a copy of it."""

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None: ...

    def read(self, feed: BatchFeed) -> bool:
        """Put more input into the feed's buffer; False if that will be done later, with ``LoopDriver.refill``."""

    def close(self) -> None:
        """The client is closed: end with ``ClientClosed`` what is not done."""

    def abandon(self) -> list[Task]:
        """The loop is gone: tell nobody, return the tasks that are not done."""


class CommandRunner(Protocol):
    """Where a sink's commands are run."""

    def run(self, out: list[Command]) -> object: ...

    def post(self, command: Command) -> None:
        """Run a command, from any thread."""


class WakeListener(Protocol):
    """Whoever uses an engine besides its shells."""

    def wake_soon(self) -> None:
        """The scheduler was changed from elsewhere: look at the time again."""


class SchedulerProtocol(Protocol):
    """What the engine tells any scheduler. What follows is in ``out`` and ``health_changes``, to be taken after each input."""

    out: list[Command]
    health_changes: list[HealthChange]

    def submit(self, now: float, task: Any, /) -> None: ...

    def withdraw(self, now: float, tasks: list[Any], /) -> None: ...

    def event(self, now: float, attempt: Any, outcome: Any) -> None: ...

    def tick(self, now: float, /) -> None: ...

    def next_wake(self) -> float | None: ...
