"""How a scorer of any kind is called without blocking the event loop: ``def`` in a worker thread, ``async def`` and actors awaited.

Ray is recognised by what its handles can do (``actor.method.remote(...)`` gives something to await), and never imported.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from qreward.batching.buffer.places import own_copy
from qreward.batching.running import in_thread, unstoppable

Pairs = Sequence[tuple[str, dict[str, Any]]]
"""Completions with the metadata of each."""
Called = Callable[[Pairs], Awaitable[Any]]


def caller_of(scorer: Any) -> Called:
    """An async function that gives completions and metadata to a scorer, and what it returns back.

    Args:
        scorer: called with ``(completions, metadata)``, or with the completions alone if it takes no more: a function, async or not,
            an object with ``__call__``, or anything with ``remote``, such as the method of a Ray actor.

    Raises:
        TypeError: it cannot be called so; a class or a generator function among it.
    """
    remote = getattr(scorer, "remote", None)
    if callable(remote) and not isinstance(scorer, type):
        return partial(_remotely, remote)
    if isinstance(scorer, type) or not callable(scorer):
        what = f"the class {scorer.__name__}; give an instance of it" if isinstance(scorer, type) else f"a {type(scorer).__name__}"
        raise TypeError(f"a scorer must be a function (completions, metadata) -> rewards, not {what}")
    looks = (scorer, type(scorer).__call__)
    if any(map(inspect.isasyncgenfunction, looks)) or any(map(inspect.isgeneratorfunction, looks)):
        raise TypeError("a scorer must return its rewards, not yield them")
    both = _takes_two(scorer)
    if any(map(inspect.iscoroutinefunction, looks)):
        return partial(_awaited, scorer, both)
    return partial(_threaded, scorer, both)


def _takes_two(scorer: Any) -> bool:
    """Whether it takes metadata too. Raises ``TypeError`` if it takes neither two arguments nor one."""
    try:
        signature = inspect.signature(scorer)
    except (TypeError, ValueError):  # of something written in C
        return True
    for count in (2, 1):
        with suppress(TypeError):
            signature.bind(*[None] * count)
            return count == 2
    raise TypeError(f"a scorer is called with (completions, metadata); {scorer!r} takes {signature}")


def _arguments(pairs: Pairs, both: bool) -> tuple[Any, ...]:
    """Lists and metadata of the call's own: what a scorer changes is seen neither by another call nor by the caller."""
    completions = [completion for completion, _ in pairs]
    return (completions, [own_copy(metadata) for _, metadata in pairs]) if both else (completions,)


async def _awaited(scorer: Any, both: bool, pairs: Pairs) -> Any:
    return await scorer(*_arguments(pairs, both))


async def _threaded(scorer: Any, both: bool, pairs: Pairs) -> Any:
    return await in_thread(partial(scorer, *_arguments(pairs, both)))


async def _remotely(remote: Any, pairs: Pairs) -> Any:
    reference = remote(*_arguments(pairs, both=True))
    if not inspect.isawaitable(reference):
        raise TypeError(f"remote() of the scorer gave a {type(reference).__name__}, which cannot be awaited; give an actor's method")
    return await unstoppable(asyncio.ensure_future(reference))


def name_of(scorer: Any) -> str:
    """What a scorer is called in messages."""
    return str(getattr(scorer, "__qualname__", None) or type(scorer).__qualname__)
