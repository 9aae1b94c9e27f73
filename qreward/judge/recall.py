"""What is kept of earlier runs, as votes: for one item, and for a batch as it is read."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from qreward.judge.cache import Cache
from qreward.judge.hearing import Heard
from qreward.judge.polls import Ask
from qreward.judge.words import Vote

CHUNK = 64
"""Items that are looked up together."""

Make = Callable[[Any], Sequence[Ask]]


class Known(NamedTuple):
    """An item whose questions were made, and looked up, before it is read; or why they could not be made."""

    asks: Sequence[Ask] | Exception
    votes: Sequence[Vote | None]


async def recall(cache: Cache, asks: Sequence[Ask]) -> list[Vote | None]:
    """The votes that are kept for these questions."""
    found = await cache.look([(ask.key, ask.juror.cached_as) for ask in asks])
    return [_vote(ask, heard) for ask, heard in zip(asks, found, strict=True)]


def _vote(ask: Ask, heard: Heard | None) -> Vote | None:
    if heard is None:
        return None
    try:
        return ask.ballot().vote(heard)
    except Exception:  # it was read once: the user's own score function has changed
        return None


async def recalled(cache: Cache, items: Iterable[Any] | AsyncIterable[Any], make: Make) -> AsyncIterator[Known]:
    """The items of a batch, looked up; those of an iterator that blocks several at a time. What the input raises comes after them."""
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        try:
            async for item in iterator:
                for known in await _looked_up(cache, [made(item, make)]):
                    yield known
        finally:
            if (aclose := getattr(iterator, "aclose", None)) is not None:
                await aclose()
        return
    rest = iter(items)
    try:
        failed: list[Exception] = []
        while not failed and (chunk := [made(item, make) for item in _until_failure(islice(rest, CHUNK), failed)]):
            for known in await _looked_up(cache, chunk):
                yield known
        if failed:
            raise failed[0]
    finally:
        if (close := getattr(rest, "close", None)) is not None:
            close()


def _until_failure(items: Iterable[Any], failed: list[Exception]) -> Iterable[Any]:
    try:
        yield from items
    except Exception as error:  # the caller's code; what it gave before is judged
        failed.append(error)


def made(item: object, make: Make) -> Sequence[Ask] | Exception:
    """The questions about an item, or why there are none."""
    try:
        return make(item)
    except Exception as error:  # among others of an item's own code: it is the item's result
        return error


async def _looked_up(cache: Cache, made: Sequence[Sequence[Ask] | Exception]) -> list[Known]:
    asks = [ask for each in made if not isinstance(each, Exception) for ask in each]
    votes = iter(await recall(cache, asks))
    return [Known(each, () if isinstance(each, Exception) else list(islice(votes, len(each)))) for each in made]
