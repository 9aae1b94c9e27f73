"""Streams for code that does not await: views through the portal, in whose thread the streams are read, a little ahead of their reader."""

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
    """A chat completion that comes token by token: what ``SyncQRewardClient.stream_chat_completion`` returns. See :class:`Stream`.

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
        """All chunks as openai's objects. See :meth:`Stream.chunks`."""
        return _read(self._stream.chunks())

    def events(self) -> Iterator[str | StreamRestarted]:
        """Texts and restarts. See :meth:`Stream.events`."""
        return _read(self._stream.events())

    def final(self) -> ChatCompletion:
        """The whole answer. See :meth:`Stream.final`."""
        return portal().call(self._stream.final)

    @property
    def text(self) -> str:
        """What has come so far, since the last restart."""
        return self._stream.text

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """How it ended; None while it has not, and if it was left early."""
        return self._stream.result

    def close(self) -> None:
        """Leave: the connection is closed when this returns. May be called again."""
        with contextlib.suppress(ClientClosed):  # the process ends, and the portal closed it
            portal().call(self._stream.aclose)

    def __enter__(self) -> SyncStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._stream).replace("<", "<Sync", 1)


class SyncBatchStream:
    """Chat completions that come token by token, all at once. See :class:`BatchStream`."""

    __slots__ = ("_stream",)

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return _read(aiter(self._stream))

    def events(self) -> Iterator[tuple[int, str | StreamRestarted | Result[ChatCompletion]]]:
        """Texts, results and restarts. See :meth:`BatchStream.events`."""
        return _read(self._stream.events())

    def results(self) -> BatchResult[ChatCompletion]:
        """All results in the order of the input. See :meth:`BatchStream.results`."""
        return portal().call(self._stream.results)

    def close(self) -> None:
        """Leave: what is under way is stopped, the input is closed. May be called again."""
        with contextlib.suppress(ClientClosed):  # the process ends, and the portal closed it
            portal().call(self._stream.aclose)

    def __enter__(self) -> SyncBatchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._stream).replace("<", "<Sync", 1)


def _read(items: AsyncIterable[T]) -> Iterator[T]:
    return portal().iterate(items)
