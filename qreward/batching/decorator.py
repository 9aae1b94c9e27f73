"""``@batch``: turns a function of lists into a function of single items whose calls are merged."""

from __future__ import annotations

import inspect
import io
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Sequence
from functools import cached_property, wraps
from statistics import mean
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from qreward.batching.queue import BatchQueue, Results, Yields
from qreward.batching.settings import BatchSettings, Options, QueueStats, checked
from qreward.callables import FunctionKind, kind_of, show_keywords

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
S = TypeVar("S")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)
P = ParamSpec("P")
One: TypeAlias = Coroutine[Any, Any, R]
Stream: TypeAlias = AsyncGenerator[R, None]

BY_POSITION = ("max_batch_size", "batch_wait_timeout_s", "max_concurrent_batches", "batch_size_fn")
"""Settings that may follow the function by position, as in ``batch(None, 16)``."""
RECEIVERS = ("self", "cls")
"""Names that mark a first parameter as the receiver of an instance or a class. All other parameters receive lists."""
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class StartTimes(NamedTuple):
    """The times at which the running batches began, in seconds since the epoch, and their statistics."""

    start_times: Sequence[float]
    num_requests: int
    min_start_time: float | None
    mean_start_time: float | None
    max_start_time: float | None


class DecoratedQueue(BatchQueue[Any, Any]):
    """The queue of a batched function, with the accessors of Ray Serve. The value of an item is the arguments of its call."""

    @cached_property
    def _signature(self) -> tuple[inspect.Signature, bool, int]:
        """The signature of the function, whether its first parameter is a receiver, and the number of arguments of a call that needs no
        binding. Read by the first call, because an unpickled function may be incomplete before it."""
        signature = inspect.signature(self.function)
        parameters = list(signature.parameters.values())
        bound = bool(parameters) and parameters[0].name in RECEIVERS
        if len(parameters) <= bound:
            raise TypeError(f"{self.name} must have a parameter for the list of items")
        by_position = all(parameter.kind in _BY_POSITION for parameter in parameters)
        return signature, bound, len(parameters) if by_position else -1

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, Hashable, Any]:
        """Return the arguments of a call, the key of calls that may share its batch, and the instance of a method.

        The key tells which parameters the call passes; None if it passes all of them by position.
        """
        signature, bound, count = self._signature
        key: Hashable = None
        if kwargs or len(args) != count:
            call = signature.bind(*args, **kwargs)
            args, kwargs = call.args, call.kwargs
            if len(args) == bound and not kwargs:
                raise TypeError(f"{self.name} was called without an item")
            if kwargs or len(args) != count:
                key = len(args), frozenset(kwargs)
        if not bound:
            return (args, kwargs), key, None
        if type(args[0]).__weakrefoffset__:
            return (args, kwargs), key, args[0]
        return (args, kwargs), (id(args[0]), key), None  # such instances share a worker, but never a batch

    def call(self, values: list[Any]) -> Any:
        """Call the function with a list for each parameter, except for the receiver."""
        args, kwargs = values[0]
        if len(args) == 1 and not kwargs:  # fast path for the usual case
            return self.function([positional[0] for positional, _ in values])
        columns: list[Any] = list(map(list, zip(*[positional for positional, _ in values], strict=True)))
        if self._signature[1]:
            columns[0] = args[0]
        return self.function(*columns, **{name: [named[name] for _, named in values] for name in kwargs})

    def first_of(self, value: Any) -> Any:
        args, kwargs = value
        return [*args, *kwargs.values()][self._signature[1]]

    def _get_max_batch_size(self) -> int:
        return self.settings.max_batch_size

    def _get_batch_wait_timeout_s(self) -> float:
        return self.settings.batch_wait_timeout_s

    def _get_curr_iteration_start_times(self) -> StartTimes:
        now = time.time()
        times = [now - (worker.clock() - batch.sent_at) for worker in self.loop_workers() for batch in list(worker.batches)]
        return StartTimes(times, len(times), min(times, default=None), mean(times) if times else None, max(times, default=None))

    async def _is_batching_task_alive(self) -> bool:
        """Return True until the queue is closed. No task can die: each batch has a task of its own."""
        return not self.closed

    async def _get_handling_task_stack(self) -> str:
        """Return the stacks of the running batches."""
        text = io.StringIO()
        for worker in self.loop_workers():
            for batch in list(worker.batches):
                batch.task.print_stack(file=text)
        return text.getvalue()


# The types for type checkers: parameters of type ``list[T]`` become parameters of type ``T``. A function with one list more than a method
# needs an overload before that of the method, for which its first list would be the instance.


class Controls(Protocol):
    """The attributes of a batched function. If the function is a method, these attributes apply to the queues of all instances."""

    __name__: str
    __qualname__: str

    __wrapped__: Callable[..., Any]
    set_max_batch_size: Callable[[int], None]
    set_batch_wait_timeout_s: Callable[[float], None]
    set_max_concurrent_batches: Callable[[int], None]
    stats: Callable[[], QueueStats]

    @staticmethod
    def change(**settings: Unpack[Options]) -> None: ...
    @staticmethod
    async def close(drain: bool = True) -> None: ...


class Batched(Controls, Protocol[P, Made_co]):
    """The type of a batched function, and of a batched method that is accessed on an instance."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Made_co: ...


class BatchedMethod(Controls, Protocol[S_contra, P, Made_co]):
    """The type of a batched method that is accessed on its class."""

    def __call__(self, instance: S_contra, /, *args: P.args, **kwargs: P.kwargs) -> Made_co: ...
    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> BatchedMethod[S_contra, P, Made_co]: ...
    @overload
    def __get__(self, instance: S_contra, owner: type[Any] | None = None, /) -> Batched[P, Made_co]: ...


class BatchDecorator(Protocol):
    """The type of ``batch``, and of the decorator that a call of ``batch`` with settings returns."""

    __name__: str

    @overload
    def __call__(self, function: None = None, /, *first: Any, **settings: Unpack[Options]) -> BatchDecorator: ...
    @overload
    def __call__(self, function: Callable[[list[A]], Yields[R]], /) -> Batched[[A], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A], list[B]], Yields[R]], /) -> Batched[[A, B], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A], list[B], list[C]], Yields[R]], /) -> Batched[[A, B, C], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[S, list[A]], Yields[R]], /) -> BatchedMethod[S, [A], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[S, list[A], list[B]], Yields[R]], /) -> BatchedMethod[S, [A, B], Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[..., Yields[R]], /) -> Batched[..., Stream[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A]], Results[R]], /) -> Batched[[A], One[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A], list[B]], Results[R]], /) -> Batched[[A, B], One[R]]: ...
    @overload
    def __call__(self, function: Callable[[list[A], list[B], list[C]], Results[R]], /) -> Batched[[A, B, C], One[R]]: ...
    @overload
    def __call__(self, function: Callable[[S, list[A]], Results[R]], /) -> BatchedMethod[S, [A], One[R]]: ...
    @overload
    def __call__(self, function: Callable[[S, list[A], list[B]], Results[R]], /) -> BatchedMethod[S, [A, B], One[R]]: ...
    @overload
    def __call__(self, function: Callable[..., Results[R]], /) -> Batched[..., One[R]]: ...


def _as_decorator(function: Callable[..., Any]) -> BatchDecorator:
    return cast("BatchDecorator", function)


@_as_decorator
def batch(function: Any = None, /, *first: Any, **settings: Unpack[Options]) -> Any:
    """Decorate a function of lists, so that callers pass one item and get one result. Their calls are merged into batches.

    The function receives a list for each parameter that the callers pass, and returns a list with one result per call. A parameter that a
    caller leaves out has its default value. Calls that pass the parameter and calls that leave it out are in different batches.

    The function may be an ``async def``. With parentheses (``@batch()``), it may also be a plain ``def``, which runs in a thread. If the
    function is an async generator of lists, each caller gets an async generator. A method, whose first parameter is ``self`` or ``cls``,
    has one queue per instance. An exception *in* the list is raised only for the caller of its item. If the function raises, each caller
    gets a separate exception object.

    When a batch is sent is described at :class:`BatchQueue`. The settings are the fields of :class:`~qreward.batching.BatchSettings`. They
    can be changed later, with ``score.set_max_batch_size(64)``, ``set_batch_wait_timeout_s``, ``set_max_concurrent_batches`` or
    ``change(...)``. ``score.stats()`` returns the current state, and ``await score.close()`` closes the queues.

    Raises:
        TypeError: the decorated object is not a function, ``@batch`` without parentheses decorates a plain ``def``, or a setting has the
            wrong type. A call of the batched function also raises ``TypeError`` if the arguments do not match the signature of the
            function, or if the function has no parameter for a list.
        ConfigError: a setting is unknown or out of range. ``ConfigError`` is a ``ValueError``.

    Example:
        >>> import asyncio
        >>> @batch(max_batch_size=32)
        ... async def score(texts: list[str]) -> list[int]:
        ...     return [len(text) for text in texts]
        >>> async def main():
        ...     return await asyncio.gather(score("one"), score("three"))
        >>> asyncio.run(main())
        [3, 5]
    """
    its = checked(cast("Options", dict(zip(BY_POSITION, first, strict=False)) | settings))
    if len(first) > len(BY_POSITION) or set(BY_POSITION[: len(first)]) & set(settings):
        raise TypeError(f"by position, @batch takes only {', '.join(BY_POSITION)}, and each setting once")
    if function is None:
        return lambda decorated: _batched(decorated, its)
    if not isinstance(function, staticmethod | classmethod) and kind_of(function) is FunctionKind.THREADED:
        raise TypeError("Functions decorated with @batch must be 'async def'; write @batch() to run a plain function in a thread")
    return _batched(function, its)


show_keywords(batch)
CONTROLS = (
    *("set_max_batch_size", "set_batch_wait_timeout_s", "set_max_concurrent_batches", "change", "stats", "close"),
    *("_get_max_batch_size", "_get_batch_wait_timeout_s", "_get_curr_iteration_start_times"),  # as in Ray Serve, like the next two
    *("_is_batching_task_alive", "_get_handling_task_stack"),
)
"""Names of the methods of a queue that are attributes of the batched function."""


def _batched(function: Any, settings: BatchSettings) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_batched(function.__func__, settings))
    owner = DecoratedQueue(function, **vars(settings))

    async def result(*args: Any, **kwargs: Any) -> Any:
        return await owner.result_of(*owner.prepared(args, kwargs))

    def stream(*args: Any, **kwargs: Any) -> Any:
        return owner.stream_of(*owner.prepared(args, kwargs))

    wrapper: Any = wraps(function)(stream if kind_of(function) is FunctionKind.STREAMED else result)
    vars(wrapper).update({name: getattr(owner, name) for name in CONTROLS})
    return wrapper
