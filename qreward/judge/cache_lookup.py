"""Look up cached answers as votes: for one item, and for the items of a batch while they are read."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from qreward.judge.cache import Cache
from qreward.judge.reply import ModelReply
from qreward.judge.requests import Extra
from qreward.judge.sampling import JudgeRequest
from qreward.judge.types import Vote

CHUNK = 64
"""Items per lookup."""

Make = Callable[[Any], Sequence[JudgeRequest]]


class CachedItem(NamedTuple):
    """An item whose requests have been built and looked up in the cache.

    Attributes:
        requests: the requests, or the exception that building them raised.
        votes: the cached votes, in the order of ``requests``; None where there is none. Empty if nothing was looked up.
        extra: the item's fields that are not judged; None if there are none.
    """

    requests: Sequence[JudgeRequest] | Exception
    votes: Sequence[Vote | None]
    extra: Mapping[str, Any] | None


async def recall(cache: Cache, asks: Sequence[JudgeRequest]) -> list[Vote | None]:
    """The cached votes for these requests, in their order; None where there is none."""
    found = await cache.look([(ask.key, ask.judge_model.cached_as) for ask in asks])
    return [_vote(ask, heard) for ask, heard in zip(asks, found, strict=True)]


def _vote(ask: JudgeRequest, heard: ModelReply | None) -> Vote | None:
    if heard is None:
        return None
    try:
        return ask.vote(heard)
    except Exception:  # the answer was parsed before, so the parser or the user's score function has changed
        return None


async def recalled(
    cache: Cache, items: Iterable[Any] | AsyncIterable[Any], read: Callable[[object], CachedItem]
) -> AsyncIterator[CachedItem]:
    """The items of a batch with their cached votes.

    A synchronous input is looked up ``CHUNK`` items at a time, an asynchronous one item by item. An exception of the input is raised after
    the items that precede it.
    """
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        try:
            async for item in iterator:
                for known in await _looked_up(cache, [read(item)]):
                    yield known
        finally:
            if (aclose := getattr(iterator, "aclose", None)) is not None:
                await aclose()
        return
    rest = iter(items)
    try:
        failed: list[Exception] = []
        while not failed and (chunk := [read(item) for item in _until_failure(islice(rest, CHUNK), failed)]):
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
    except Exception as error:  # raised by the caller's iterator; the items before it are still judged
        failed.append(error)


def made(item: object, make: Make, extra: Extra) -> CachedItem:
    """An item with its requests, before the lookup."""
    fields = None
    try:
        fields = extra(item)
        return CachedItem(make(item), (), fields)
    except Exception as error:  # may come from the item's own code; it becomes the item's result
        return CachedItem(error, (), fields)


async def _looked_up(cache: Cache, items: Sequence[CachedItem]) -> list[CachedItem]:
    asks = [ask for each in items if not isinstance(each.requests, Exception) for ask in each.requests]
    votes = iter(await recall(cache, asks))
    return [
        each if isinstance(each.requests, Exception) else each._replace(votes=list(islice(votes, len(each.requests)))) for each in items
    ]
