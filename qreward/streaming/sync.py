"""Streams for blocking code. The portal's event loop reads them in its thread, a bounded number of items ahead of the caller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from qreward.engine.portal import portal
from qreward.engine.stream_sink import StreamRestarted
from qreward.errors import ClientClosed
from qreward.results import BatchResult, Result
from qreward.streaming.handles import BatchStream, Stream

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

T = TypeVar("T")


class SyncStream:
    """A chat completion that arrives token by token. ``SyncQRewardClient.stream_chat_completion`` returns it. See :class:`Stream`.

    Example:
        >>> def show(client, messages):
        ...     with client.stream_chat_completion(messages, model="judge-7b") as stream:
        ...         for token in stream:
        ...             print(token, end="")
        ...         return stream.final().usage
    """

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return _read(aiter(self._stream))

    def chunks(self) -> Iterator[ChatCompletionChunk]:
        """Iterate over all chunks as openai's objects. See :meth:`Stream.chunks`."""
        return _read(self._stream.chunks())

    def events(self) -> Iterator[str | StreamRestarted]:
        """Iterate over texts and restarts. See :meth:`Stream.events`."""
        return _read(self._stream.events())

    def final(self) -> ChatCompletion:
        """Return the whole response. See :meth:`Stream.final`."""
        return portal().call(self._stream.final)

    @property
    def text(self) -> str:
        """The text received so far, since the last restart."""
        return self._stream.text

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """The outcome. None before the end, and if the stream was left early."""
        return self._stream.result

    def close(self) -> None:
        """Stop the request. Its connection is closed when this returns. It can be called repeatedly."""
        with contextlib.suppress(ClientClosed):  # the process is ending, and the portal has closed the stream
            portal().call(self._stream.aclose)

    def __enter__(self) -> SyncStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._stream).replace("<", "<Sync", 1)


class SyncBatchStream:
    """Many chat completions that arrive token by token. See :class:`BatchStream`."""

    __slots__ = ("_stream",)

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return _read(aiter(self._stream))

    def events(self) -> Iterator[tuple[int, str | StreamRestarted | Result[ChatCompletion]]]:
        """Iterate over texts, results and restarts. See :meth:`BatchStream.events`."""
        return _read(self._stream.events())

    def results(self) -> BatchResult[ChatCompletion]:
        """Return all results in input order. See :meth:`BatchStream.results`."""
        return portal().call(self._stream.results)

    def close(self) -> None:
        """Stop all requests and close the input. It can be called repeatedly."""
        with contextlib.suppress(ClientClosed):  # the process is ending, and the portal has closed the stream
            portal().call(self._stream.aclose)

    def __enter__(self) -> SyncBatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._stream).replace("<", "<Sync", 1)


def _read(items: AsyncIterable[T]) -> Iterator[T]:
    return portal().iterate(items)
