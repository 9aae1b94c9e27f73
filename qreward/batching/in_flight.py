"""A batch that is running: its items, the batch function, and the result or error of each caller.

``PendingItem`` is one caller's item, ``BatchFunction`` the function with the settings that all its queues share, and
``InFlightBatch`` one call of that function, in a task of its own and in a neutral context. Nothing here decides when a batch is sent
or what it holds.

Results are assigned by position only if there is exactly one for each item. No two callers receive the same exception object.
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
from qreward.batching.settings import BatchSettings
from qreward.batching.stats import BatchCounters
from qreward.engine.threads import SHARED
from qreward.errors import ConfigError, InvalidResponse, QueueFull, RequestError

_ENDINGS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


class PendingItem(Item):
    """An item whose caller waits for one result.

    Attributes:
        future: holds the result for the caller; cancelled when the caller has left.
        run: the batch that holds the item; not set before the item is in a batch.
        context: the context in which the item was submitted; only with ``carry_contexts``.
    """

    __slots__ = ("context", "future", "run")
    future: asyncio.Future[Any]
    run: InFlightBatch
    context: Context

    def fail(self, error: BaseException) -> None:
        """Set the caller's error, unless the item has been answered or its caller has left."""
        self.place = OVER
        if not self.future.done():
            self.future.set_exception(error)


def caller_error(error: BaseException, name: str) -> BaseException:
    """The exception that a caller receives for ``error``.

    An exception that would end the caller's own task, event loop or iteration is replaced by another that has it as its cause.
    """
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


class FunctionKind(Enum):
    """How a batch function returns its results."""

    AWAITED = "async def"
    THREADED = "def"
    STREAMED = "async generator"


def kind_of(function: Any) -> FunctionKind:
    """The kind of a function or of a callable object.

    Raises:
        TypeError: the object is not callable, or is a generator function that is not async.
    """
    if not callable(function):
        raise TypeError("@batch can only be used to decorate functions or methods; this is not callable")
    looks = (function, type(function).__call__)
    if any(map(inspect.isasyncgenfunction, looks)):
        return FunctionKind.STREAMED
    if any(map(inspect.iscoroutinefunction, looks)):
        return FunctionKind.AWAITED
    if any(map(inspect.isgeneratorfunction, looks)):
        raise TypeError("a batch function that yields must be an `async def`")
    return FunctionKind.THREADED


class BatchFunction:
    """A batch function and its settings, shared by all its queues. It knows nothing of event loops.

    Args:
        function: the batch function.
        settings: see :class:`BatchSettings`.
        call: starts the function with the values of the items. The default is the function itself.
        first_of: returns the first argument contained in a value. The default returns the value itself.

    Attributes:
        closed: whether new items are rejected.
        context: the neutral context in which batches run, namely the one in which this object was created.
        name: the function's name in error messages.
        plain: whether an item can be added without a size, a key, a context, a stream or a check of the queue.
        tally: the counters of all queues.
    """

    __slots__ = ("_closed", "_first_of", "call", "context", "kind", "name", "plain", "settings", "tally")

    def __init__(
        self,
        function: Callable[..., Any],
        settings: BatchSettings,
        call: Callable[[list[Any]], Any] | None = None,
        first_of: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.kind = kind_of(function)
        self.settings = settings
        self.call = call or function
        self._first_of = first_of
        self.name: str = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.context: Context = copy_context()
        self.tally = BatchCounters()
        self._closed = False
        self._settle()
        self._warn()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Reject new items from now on."""
        self._closed = True
        self._settle()

    def change(self, **changes: Any) -> None:
        """Change some settings. If one of them is invalid, nothing is changed."""
        self.settings = self.settings.changed(**changes)
        self._settle()
        if "max_batch_size" in changes:
            self._warn()

    def size_of(self, value: Any) -> float:
        """The size of one item.

        Raises:
            RuntimeError: the item is larger than ``max_batch_size``.
            ConfigError: ``batch_size_fn`` returned a negative number or NaN.
            Exception: raised by ``batch_size_fn``.
        """
        size = self._size([value])
        if size > self.settings.max_batch_size:
            raise too_large()
        return size

    def measure(self, items: list[Any]) -> float:
        """The size of a list of items."""
        return self._size([item.value for item in items])

    def key_of(self, value: Any, shape: Hashable) -> Hashable:
        """The key of an item: its shape, and the result of ``batch_key_fn`` if that is set."""
        key_fn = self.settings.batch_key_fn
        return shape if key_fn is None else (shape, key_fn(self._first_of(value)))

    def _size(self, values: list[Any]) -> float:
        assert self.settings.batch_size_fn is not None
        size = self.settings.batch_size_fn([self._first_of(value) for value in values])
        if not size >= 0:  # also true for NaN
            raise ConfigError(f"batch_size_fn must return a number >= 0, got {size!r}")
        return size

    def _settle(self) -> None:
        its = self.settings
        asked = its.batch_size_fn or its.batch_key_fn or its.max_queue_size or its.carry_contexts
        self.plain = not asked and not self._closed and self.kind is not FunctionKind.STREAMED

    def _warn(self) -> None:
        if (sentence := self.settings.never_full()) is not None:
            _log.warning("%s: %s", self.name, sentence)


def too_large() -> RuntimeError:
    """The error of an item that does not fit into any batch."""
    return RuntimeError(
        "Size of item is greater than max_batch_size. Please increase the max_batch_size or check the implementation of the batch_size_fn."
    )


def results_of(given: Any, count: int) -> Sequence[Any]:
    """Check what a batch function returned, and return it as a sequence with one result for each of ``count`` items.

    Raises:
        TypeError: the value does not hold results in order. It has no length, or is a text, bytes, mapping or set.
        InvalidResponse: the number of results is not ``count``.
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
    """A copy of an exception for one caller, raised from the original. It has the same type, or is a ``RequestError`` if copying fails."""
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
    if len(results) != length:  # a table, for example, iterates over its column names
        raise TypeError(f"the batch function returned a {kind} of length {length} that holds {len(results)} things; return a list")
    return results


def _bare_copy(error: BaseException) -> BaseException:
    """A copy made without ``__init__``, whose parameters may differ from the arguments that the exception keeps."""
    made: BaseException = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made


_CONTEXTS: ContextVar[tuple[Context, ...]] = ContextVar("qreward_batch_contexts", default=())
_RUN: ContextVar[InFlightBatch | None] = ContextVar("qreward_batch_run", default=None)


def batch_contexts() -> tuple[Context, ...]:
    """In a batch function: return the contexts in which the items were submitted, in the order of the items.

    Empty unless the queue was created with ``carry_contexts=True``. The contexts can be used to link a span of the whole batch to the
    spans of its items: ``contexts[0].get(variable)`` or ``contexts[0].run(function)``.
    """
    return _CONTEXTS.get()


class InFlightBatch:
    """A batch that has been sent.

    Args:
        work: the batch function.
        calls: the items, at least one.
        limit: the largest size the batch could have had.
        full: whether items were left in the queue when the batch was taken.
        sent_at: when the batch was sent, in seconds of the queue's clock.

    Attributes:
        alive: number of callers that have not left.
        error: the error of the batch as a whole, or None.
        failed: number of callers that received an error from the function.
        started: when the batch was started, in seconds since the epoch.
        task: the task that runs the batch.
        unstoppable: work that cancellation does not end, in a thread or an actor. The slot stays occupied until it is done.
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
        """Run the function and answer each caller. Raises only exceptions that end a task or the program."""
        work, values = self.work, [call.value for call in self.calls]
        _RUN.set(self)
        if work.settings.carry_contexts:
            self.enter_contexts()
        try:
            results = await (work.call(values) if work.kind is FunctionKind.AWAITED else in_thread(partial(work.call, values)))
            self.give(results_of(results, len(values)))
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def enter_contexts(self) -> None:
        """Make the contexts of the items available to the function."""
        _CONTEXTS.set(contexts_of(self.calls))

    def give(self, results: Iterable[Any]) -> None:
        """Give each caller its result. An exception among the results is raised for that caller."""
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
        """Give one caller an error, or a copy of it if another caller has received the same object."""
        if call.place is not OVER:
            self.failed += 1
            shown = caller_error(error, self.work.name)
            call.fail(own_error(shown) if any(error is other for other in raised) else shown)
            raised.append(error)

    def fail(self, error: BaseException) -> None:
        """Fail the batch as a whole: each caller without an answer receives an exception object of its own."""
        if self.task.get_loop().is_closed():  # the task was destroyed with its event loop, and so were the callers
            return
        self.error = error
        while (trace := error.__traceback__) is not None and trace.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = trace.tb_next  # frames of this module explain nothing, and would keep all items alive
        shown = caller_error(error, self.work.name)
        left = [call for call in self.calls if call.place is not OVER]
        self.failed += len(left)
        for call in left:
            call.fail(shown if len(left) == 1 else own_error(shown))

    def left(self, call: Any) -> None:
        """Record that a caller has left. When all have left, the batch is cancelled."""
        call.place = OVER
        self.alive -= 1
        if not self.alive:
            self.task.cancel()


def contexts_of(calls: list[Any]) -> tuple[Context, ...]:
    """The contexts of items, if they were kept."""
    return tuple(call.context for call in calls if hasattr(call, "context"))


async def in_thread(function: Callable[[], Any]) -> Any:
    """Run a function in a daemon thread and return its result. The thread blocks neither the event loop nor the exit of the process.

    Cancellation takes effect immediately while the thread continues. The slot of the batch stays occupied until the function has
    returned.

    Raises:
        QueueFull: no worker thread is available.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def job() -> Callable[[], object]:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(function), None)
        except BaseException as error:
            outcome = (None, error)  # a future cannot hold a StopIteration
        return lambda: _report(loop, done, outcome)

    if not SHARED.run(job):
        raise QueueFull("every worker thread is busy, perhaps with calls that hang; let the function end by itself")
    results, error = await unstoppable(done)
    if error is not None:
        raise error
    return await results if inspect.isawaitable(results) else results  # a plain function may return a coroutine


async def unstoppable(future: asyncio.Future[Any]) -> Any:
    """Await a future that cancellation does not end, in a batch function. The slot of the batch stays occupied until it is done."""
    run = _RUN.get()
    if run is not None:
        run.unstoppable = future
    return await asyncio.shield(future)


def _report(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], outcome: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed, so no caller is waiting
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(outcome))
