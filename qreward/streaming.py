"""The objects through which callers read streamed responses: one stream, a batch of streams, and both for blocking code.

A handle is not the waiter of its stream: when the caller drops the last reference to the handle, the stream is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from qreward.engine.background import run_in_background
from qreward.engine.portal import BlockingTwin, blocking, forwarded, portal
from qreward.engine.streams import AnyStreamWaiter, BatchStreamWaiter, StreamRestarted, StreamWaiter, closed
from qreward.errors import ClientClosed, ConfigError, QRewardError
from qreward.results import BatchResult, Result

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

W = TypeVar("W", bound=AnyStreamWaiter)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class StreamHandle(Generic[W]):
    """A stream that may not have started. ``begin`` starts it in the running event loop and returns its waiter."""

    def __init__(self, begin: Callable[[], W], *, restarts: bool) -> None:
        self._begin, self._restarts = begin, restarts
        self._waiter: W | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop all requests and wait until their connections are closed. This method can be called repeatedly."""
        self._closed = True
        waiter = self._waiter
        if waiter is not None and asyncio.get_running_loop() is waiter.driver.loop:
            waiter.leave()
            await waiter.until(waiter.idle)
        else:
            self._drop()

    def __del__(self) -> None:
        self._drop()

    def _open(self) -> W:
        if self._waiter is None:
            if self._closed:
                raise closed("")
            self._waiter = self._begin()
        return self._waiter

    async def _until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds. If the wait is cancelled or fails, the stream is left."""
        try:
            await self._open().until(condition)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Leave the stream soon. This method may be called from any thread and at any point, such as during garbage collection."""
        waiter = self._waiter
        if waiter is not None and not waiter.over():
            waiter.driver.later(waiter.leave)

    def _refuse_restarts(self, instead: str) -> None:
        if self._restarts:
            raise ConfigError(
                f'with on_interrupt="restart" the text may start over; iterate events(), which reports each restart, or await {instead}'
            )


class StreamReader(AsyncIterator[T_co], Generic[T_co]):
    """An iterator over what ``show`` returns for each event, except None. Leaving the iterator early closes the stream."""

    def __init__(self, stream: StreamHandle[Any], show: Callable[[Any], T_co | None]) -> None:
        self._stream, self._show = stream, show

    async def __anext__(self) -> T_co:
        try:
            waiter = self._stream._open()
            while (event := await waiter.take()) is not None:
                if (shown := self._show(event)) is not None:
                    return shown
        except BaseException:  # cancelled, interrupted or discarded: no caller will read on
            self._stream._drop()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __del__(self) -> None:
        self._stream._drop()


class Stream(StreamHandle[StreamWaiter]):
    """A chat completion that arrives token by token. ``QRewardClient.stream_chat_completion`` returns it.

    Nothing is sent before the stream is iterated, entered or awaited. From then on, the stream belongs to the running event loop, and only
    one task at a time may read it. Leaving a stream early closes the request immediately: by ``break``, by an error, by :meth:`aclose`, at
    the end of ``async with``, or when its last reference is dropped. A slow reader slows the server down.

    Until the first token, a failed request is retried, at another endpoint if possible. After the first token, an error becomes
    :class:`~qreward.errors.StreamInterrupted`, which is raised once all received text has been read. With ``on_interrupt="restart"``, the
    answer starts over instead, and :meth:`events` reports each restart.

    ``async for`` over the stream yields non-empty texts. ``await stream`` waits for the first token and returns the stream.

    Example:
        >>> async def show(client, messages):
        ...     stream = client.stream_chat_completion(messages, model="judge-7b")
        ...     async for token in stream:
        ...         print(token, end="")
        ...     return (await stream.final()).usage
    """

    def __aiter__(self) -> AsyncIterator[str]:
        self._refuse_restarts("final()")
        return StreamReader(self, lambda chunk: chunk.text or None)

    def chunks(self) -> AsyncIterator[ChatCompletionChunk]:
        """Iterate over all chunks as openai's objects. Chunks without text, such as tool calls, logprobs and usage, are included.

        Raises:
            ConfigError: ``on_interrupt`` is ``"restart"``. Chunks cannot report a restart; use :meth:`events`.
        """
        self._refuse_restarts("final()")
        return StreamReader(self, lambda chunk: cast("ChatCompletionChunk", chunk.build()))

    def events(self) -> AsyncIterator[str | StreamRestarted]:
        """Iterate over texts. With ``on_interrupt="restart"``, a ``StreamRestarted`` means that all earlier texts must be discarded."""
        return StreamReader(self, lambda event: event if isinstance(event, StreamRestarted) else event.text or None)

    async def final(self) -> ChatCompletion:
        """Wait for the end and return the whole response, with token usage if the server reported it. Later reads yield no more text.

        Raises:
            RequestError, Rejected: as in :meth:`QRewardClient.chat_completion`.
            StreamInterrupted: the stream broke after the first token, or was left early.
        """
        waiter = self._open()
        waiter.only_results()
        await self._until(lambda: waiter.result or waiter.left)
        if waiter.result is None:
            raise closed(waiter.text())
        completion: ChatCompletion = waiter.result.value
        return completion

    @property
    def text(self) -> str:
        """The text received since the last restart, including text that was not read yet."""
        return "" if self._waiter is None else self._waiter.text()

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """The outcome, with endpoint, attempts and times. The property is None before the end, and if the stream was left early."""
        return None if self._waiter is None else self._waiter.result

    def __await__(self) -> Generator[Any, Any, Stream]:
        return self._begun().__await__()

    async def _begun(self) -> Stream:
        waiter = self._open()
        await self._until(lambda: waiter.stream or waiter.left or waiter.result)
        if waiter.result is not None and waiter.result.error is not None and waiter.stream is None:
            raise waiter.result.error
        return self

    def __repr__(self) -> str:
        waiter = self._waiter
        state = "not begun" if waiter is None else repr(waiter.result) if waiter.result else "left" if waiter.left else "under way"
        return f"<Stream {state}>"


OnStreamError = Callable[[int, QRewardError], object] | None


class BatchStream(StreamHandle[BatchStreamWaiter]):
    """Many chat completions that arrive token by token. ``QRewardClient.batch_stream_chat_completion`` returns it.

    ``async for index, token in stream`` yields the texts of all streams in the order in which they arrive. ``index`` is the position of
    the conversation in the input. Starting, leaving and slow reading work as for :class:`Stream`, for all streams together.

    Example:
        >>> async def show(client, conversations):
        ...     stream = client.batch_stream_chat_completion(conversations, model="judge-7b")
        ...     async for index, token in stream:
        ...         print(index, token)
        ...     return (await stream.results()).errors
    """

    def __init__(self, begin: Callable[[], BatchStreamWaiter], on_stream_error: OnStreamError, *, restarts: bool) -> None:
        super().__init__(begin, restarts=restarts)
        self._on_stream_error = on_stream_error

    def __aiter__(self) -> AsyncIterator[tuple[int, str]]:
        self._refuse_restarts("results()")
        return StreamReader(self, self._text)

    def events(self) -> AsyncIterator[tuple[int, str | StreamRestarted | Result[ChatCompletion]]]:
        """Iterate over the texts of all streams. At the end of each stream, its ``Result`` follows.

        With ``on_interrupt="restart"``, a ``StreamRestarted`` means that all earlier texts of this stream must be discarded.
        """
        return StreamReader(self, self._event)

    async def results(self) -> BatchResult[ChatCompletion]:
        """Wait for the last stream to end and return all results in input order. Later reads yield no more text.

        Raises:
            BatchInterrupted: the input raised an exception. ``BatchInterrupted`` holds the finished results.
            StreamInterrupted: the batch was left early.
        """
        waiter = self._open()
        if waiter.only_results():
            async for _ in self.events():
                pass
        await self._until(waiter.over)
        return waiter.results()

    def _text(self, event: tuple[int, Any]) -> tuple[int, str] | None:
        self._event(event)
        return event if type(event[1]) is str else None

    def _event(self, event: tuple[int, Any]) -> tuple[int, Any]:
        """Return the event. If the event is a failed result, call ``on_stream_error`` first."""
        index, what = event
        if self._on_stream_error is not None and isinstance(what, Result) and what.error is not None:
            self._on_stream_error(index, what.error)
        return event

    def __repr__(self) -> str:
        waiter = self._waiter
        return f"<BatchStream {'not begun' if waiter is None else 'done' if waiter.over() else 'under way'}>"


# for blocking code


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

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return _read(aiter(self._async))

    events = forwarded(BatchStream.events, _read)
    results = blocking(BatchStream.results)


def leave(close_reader: Callable[[], object], aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close a stream that blocking code reads, and wait until its connection is closed, except in the portal's own thread."""

    async def close() -> None:
        with contextlib.suppress(QRewardError):  # no caller is left to receive the error
            await aclose()

    with contextlib.suppress(ClientClosed):  # the process is ending, and the portal has closed the stream
        here = portal()
        with contextlib.suppress(Exception):  # the error of the stream concerns only its reader
            close_reader()
        if here.is_here():
            here.soon(lambda: run_in_background(asyncio.get_running_loop(), close()))
        else:
            here.call(aclose)
