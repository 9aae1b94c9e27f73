"""The objects through which callers read streamed responses: ``Stream`` for one response, ``BatchStream`` for many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from qreward.engine.stream_batch import BatchStreamSink
from qreward.engine.stream_sink import SingleStreamSink, StreamRestarted, StreamWaiter, closed
from qreward.errors import ConfigError, QRewardError
from qreward.results import BatchResult, Result

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

S = TypeVar("S", bound=StreamWaiter)


class StreamHandle(Generic[S]):
    """A stream that may not have started.

    Args:
        begin: function that starts the stream and returns its waiter. It is called once. The stream then belongs to the event loop in which
            ``begin`` was called.
        restarts: True if a response may start over after part of it was delivered.
    """

    __slots__ = ("_begin", "_closed", "_restarts", "_source")

    def __init__(self, begin: Callable[[], S], *, restarts: bool) -> None:
        self._begin = begin
        self._restarts = restarts
        self._source: S | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop all requests and wait until their connections are closed. This method can be called repeatedly."""
        self._closed = True
        source = self._source
        if source is None:
            return
        if asyncio.get_running_loop() is source.driver.loop:
            source.leave()
            await source.idle()
        else:
            self._drop()

    def __del__(self) -> None:
        self._drop()

    def _open(self) -> S:
        if self._source is None:
            if self._closed:
                raise closed("")
            self._source = self._begin()
        return self._source

    def _take(self) -> Coroutine[Any, Any, Any]:
        """Return the next item, or None at the end."""
        return (self._source or self._open()).take()

    async def _ended(self) -> Any:
        """Wait for the end of the stream and return the result. If the wait is cancelled or fails, the stream is left."""
        try:
            return await self._open().ends()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Leave the stream soon. This method may be called from any thread and at any point, such as during garbage collection."""
        source = self._source
        if source is not None and not source.over():
            source.driver.later(source.leave)

    def _refuse_restarts(self, instead: str) -> None:
        if self._restarts:
            raise ConfigError(
                f'with on_interrupt="restart" the text may start over; iterate events(), which reports each restart, or await {instead}'
            )


T_co = TypeVar("T_co", covariant=True)


class StreamReader(AsyncIterator[T_co], Generic[T_co]):
    """An iterator over a stream. Leaving the iterator early closes the stream."""

    __slots__ = ("_show", "_stream")

    def __init__(self, stream: StreamHandle[Any], show: Callable[[Any], T_co | None]) -> None:
        self._stream = stream
        self._show = show

    def __aiter__(self) -> StreamReader[T_co]:
        return self

    async def __anext__(self) -> T_co:
        try:
            while (item := await self._stream._take()) is not None:
                shown = self._show(item)
                if shown is not None:
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


class Stream(StreamHandle[SingleStreamSink]):
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

    __slots__ = ()

    # reading

    def __aiter__(self) -> AsyncIterator[str]:
        self._refuse_restarts("final()")
        return StreamReader(self, _text)

    def chunks(self) -> AsyncIterator[ChatCompletionChunk]:
        """Iterate over all chunks as openai's objects. Chunks without text, such as tool calls, logprobs and usage, are included.

        Raises:
            ConfigError: ``on_interrupt`` is ``"restart"``. Chunks cannot report a restart; use :meth:`events`.
        """
        self._refuse_restarts("final()")
        return StreamReader(self, lambda chunk: cast("ChatCompletionChunk", chunk.build()))

    def events(self) -> AsyncIterator[str | StreamRestarted]:
        """Iterate over texts. With ``on_interrupt="restart"``, a ``StreamRestarted`` means that all earlier texts must be discarded."""
        return StreamReader(self, _text_or_restart)

    async def final(self) -> ChatCompletion:
        """Wait for the end and return the whole response, with token usage if the server reported it. Later reads yield no more text.

        Raises:
            RequestError, Rejected: as in :meth:`QRewardClient.chat_completion`.
            StreamInterrupted: the stream broke after the first token, or was left early.
        """
        result: Result[ChatCompletion] = await self._ended()
        return result.value

    # state

    @property
    def text(self) -> str:
        """The text received since the last restart, including text that was not read yet."""
        return "" if self._source is None else self._source.text()

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """The outcome, with endpoint, attempts and times. The property is None before the end, and if the stream was left early."""
        return None if self._source is None else self._source.result

    # starting

    def __await__(self) -> Generator[Any, Any, Stream]:
        return self._begun().__await__()

    async def _begun(self) -> Stream:
        outlet = self._open()
        try:
            await outlet.begins()
        except BaseException:
            self._drop()
            raise
        if outlet.result is not None and outlet.result.error is not None and not outlet.begun:
            raise outlet.result.error
        return self

    def __repr__(self) -> str:
        outlet = self._source
        state = "not begun" if outlet is None else repr(outlet.result) if outlet.result else "left" if outlet.left else "under way"
        return f"<Stream {state}>"


def _text(chunk: Any) -> str | None:
    return chunk.text or None


def _text_or_restart(item: Any) -> str | StreamRestarted | None:
    return item if isinstance(item, StreamRestarted) else item.text or None


OnStreamError = Callable[[int, QRewardError], object] | None


class BatchStream(StreamHandle[BatchStreamSink]):
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

    __slots__ = ("_on_stream_error",)

    def __init__(self, begin: Callable[[], BatchStreamSink], on_stream_error: OnStreamError, *, restarts: bool) -> None:
        super().__init__(begin, restarts=restarts)
        self._on_stream_error = on_stream_error

    # reading

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
        merge = self._open()
        merge.hush()
        if not merge.is_read():
            async for _ in self.events():
                pass
        batch: BatchResult[ChatCompletion] = await self._ended()
        return batch

    def _text(self, event: tuple[int, Any]) -> tuple[int, str] | None:
        if type(event[1]) is str:
            return event
        self._event(event)
        return None

    def _event(self, event: tuple[int, Any]) -> tuple[int, Any]:
        """Return the event. If the event is a failed result, call ``on_stream_error`` first."""
        what = event[1]
        if self._on_stream_error is not None and isinstance(what, Result) and what.error is not None:
            self._on_stream_error(event[0], what.error)
        return event

    def __repr__(self) -> str:
        merge = self._source
        return f"<BatchStream {'not begun' if merge is None else 'done' if merge.over() else 'under way'}>"
