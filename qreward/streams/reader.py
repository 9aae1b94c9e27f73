"""One loop over a stream: takes what comes, shows what is asked for, and leaves the stream when it is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Readable(Protocol):
    """What a reader needs of a stream."""

    def _take(self) -> Awaitable[Any]:
        """The next item, None at the end."""

    def _drop(self) -> None:
        """Leave, soon; from any thread, and in the midst of anything."""

    async def aclose(self) -> None: ...


class Reader(AsyncIterator[T_co], Generic[T_co]):
    """An iterator over a stream; leaving it early closes the stream.

    It is an object of its own, not the stream, so that it goes when its loop is left, by ``break`` or by an error, although the
    stream is still held.

    Args:
        show: makes an item into what is given out, or into None, which is left out.
    """

    __slots__ = ("_show", "_stream")

    def __init__(self, stream: Readable, show: Callable[[Any], T_co | None]) -> None:
        self._stream = stream
        self._show = show

    def __aiter__(self) -> Reader[T_co]:
        return self

    async def __anext__(self) -> T_co:
        try:
            while (item := await self._stream._take()) is not None:
                shown = self._show(item)
                if shown is not None:
                    return shown
        except BaseException:  # cancelled, broken off, or thrown away: nobody will read on
            self._stream._drop()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __del__(self) -> None:
        self._stream._drop()
