"""Streams for blocking code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from qreward.engine.background import run_in_background
from qreward.engine.portal import BlockingIterator, BlockingTwin, blocking, forwarded, portal
from qreward.errors import ClientClosed, QRewardError
from qreward.results import Result
from qreward.streaming.handles import BatchStream, Stream, StreamHandle

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

T = TypeVar("T")
H = TypeVar("H", bound=StreamHandle[Any])


def _read(items: AsyncIterable[T]) -> Iterator[T]:
    return portal().iterate(items)


class SyncStream(BlockingTwin[Stream]):
    """A chat completion that arrives token by token. ``SyncQRewardClient.stream_chat_completion`` returns it. See :class:`Stream`.

    Example:
        >>> def show(client, messages):
        ...     with client.stream_chat_completion(messages, model="judge-7b") as stream:
        ...         for token in stream:
        ...             print(token, end="")
        ...         return stream.final().usage
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return _read(aiter(self._async))

    chunks = forwarded(Stream.chunks, _read)
    events = forwarded(Stream.events, _read)
    final = blocking(Stream.final)

    @property
    def text(self) -> str:
        """The text received since the last restart, including text that was not read yet."""
        return self._async.text

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """The outcome. The property is None before the end, and if the stream was left early."""
        return self._async.result


class SyncBatchStream(BlockingTwin[BatchStream]):
    """Many chat completions that arrive token by token. See :class:`BatchStream`."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return _read(aiter(self._async))

    events = forwarded(BatchStream.events, _read)
    results = blocking(BatchStream.results)


def leave(pieces: BlockingIterator[Any], aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close a stream that blocking code reads, and wait until its connection is closed."""

    async def close() -> None:
        with contextlib.suppress(QRewardError):  # no caller is left to receive the error
            await aclose()

    with contextlib.suppress(ClientClosed):  # the process is ending, and the portal has closed the stream
        here = portal()
        with contextlib.suppress(Exception):  # the error of the stream concerns only its reader
            pieces.close()
        if here.is_here():
            here.soon(lambda: run_in_background(asyncio.get_running_loop(), close()))
        else:
            here.call(aclose)
