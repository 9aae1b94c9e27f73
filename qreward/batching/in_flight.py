"""One caller's item as the shell holds it: what it waits for, and the batch it is in.

Knows futures, but neither queues nor functions.

What a queue does with a batch: the function, of what kind it is, and the settings that all its queues share.

It does not know event loops; whoever runs the function does.

What a batch function gave, as the outcome of each caller: its own result, or an error of its own.

Pure. Nothing is given by position unless there is one result for each item; and no two callers share an exception.

One batch under way, in a task of its own: the function is run in a neutral context, and each caller gets what is its own.

Decides nothing of when a batch goes or what is in it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from functools import partial
from typing import Any

from qreward.batching.backlog import OVER, Item
from qreward.batching.settings import Settings
from qreward.batching.stats import Counters
from qreward.engine.threads import SHARED
from qreward.errors import ConfigError, InvalidResponse, QueueFull, RequestError

_ENDINGS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


class PendingItem(Item):
    """An item whose caller waits for one result.

    Attributes:
        future: done when the caller is; cancelled when the caller left.
        run: the batch it is in; not before it is in one.
        context: what was current when it was submitted; only with ``carry_contexts``.
    """

    __slots__ = ("context", "future", "run")
    future: asyncio.Future[Any]
    run: InFlightBatch
    context: Context

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, unless it has something already or has left."""
        self.place = OVER
        if not self.future.done():
            self.future.set_exception(error)


def caller_error(error: BaseException, name: str) -> BaseException:
    """What a caller may be given for an exception: not one that would end the caller's own task, loop or iteration."""
    told: Exception
    if isinstance(error, StopIteration | StopAsyncIteration):
        told = RuntimeError(f"{name} raised {type(error).__name__}")
    elif isinstance(error, _ENDINGS):
        told = RequestError(f"the batch was not finished: {type(error).__name__} in {name}; the item may be submitted again")
    else:
        return error
    told.__cause__ = error
    return told


_log = logging.getLogger("qreward")


class Kind(Enum):
    """How a batch function gives its results."""

    AWAITED = "async def"
    THREADED = "def"
    STREAMED = "async generator"


def kind_of(function: Any) -> Kind:
    """The kind of a function or of an object that can be called.

    Raises:
        TypeError: it cannot be called, or is a generator function that is not async.
    """
    if not callable(function):
        raise TypeError("@batch can only be used to decorate functions or methods; this is not callable")
    looks = (function, type(function).__call__)
    if any(map(inspect.isasyncgenfunction, looks)):
        return Kind.STREAMED
    if any(map(inspect.iscoroutinefunction, looks)):
        return Kind.AWAITED
    if any(map(inspect.isgeneratorfunction, looks)):
        raise TypeError("a batch function that yields must be an `async def`")
    return Kind.THREADED


class BatchFunction:
    """A batch function and its settings.

    Args:
        function: what a batch is for.
        settings: see :class:`Settings`.
        call: starts it with the values of the items; by default that is the function.
        first_of: the first argument in a value; by default that is the value.

    Attributes:
        closed: nothing is taken any more.
        context: the neutral context in which batches run: what was current when this was made.
        name: how it is called in errors.
        plain: an item may be taken in without further questions.
        tally: what has happened in all queues.
    """

    __slots__ = ("_closed", "_first_of", "call", "context", "kind", "name", "plain", "settings", "tally")

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Settings,
        call: Callable[[list[Any]], Any] | None = None,
        first_of: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.kind = kind_of(function)
        self.settings = settings
        self.call = call or function
        self._first_of = first_of
        self.name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.context: Context = copy_context()
        self.tally = Counters()
        self._closed = False
        self._settle()
        self._warn()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Take nothing any more."""
        self._closed = True
        self._settle()

    def change(self, **changes: Any) -> None:
        """Set some settings anew; nothing is changed if one of them is wrong."""
        self.settings = self.settings.changed(**changes)
        self._settle()
        if "max_batch_size" in changes:
            self._warn()

    def size_of(self, value: Any) -> float:
        """The size of one item.

        Raises:
            RuntimeError: it is larger than a batch may be.
            Exception: what ``batch_size_fn`` raises.
        """
        size = self._size([value])
        if size > self.settings.max_batch_size:
            raise too_large()
        return size

    def measure(self, items: list[Any]) -> float:
        """The size of a list of items."""
        return self._size([item.value for item in items])

    def key_of(self, value: Any, shape: Hashable) -> Hashable:
        """The key of an item: its own shape, and what ``batch_key_fn`` says."""
        key_fn = self.settings.batch_key_fn
        return shape if key_fn is None else (shape, key_fn(self._first_of(value)))

    def _size(self, values: list[Any]) -> float:
        assert self.settings.batch_size_fn is not None
        size = self.settings.batch_size_fn([self._first_of(value) for value in values])
        if not size >= 0:  # also if it is not a number
            raise ConfigError(f"batch_size_fn must return a number >= 0, got {size!r}")
        return size

    def _settle(self) -> None:
        its = self.settings
        asked = its.batch_size_fn or its.batch_key_fn or its.max_queue_size or its.carry_contexts
        self.plain = not asked and not self._closed and self.kind is not Kind.STREAMED

    def _warn(self) -> None:
        if (sentence := self.settings.never_full()) is not None:
            _log.warning("%s: %s", self.name, sentence)


def too_large() -> RuntimeError:
    """The error of an item that does not fit into any batch."""
    return RuntimeError(
        "Size of item is greater than max_batch_size. Please increase the max_batch_size or check the implementation of the batch_size_fn."
    )


def results_of(given: Any, count: int) -> Sequence[Any]:
    """What was returned, as one result for each of ``count`` items.

    Raises:
        TypeError: it is nothing that holds results in order: no length, or a text, bytes, mapping or set.
        InvalidResponse: it holds more or fewer.
    """
    if type(given) is not list and type(given) is not tuple:
        given = _in_order(given)
    if len(given) != count:
        raise InvalidResponse(
            f"Batched function doesn't preserve batch size. The input list has length {count} but the returned list has "
            f"length {len(given)}."
        )
    return given  # type: ignore[no-any-return]


def own_error(error: BaseException) -> BaseException:
    """An exception for one caller alone, raised from the original: of the same type, or a ``RequestError`` if it cannot be copied."""
    for make in (copy.copy, _bare_copy):
        try:
            made = make(error)
            same = type(made) is type(error) and made is not error and str(made) == str(error) and len(made.args) == len(error.args)
        except Exception:
            same = False
        if same:
            if hasattr(made, "__notes__"):
                made.__notes__ = list(made.__notes__)
            break
    else:
        made = RequestError(f"{type(error).__name__}: {_words(error)}")
    made.__cause__ = error
    return made


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it cannot be shown)"


def _in_order(given: Any) -> Sequence[Any]:
    kind = type(given).__name__
    if isinstance(given, str | bytes | bytearray | Mapping | Set):
        raise TypeError(f"the batch function must return a list with one result for each item, not a {kind}")
    try:
        length = len(given)
    except TypeError:
        raise TypeError(f"the batch function must return a list with one result for each item; a {kind} has no len()") from None
    results = list(given)
    if len(results) != length:  # such as the column names of a table
        raise TypeError(f"the batch function returned a {kind} of length {length} that holds {len(results)} things; return a list")
    return results


def _bare_copy(error: BaseException) -> BaseException:
    """A copy made without ``__init__``, which may want other arguments than those the exception keeps."""
    made: BaseException = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made


_CONTEXTS: ContextVar[tuple[Context, ...]] = ContextVar("qreward_batch_contexts", default=())
_RUN: ContextVar[InFlightBatch | None] = ContextVar("qreward_batch_run", default=None)


def batch_contexts() -> tuple[Context, ...]:
    """In a batch function: the contexts in which the items were submitted, in the order of the items.

    Empty unless the queue was made with ``carry_contexts=True``. With them a span of the whole batch can be linked to those of
    its items: ``contexts[0].get(variable)`` or ``contexts[0].run(function)``.
    """
    return _CONTEXTS.get()


class InFlightBatch:
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

    def __init__(self, work: BatchFunction, calls: list[Any], limit: float, full: bool, sent_at: float) -> None:
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
