"""@batch: a function of lists becomes a function of single items, whose calls are merged.

Only the wrapper. Queues, arguments and controls are the registry's, so that a batched function can be pickled by value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Unpack, overload

from qreward.batching.faces import A, B, BatchDecorator, Batched, BatchedMethod, C, One, R, Results, S, Stream, Yields
from qreward.batching.registry import CONTROLS, Registry
from qreward.batching.settings import Options, Settings, checked
from qreward.batching.work import Kind, kind_of


@overload
def batch(function: None = None, /, **settings: Unpack[Options]) -> BatchDecorator: ...
@overload
def batch(function: Callable[[list[A]], Yields[R]], /) -> Batched[[A], Stream[R]]: ...
@overload
def batch(function: Callable[[list[A], list[B]], Yields[R]], /) -> Batched[[A, B], Stream[R]]: ...
@overload
def batch(function: Callable[[list[A], list[B], list[C]], Yields[R]], /) -> Batched[[A, B, C], Stream[R]]: ...
@overload
def batch(function: Callable[[S, list[A]], Yields[R]], /) -> BatchedMethod[S, [A], Stream[R]]: ...
@overload
def batch(function: Callable[[S, list[A], list[B]], Yields[R]], /) -> BatchedMethod[S, [A, B], Stream[R]]: ...
@overload
def batch(function: Callable[..., Yields[R]], /) -> Batched[..., Stream[R]]: ...
@overload
def batch(function: Callable[[list[A]], Results[R]], /) -> Batched[[A], One[R]]: ...
@overload
def batch(function: Callable[[list[A], list[B]], Results[R]], /) -> Batched[[A, B], One[R]]: ...
@overload
def batch(function: Callable[[list[A], list[B], list[C]], Results[R]], /) -> Batched[[A, B, C], One[R]]: ...
@overload
def batch(function: Callable[[S, list[A]], Results[R]], /) -> BatchedMethod[S, [A], One[R]]: ...
@overload
def batch(function: Callable[[S, list[A], list[B]], Results[R]], /) -> BatchedMethod[S, [A, B], One[R]]: ...
@overload
def batch(function: Callable[..., Results[R]], /) -> Batched[..., One[R]]: ...
def batch(function: Any = None, /, **settings: Unpack[Options]) -> Any:
    """Let callers pass one item and get one result, and call the function with lists of what many callers passed.

    The function takes a list for each parameter that a caller gives, and returns a list of the same length. A parameter that is left
    out has its default; callers that give it and callers that do not share no batch. The function may be an ``async def``; an async
    generator of lists, which gives each caller an async generator; or, with ``@batch(...)``, a plain ``def``, which is run in a
    thread. A method has a queue for each instance. An exception *in* the list is raised for that caller alone; one that the
    function raises is given to each caller as an exception of its own.

    A batch goes as soon as a slot is free and takes what has come until then (see :class:`BatchQueue`). Settings are those of
    :class:`~qreward.batching.Settings`, by name, and can be changed later: ``score.set_max_batch_size(64)``,
    ``set_batch_wait_timeout_s``, ``set_max_concurrent_batches``, ``change(...)``; ``score.stats()`` says where it stands, and
    ``await score.close()`` ends it.

    Raises:
        TypeError: it is no function, or a plain ``def`` without parentheses; a setting is unknown or of the wrong kind. A call raises
            it if the function has no parameter for a list, or if the arguments do not fit it.
        ConfigError: a setting is out of range (a ``ValueError``).

    Example:
        >>> @batch(max_batch_size=32)
        ... async def score(texts: list[str]) -> list[int]:
        ...     return [len(text) for text in texts]
        >>> async def main():
        ...     return await asyncio.gather(score("one"), score("three"))
        >>> asyncio.run(main())
        [3, 5]
    """
    its = checked(settings)
    if function is None:
        return lambda decorated: _batched(decorated, its)
    if not isinstance(function, staticmethod | classmethod) and kind_of(function) is Kind.THREADED:
        raise TypeError("Functions decorated with @batch must be 'async def'; write @batch() to run a plain function in a thread")
    return _batched(function, its)


def _batched(function: Any, settings: Settings) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_batched(function.__func__, settings))
    kind = kind_of(function)
    registry = Registry(function, settings)

    async def answer(*args: Any, **kwargs: Any) -> Any:
        return await registry.answer(args, kwargs)

    def answers(*args: Any, **kwargs: Any) -> Any:
        return registry.answers(args, kwargs)

    wrapper: Any = wraps(function)(answers if kind is Kind.STREAMED else answer)
    vars(wrapper).update({name: getattr(registry, name) for name in CONTROLS})
    return wrapper
