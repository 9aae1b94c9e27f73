"""The types of ``@batch`` for type checkers: parameters of type ``list[T]`` become parameters of type ``T``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, overload

from qreward.batching.settings import Options, QueueStats

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
S = TypeVar("S")
R = TypeVar("R")
S_contra = TypeVar("S_contra", contravariant=True)
Made_co = TypeVar("Made_co", covariant=True)
P = ParamSpec("P")

Listed: TypeAlias = Sequence[R | Exception]
"""One result for each item. An exception in the list is raised for the caller of its item."""
Results: TypeAlias = Awaitable[Listed[R]] | Listed[R]
Yields: TypeAlias = AsyncIterator[Listed[R]]
One: TypeAlias = Coroutine[Any, Any, R]
Stream: TypeAlias = AsyncGenerator[R, None]


class Controls(Protocol):
    """The attributes of a batched function. If the function is a method, these attributes apply to the queues of all instances."""

    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[..., Any]: ...

    @staticmethod
    def set_max_batch_size(size: int, /) -> None: ...
    @staticmethod
    def set_batch_wait_timeout_s(seconds: float, /) -> None: ...
    @staticmethod
    def set_max_concurrent_batches(batches: int, /) -> None: ...
    @staticmethod
    def change(**settings: Unpack[Options]) -> None: ...
    @staticmethod
    def stats() -> QueueStats: ...
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
