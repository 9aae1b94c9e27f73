"""One batch under way, in a task of its own: the function is run in a neutral context, and each caller gets what is its own.

Decides nothing of when a batch goes or what is in it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any

from qreward.batching.backlog import OVER
from qreward.batching.calls import caller_error
from qreward.batching.outcomes import own_error, results_of
from qreward.batching.work import Kind, Work
from qreward.engine.workers import SHARED
from qreward.errors import QueueFull

_CONTEXTS: ContextVar[tuple[Context, ...]] = ContextVar("qreward_batch_contexts", default=())
_RUN: ContextVar[Run | None] = ContextVar("qreward_batch_run", default=None)


def batch_contexts() -> tuple[Context, ...]:
    """In a batch function: the contexts in which the items were submitted, in the order of the items.

    Empty unless the queue was made with ``carry_contexts=True``. With them a span of the whole batch can be linked to those of
    its items: ``contexts[0].get(variable)`` or ``contexts[0].run(function)``.
    """
    return _CONTEXTS.get()


class Run:
    """A batch.

    Args:
        work: what to do.
        calls: the items, at least one.
        limit: the largest size it could have had.
        full: whether nothing more would have fitted.

    Attributes:
        alive: how many callers are still there.
        error: what went wrong with the batch as a whole.
        failed: how many callers got an error from the function.
        started: when it was started, in seconds since the epoch.
        task: that it runs in.
        unstoppable: work that cancelling does not end, in a thread or an actor; the slot is taken until it is done.
    """

    __slots__ = ("alive", "calls", "error", "failed", "full", "limit", "sent_at", "started", "task", "unstoppable", "work")
    task: asyncio.Task[None]

    def __init__(self, work: Work, calls: list[Any], limit: float, full: bool, sent_at: float) -> None:
        self.work = work
        self.calls = calls
        self.limit = limit
        self.full = full
        self.sent_at = sent_at
        self.started = time.time()
        self.alive = len(calls)
        self.failed = 0
        self.error: BaseException | None = None
        self.unstoppable: asyncio.Future[Any] | None = None
        for call in calls:
            call.run = self

    async def carry_out(self) -> None:
        """Run the function and answer each caller; raises only what ends a task or a program."""
        work, values = self.work, [call.value for call in self.calls]
        _RUN.set(self)
        if work.settings.carry_contexts:
            self.enter_contexts()
        try:
            results = await (work.call(values) if work.kind is Kind.AWAITED else in_thread(partial(work.call, values)))
            self.give(results_of(results, len(values)))
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def enter_contexts(self) -> None:
        """Let the function see the contexts of its items."""
        _CONTEXTS.set(contexts_of(self.calls))

    def give(self, results: Iterable[Any]) -> None:
        """A result for each caller; an exception among them is raised for that caller."""
        raised: list[BaseException] = []
        for call, result in zip(self.calls, results, strict=True):
            if isinstance(result, BaseException):
                self.fail_one(call, result, raised)
                continue
            call.place = OVER
            future = call.future
            if not future.done():
                future.set_result(result)

    def fail_one(self, call: Any, error: BaseException, raised: list[BaseException]) -> None:
        """Give an error to one caller: itself, or a copy if another caller has it already."""
        if call.place is not OVER:
            self.failed += 1
            shown = caller_error(error, self.work.name)
            call.fail(own_error(shown) if any(error is other for other in raised) else shown)
            raised.append(error)

    def fail(self, error: BaseException) -> None:
        """The batch as a whole went wrong: each caller that is left gets an error of its own."""
        if self.task.get_loop().is_closed():  # the task is destroyed, as its callers are
            return
        self.error = error
        while (trace := error.__traceback__) is not None and trace.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = trace.tb_next  # our own frames say nothing, and would keep all items alive
        shown = caller_error(error, self.work.name)
        left = [call for call in self.calls if call.place is not OVER]
        self.failed += len(left)
        for call in left:
            call.fail(shown if len(left) == 1 else own_error(shown))

    def left(self, call: Any) -> None:
        """A caller is gone. When all are, the batch ends early."""
        call.place = OVER
        self.alive -= 1
        if not self.alive:
            self.task.cancel()


def contexts_of(calls: list[Any]) -> tuple[Context, ...]:
    """The contexts of items, if they were kept."""
    return tuple(call.context for call in calls if hasattr(call, "context"))


async def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns, or raises, in a daemon thread, which keeps neither the event loop nor the process.

    Cancelling this ends it at once, and the thread goes on: the slot of the batch is taken until the function has returned.

    Raises:
        QueueFull: no worker thread is left.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def job() -> Callable[[], object]:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(function), None)
        except BaseException as error:
            outcome = (None, error)  # no future could carry a StopIteration
        return lambda: _report(loop, done, outcome)

    if not SHARED.run(job):
        raise QueueFull("every worker thread is busy, perhaps with calls that hang; let the function end by itself")
    results, error = await unstoppable(done)
    if error is not None:
        raise error
    return await results if inspect.isawaitable(results) else results  # a plain function may give a coroutine


async def unstoppable(future: asyncio.Future[Any]) -> Any:
    """Await, in a batch function, what cancelling does not end: until the future is done the slot of the batch is taken."""
    run = _RUN.get()
    if run is not None:
        run.unstoppable = future
    return await asyncio.shield(future)


def _report(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], outcome: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(outcome))
