"""``client.chat.completions.create``: the interface of the openai SDK, for code written for the SDK's clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast, overload

from qreward.codecs.chat_stream import tells_usage_only
from qreward.engine.portal import BlockingIterator, portal
from qreward.streaming import Stream, StreamReader, leave

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: F401 - the base classes name it in strings

C = TypeVar("C", "Completions", "SyncCompletions")


class ChunkStream(StreamReader["ChatCompletionChunk"]):
    """A streamed chat completion. ``async for`` reads its chunks. ``async with`` closes the stream at the end of the block.

    The object is returned once the first token was received.
    """

    def __init__(self, stream: Stream, usage_wanted: bool) -> None:
        super().__init__(stream, lambda chunk: chunk.build() if usage_wanted or not tells_usage_only(chunk) else None)

    async def close(self) -> None:
        """Close the stream and wait until its connection is closed. Further calls do nothing."""
        await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SyncChunkStream(BlockingIterator["ChatCompletionChunk"]):
    """A streamed chat completion in blocking code. ``for`` reads its chunks. ``with`` closes the stream at the end of the block."""

    def __init__(self, chunks: ChunkStream) -> None:
        super().__init__(portal(), chunks)
        self._chunks = chunks

    def close(self) -> None:
        """Close the stream and wait until its connection is closed. Further calls do nothing.

        If the function ``on_result`` of a batch calls this method, the method does not wait: the connection is closed soon after the call.
        """
        leave(super().close, self._chunks.aclose)


class Completions:
    """The object ``client.chat.completions`` of a :class:`QRewardClient`. Its method ``create`` requests a chat completion."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @overload
    async def create(
        self, *, messages: Iterable[Any], model: str, stream: Literal[False] | None = False, **params: Any
    ) -> ChatCompletion: ...
    @overload
    async def create(self, *, messages: Iterable[Any], model: str, stream: Literal[True], **params: Any) -> ChunkStream: ...
    @overload
    async def create(
        self, *, messages: Iterable[Any], model: str, stream: bool | None = False, **params: Any
    ) -> ChatCompletion | ChunkStream: ...
    async def create(
        self, *, messages: Iterable[Any], model: str, stream: bool | None = False, **params: Any
    ) -> ChatCompletion | ChunkStream:
        """Request a chat completion, like the method of this name in the openai SDK.

        Args:
            messages, model: as in :meth:`QRewardClient.chat_completion`.
            stream: True returns the response in chunks. The call then ends when the first token is received.
            params: options as in :meth:`QRewardClient.chat_completion`. Other parameters go into the JSON body. Parameters set to the SDK's
                ``NOT_GIVEN`` or ``omit`` are left out. If ``timeout`` is an ``httpx.Timeout``, its read timeout is used.

        Returns:
            The openai package's ``ChatCompletion``, or a :class:`ChunkStream` if ``stream`` is True.

        Raises:
            RequestError, Rejected, NoEndpoint, ConfigError: as in :meth:`QRewardClient.chat_completion`. The exceptions of the SDK are not
                raised.

        Example:
            >>> async def ask(client, messages):
            ...     answer = await client.chat.completions.create(model="judge-7b", messages=messages, temperature=0)
            ...     return answer.choices[0].message.content
        """
        given = {name: value for name, value in params.items() if (value or name != "extra_query") and not _is_left_out(value)}
        if "timeout" in given:
            given["timeout"] = getattr(given["timeout"], "read", given["timeout"])  # an httpx.Timeout
        if not stream:
            return cast("ChatCompletion", await self._client.chat_completion(messages, model, **given))
        usage_wanted = "stream_options" in given or "stream_options" in (given.get("extra_body") or {})
        return ChunkStream(await self._client.stream_chat_completion(messages, model, **given), usage_wanted)


class SyncCompletions:
    """The object ``client.chat.completions`` of the blocking client."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    @overload
    def create(self, *, messages: Iterable[Any], model: str, stream: Literal[False] | None = False, **params: Any) -> ChatCompletion: ...
    @overload
    def create(self, *, messages: Iterable[Any], model: str, stream: Literal[True], **params: Any) -> SyncChunkStream: ...
    @overload
    def create(
        self, *, messages: Iterable[Any], model: str, stream: bool | None = False, **params: Any
    ) -> ChatCompletion | SyncChunkStream: ...
    def create(self, *, stream: bool | None = False, **params: Any) -> ChatCompletion | SyncChunkStream:
        """Request a chat completion. See :meth:`Completions.create`."""
        answer: Any = portal().call(cast("Callable[..., Any]", self._completions.create), stream=stream, **params)
        return SyncChunkStream(answer) if stream else cast("ChatCompletion", answer)


class ChatNamespace(Generic[C]):
    """The object ``client.chat``, which holds ``completions``."""

    def __init__(self, completions: C) -> None:
        self.completions: C = completions


def _is_left_out(value: object) -> bool:  # one of the SDK's markers; None is not one of them
    kind = type(value)
    return kind.__name__ in ("NotGiven", "Omit") and kind.__module__.partition(".")[0] == "openai"
