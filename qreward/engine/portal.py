"""The portal: one event loop in a background thread, through which blocking code uses asynchronous code.

A process has one portal, and one event loop for the timers of blocking calls. Each is started when it is first needed, and ended at exit. A
forked child gets its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import queue
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from qreward.engine import background
from qreward.errors import ClientClosed

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

GRACE = 5.0
"""Maximum number of seconds that an interrupted caller waits for cancelled work to end. The exit of the process waits for the same time."""
SHORT_GRACE = 0.5
"""Maximum number of seconds that the exit of the process waits for cancelled work, if an earlier wait timed out or was interrupted."""
PORTAL = "qreward-portal"
_END: Any = object()


class Portal:
    """Runs an event loop in a thread of its own. :func:`portal` returns the portal of this process.

    Args:
        name: name of the thread.
        loop_factory: makes the event loop; None for an ordinary loop.

    Attributes:
        loop: the event loop.
        ended: True if the event loop has ended.
        failure: the exception that ended it, if one did.
        under_way: the work that has not ended yet.
    """

    def __init__(self, name: str = PORTAL, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self.ended = False
        self._exit_timeout = GRACE
        self.failure: BaseException | None = None
        self._lock = threading.RLock()  # reentrant: while it is held, garbage collection may run code that begins work
        self.under_way: set[_Work[Any]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[loop_factory], name=name, daemon=True)
        self._thread.start()
        self._ready.wait()
        if self.failure is not None:
            raise self.failure

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function in the event loop and wait for it. The function sees the caller's context variables.

        If the wait is interrupted, for example by Ctrl-C, the function is cancelled. The interrupt is raised after the function has
        ended, after ``GRACE`` seconds, or at a second interrupt. The notes of the function's ``CancelledError`` are added to the interrupt.

        Raises:
            RuntimeError: called in the portal's own thread, which would wait for itself forever.
            ClientClosed: the process is ending, or was forked from the process in which the call was made.
        """
        self.refuse_own_thread()
        work = _Work(self, function(*args, **kwargs))
        try:
            self.begin(work)
            work.wait()
        except BaseException as error:
            self.give_up(work, error)
            raise
        return work.result()

    def iterate(self, source: AsyncIterable[R], ahead: int = 64) -> BlockingIterator[R]:
        return BlockingIterator(self, source, ahead)

    def give_up(self, work: _Work[Any], error: BaseException) -> None:
        """Stop the work of a caller that was interrupted by ``error``. A second interrupt ends only the wait for the work."""
        ended = False
        with contextlib.suppress(KeyboardInterrupt):
            ended = work.stop()
        if not ended:
            self._exit_timeout = SHORT_GRACE
        with contextlib.suppress(BaseException):  # of work that has failed or is lost
            try:
                work.result()
            except asyncio.CancelledError as cancelled:
                for note in getattr(cancelled, "__notes__", ()):
                    error.add_note(note)

    def close(self) -> None:
        """Cancel all work and end the event loop. Waits at most ``GRACE`` seconds, or ``SHORT_GRACE`` if an earlier wait failed."""
        self.end()
        self._thread.join(self._exit_timeout)

    def end(self) -> None:
        """Cancel all work and end the event loop soon, without waiting for it."""
        self.soon(self._stop.set)

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def refuse_own_thread(self) -> None:
        if self.is_here():
            raise RuntimeError(
                "a blocking call was made in on_result or in the input of a batch, where it would wait for itself; "
                "make it after the batch, or use QRewardClient, whose methods are awaited"
            )

    def soon(self, action: Callable[[], object]) -> None:
        """Run ``action`` in the event loop soon. Does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):  # the loop was closed after the check
            if not self.ended:
                self.loop.call_soon_threadsafe(action)

    def begin(self, work: _Work[Any]) -> None:
        """Begin work in the event loop. If the loop has ended, the work is settled as lost."""
        with self._lock:
            if not self.ended:
                self.under_way.add(work)
                return self.soon(work.begin)
        return work.settle()

    def detach_after_fork(self) -> tuple[object, ...]:
        """Give up the parent's event loop in a forked child. Returns what must be kept, because closing it would affect the parent."""
        self._lock = threading.RLock()  # another thread of the parent may have held the old lock
        kept = (self, *(work.task for work in self.under_way))
        self._give_up()
        return kept

    def _run(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                try:
                    runner.run(self._serve())
                except (KeyboardInterrupt, SystemExit) as error:  # raised by a caller's code; ends the loop, as in asyncio.run
                    self.failure = error
                with self._lock:
                    self.ended = True
        except BaseException as error:  # the loop could not be created or closed
            self.failure = self.failure or error
        finally:
            self._give_up()
            self._ready.set()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(self._report)
        self._ready.set()
        await self._stop.wait()

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self.failure is None or context.get("exception") is not self.failure:  # the failure is raised in all waiting callers
            loop.default_exception_handler(context)

    def _give_up(self) -> None:
        with self._lock:
            self.ended, lost = True, list(self.under_way)
        for work in lost:
            work.settle()


class _Work(Generic[T]):
    """Runs a coroutine in the event loop for a waiting thread. ``on_end`` is called when it is over, normally in the event loop."""

    __slots__ = ("_coroutine", "_on_end", "_open", "_over", "_portal", "task")

    def __init__(self, portal: Portal, coroutine: Coroutine[Any, Any, T], on_end: Callable[[], object] | None = None) -> None:
        self._portal, self._coroutine, self._on_end = portal, coroutine, on_end
        self.task: asyncio.Task[T] | None = None
        self._open = True
        self._over = threading.Lock()
        self._over.acquire()

    def begin(self) -> None:
        """Start the coroutine. Called in the event loop."""
        if self._open and not self._portal.ended:
            self.task = asyncio.get_running_loop().create_task(self._coroutine)
            self.task.add_done_callback(self.settle)

    def settle(self, task: asyncio.Task[T] | None = None) -> None:
        """Mark the work as over. The work is done if ``task`` is given, and lost otherwise."""
        if not self._open:
            return
        self._open = False
        self._portal.under_way.discard(self)
        if self.task is None:
            self._coroutine.close()
        elif task is not None and not task.cancelled():
            task.exception()  # marks it as retrieved; an interrupted caller does not retrieve it
        if self._on_end is not None:
            self._on_end()
        self._over.release()

    def cancel(self) -> None:
        """Cancel the coroutine. Called in the event loop."""
        if self.task is None:
            self.settle()
        else:
            self.task.cancel()

    def wait(self, seconds: float = -1) -> bool:
        """Wait until the work is over, ``seconds`` at most (-1: no limit). Returns False if the work is not over."""
        if self._open and self._over.acquire(timeout=seconds):
            self._over.release()
        return not self._open

    def stop(self) -> bool:
        """Cancel the work and wait ``GRACE`` seconds at most for its end. Returns False if the work has not ended."""
        self._portal.soon(self.cancel)
        return self.wait(GRACE)

    def result(self) -> T:
        """Return the coroutine's result or raise its exception.

        If the work was lost, raises the exception that ended the event loop (such as ``SystemExit``), or ``ClientClosed``.
        """
        task, self.task = self.task, None
        if task is None or not task.done() or (task.cancelled() and self._portal.ended):
            why = "the request was dropped: the process is ending, or was forked from the one that began it"
            raise self._portal.failure or ClientClosed(why)
        try:
            return task.result()
        finally:
            del task  # breaks the cycle traceback -> frame -> task -> error, so that reference counting frees them


class BlockingIterator(Iterator[T]):
    """Iterates over an asynchronous iterable in blocking code. At most ``ahead`` items wait for the reader.

    The whole ``async for`` runs in one task of the portal's event loop, which starts when the first item is requested, so the iterable
    closes its resources in the task and context in which it opened them. The iterable is closed when the iterator is left early: by
    ``close()``, by ``with``, or when its last reference is dropped. ``close()`` and ``with`` also wait until the iterable is closed.

    Raises:
        RuntimeError: the iterator was read in the portal's own thread.
        ClientClosed: the process is ending, or was forked from the process in which the iteration began.
    """

    def __init__(self, portal: Portal, source: AsyncIterable[T], ahead: int = 64) -> None:
        self._work: _Work[None] | None = None
        self._over = False
        self._taken = 0
        self._portal, self._source = portal, source
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._space, self._half = asyncio.Semaphore(max(0, ahead - 1)), max(1, ahead // 2)

    def __next__(self) -> T:
        self._portal.refuse_own_thread()
        if self._over:
            raise StopIteration
        if self._work is None:
            self._work = _Work(self._portal, _pump(self._source, self._items, self._space), partial(self._items.put, _END))
            self._portal.begin(self._work)
        try:
            item = self._items.get()
        except BaseException as error:
            self._over = True
            self._portal.give_up(self._work, error)
            raise
        if item is _END:
            self._over = True
            self._work.result()
            raise StopIteration
        self._taken += 1
        if self._taken % self._half == 0:
            self._portal.soon(partial(_release, self._space, self._half))
        return item

    def close(self) -> None:
        """Stop reading and close the iterable. An exception that the iterable raises while it is closed is raised here."""
        work, over, self._over = self._work, self._over, True
        if work is None or over:
            return
        if self._portal.is_here():
            work.cancel()
            return
        work.stop()
        with contextlib.suppress(asyncio.CancelledError, ClientClosed):
            work.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._work is not None and not self._over:
            self._portal.soon(self._work.cancel)


async def _pump(source: AsyncIterable[T], items: queue.SimpleQueue[T], space: asyncio.Semaphore) -> None:
    """Run an iteration in the event loop. It refers to no ``BlockingIterator``, so that the iterator can be freed."""
    iterator = aiter(source)
    try:
        async for item in iterator:
            items.put(item)
            await space.acquire()
    finally:
        if (aclose := getattr(iterator, "aclose", None)) is not None:
            await aclose()


def _release(space: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        space.release()


_starting = threading.Lock()
_current: dict[str, Portal] = {}
_exiting = False


def portal(name: str = PORTAL) -> Portal:
    """Return the portal of this process, started if it is not running; with another ``name``, an event loop in another thread.

    Raises:
        ClientClosed: the process is ending.
    """
    found = _current.get(name)
    if found is None or found.ended:
        with _starting:
            if _exiting:
                raise ClientClosed("the process is ending; blocking calls are refused")
            found = _current.get(name)
            if found is None or found.ended:
                found = _current[name] = Portal(name)
    return found


def blocking(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Make the blocking twin of an async method, with the same signature. It calls the method of ``self._async`` through the portal."""
    name = function.__name__

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", portal().call(getattr(self._async, name), *args, **kwargs))

    return _documented(call, function)


def forwarded(function: Callable[Concatenate[Any, P], T], wrap: Callable[[T], R]) -> Callable[Concatenate[Any, P], R]:
    """Make the twin of a method that does not wait. The twin calls the method of ``self._async`` and passes the result to ``wrap``."""
    name = function.__name__

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrap(getattr(self._async, name)(*args, **kwargs))

    return _documented(call, function)


def same(value: T) -> T:
    """Return the value unchanged. Used as ``wrap`` if the twin returns the method's result unchanged."""
    return value


class BlockingTwin(Generic[T]):
    """Base class of the blocking twins of asynchronous objects, with ``close``, ``with`` and ``repr``. ``_async`` is the object itself."""

    __slots__ = ("_async",)

    def __init__(self, inner: T) -> None:
        self._async: T = inner

    def close(self) -> None:
        """Stop all requests of this object, close what it holds, and wait until that is done. Further calls do nothing."""
        with contextlib.suppress(ClientClosed):  # the process is ending, and the portal has closed it
            portal().call(cast("Any", self._async).aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._async).replace("<", "<Sync", 1)


F = TypeVar("F", bound=Callable[..., Any])


def _documented(call: F, function: Callable[..., Any]) -> F:
    """Give a twin the name, signature and docstring of its method. The example is left out, because it shows the asynchronous method."""
    functools.update_wrapper(call, function)
    call.__doc__ = (inspect.getdoc(function) or "").partition("\n\nExample:")[0]
    return call


def _at_exit() -> None:
    global _exiting  # noqa: PLW0603
    with _starting:
        _exiting = True
    for each in list(_current.values()):
        with contextlib.suppress(KeyboardInterrupt):  # an interrupt at exit ends the wait
            each.close()


def _after_fork(_: object) -> object:
    global _current, _starting  # noqa: PLW0603
    _starting = threading.Lock()
    inherited, _current = _current, {}
    return [each.detach_after_fork() for each in inherited.values()]


atexit.register(_at_exit)
background.watch(Portal, _after_fork)
