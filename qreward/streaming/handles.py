"""What one stream and a batch of them have in common for who holds them: nothing is begun before it is wanted, and leaving ends it.

One loop over a stream: takes what comes, shows what is asked for, and leaves the stream when it is left.

One streamed answer, as a caller holds it.

Many streamed answers at once, as a caller holds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from qreward.engine.stream_batch import BatchStreamSink
from qreward.engine.stream_sink import Carrier, Outlet, StreamRestarted, closed
from qreward.errors import ConfigError, QRewardError
from qreward.results import BatchResult, Result

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

S = TypeVar("S", bound=Carrier)


class Held(Generic[S]):
    """A stream that may not have begun.

    Args:
        begin: sends it, and gives what is read. Called once, in the event loop to which it then belongs.
        restarts: an answer may begin anew amid the stream.
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
        """Leave: what is under way is stopped, and its connections are closed when this returns. May be called again."""
        self._closed = True
        source = self._source
        if source is None:
            return
        if asyncio.get_running_loop() is source.shell.loop:
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
        return (self._source or self._open()).take()

    async def _ended(self) -> Any:
        """Its end; who gives up waiting for it leaves."""
        try:
            return await self._open().ends()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        source = self._source
        if source is not None and not source.over():
            source.shell.later(source.leave)

    def _refuse_restarts(self, instead: str) -> None:
        if self._restarts:
            raise ConfigError(
                f'with on_interrupt="restart" the text may start over; iterate events(), which reports each restart, or await {instead}'
            )


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


class Stream(Held[Outlet]):
    """A chat completion that comes token by token: what ``QRewardClient.stream_chat_completion`` returns.

    Nothing is sent before it is iterated, entered, or awaited; it then belongs to the running event loop, and is read by one
    task at a time. Leaving it early, by ``break``, by an error, by :meth:`aclose`, by the end of ``async with``, or by letting go of
    it, closes the request upstream at once, and its slot is free for others. If it is read slowly, the server is, too.

    Until the first token a failure is not seen here: the request goes to another endpoint. After it, an error comes as
    :class:`~qreward.errors.StreamInterrupted` when all that had come is read; with ``on_interrupt="restart"`` the answer begins anew
    instead, which :meth:`events` tells of.

    ``async for`` over it gives texts, none of them empty. ``await stream`` waits for the first token and returns the stream.

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
        return Reader(self, _text)

    def chunks(self) -> AsyncIterator[ChatCompletionChunk]:
        """All chunks as openai's objects, those without text included: tool calls, logprobs, usage.

        Raises:
            ConfigError: the stream may begin anew, which chunks do not tell: see :meth:`events`.
        """
        self._refuse_restarts("final()")
        return Reader(self, lambda chunk: cast("ChatCompletionChunk", chunk.build()))

    def events(self) -> AsyncIterator[str | StreamRestarted]:
        """Texts, and with ``on_interrupt="restart"`` a ``StreamRestarted`` where all texts before it are void."""
        return Reader(self, _text_or_restart)

    async def final(self) -> ChatCompletion:
        """The whole answer, with its usage if the server told it. What was not read yet is not given out any more.

        Raises:
            RequestError: and others, as :meth:`QRewardClient.chat_completion`; ``StreamInterrupted`` as well after the first token,
                and if the stream was left early.
        """
        result: Result[ChatCompletion] = await self._ended()
        return result.value

    # what is known of it

    @property
    def text(self) -> str:
        """What has come so far, read or not; since the last restart."""
        return "" if self._source is None else self._source.text()

    @property
    def result(self) -> Result[ChatCompletion] | None:
        """How it ended, with endpoint, attempts and times; None while it has not, and if it was left early."""
        return None if self._source is None else self._source.result

    # coming and going

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


class BatchStream(Held[BatchStreamSink]):
    """Chat completions that come token by token, all at once: what ``QRewardClient.batch_stream_chat_completion`` returns.

    ``async for index, token in stream`` gives the texts of all streams in the order in which they arrive; ``index`` is the place of
    a conversation in the input. What is said of :class:`Stream` on beginning, leaving, and slow readers holds here for all of them.

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
        return Reader(self, self._text)

    def events(self) -> AsyncIterator[tuple[int, str | StreamRestarted | Result[ChatCompletion]]]:
        """Texts, and at the end of each stream its ``Result``; with ``on_interrupt="restart"`` also a ``StreamRestarted`` where all
        earlier texts of that stream are void."""
        return Reader(self, self._event)

    async def results(self) -> BatchResult[ChatCompletion]:
        """All results in the order of the input, when the last stream has ended. What was not read yet is not given out any more.

        Raises:
            BatchInterrupted: the input raised; it holds the results that are done.
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
        """The event, after the caller was told of the error in it, if there is one."""
        what = event[1]
        if self._on_stream_error is not None and isinstance(what, Result) and what.error is not None:
            self._on_stream_error(event[0], what.error)
        return event

    def __repr__(self) -> str:
        merge = self._source
        return f"<BatchStream {'not begun' if merge is None else 'done' if merge.over() else 'under way'}>"
