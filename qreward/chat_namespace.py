"""``client.chat.completions.create``: a client that looks like the openai SDK's, for code that wants no more than that.

Answers are openai's types, errors are ours. Knows the calls of the client; knows nothing of the SDK but its types.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from qreward.codecs.chat_stream import tells_usage_only
from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.streaming.closing import leave
from qreward.streaming.handles import Reader, Stream

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    from qreward.client import QRewardClient


class ChunkStream:
    """A chat completion chunk by chunk, whose first token is there. For ``async for`` and ``async with``."""

    def __init__(self, stream: Stream, told_usage: bool) -> None:
        self._stream = stream
        self._chunks: AsyncIterator[ChatCompletionChunk] = Reader(
            stream, lambda chunk: chunk.build() if told_usage or not tells_usage_only(chunk) else None
        )

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self._chunks

    async def __anext__(self) -> ChatCompletionChunk:
        return await anext(self._chunks)

    async def close(self) -> None:
        """Leave: the connection is closed when this returns. May be called again."""
        await self._stream.aclose()

    async def __aenter__(self) -> ChunkStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncChunkStream:
    """The same for ``for`` and ``with``."""

    def __init__(self, chunks: ChunkStream) -> None:
        self._chunks = chunks
        self._pieces = portal().iterate(aiter(chunks))

    def __iter__(self) -> Iterator[ChatCompletionChunk]:
        return self._pieces

    def __next__(self) -> ChatCompletionChunk:
        return next(self._pieces)

    def close(self) -> None:
        """Leave: the connection is closed when this returns (soon after, in ``on_result``). May be called again."""
        leave(self._pieces, self._chunks.close)

    def __enter__(self) -> SyncChunkStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Completions:
    """``client.chat.completions``."""

    def __init__(self, client: QRewardClient) -> None:
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
        """A chat completion, as the openai SDK's method of this name, but with the errors of :meth:`QRewardClient.chat_completion`.

        Args:
            messages, model: as in :meth:`QRewardClient.chat_completion`.
            stream: True gives the answer in chunks, once the first token is there.
            params: ``timeout``, ``extra_headers``, ``extra_body``, ``priority``, ``hedge`` and ``tenant`` as there; all else goes into the
                JSON body. What the SDK's ``NOT_GIVEN`` or ``omit`` stands for is left out.

        Raises:
            RequestError, NoEndpoint, ConfigError: as there.

        Example:
            >>> async def ask(client, messages):
            ...     answer = await client.chat.completions.create(model="judge-7b", messages=messages, temperature=0)
            ...     return answer.choices[0].message.content
        """
        given = _given(params)
        if not stream:
            return await self._client.chat_completion(messages, model, **given)
        told_usage = "stream_options" in given or "stream_options" in (given.get("extra_body") or {})
        return ChunkStream(await self._client.stream_chat_completion(messages, model, **given), told_usage)


class SyncCompletions:
    """``client.chat.completions`` of a client whose methods block."""

    def __init__(self, client: QRewardClient) -> None:
        self._completions = Completions(client)

    @overload
    def create(self, *, messages: Iterable[Any], model: str, stream: Literal[False] | None = False, **params: Any) -> ChatCompletion: ...
    @overload
    def create(self, *, messages: Iterable[Any], model: str, stream: Literal[True], **params: Any) -> SyncChunkStream: ...
    @overload
    def create(
        self, *, messages: Iterable[Any], model: str, stream: bool | None = False, **params: Any
    ) -> ChatCompletion | SyncChunkStream: ...
    def create(
        self, *, messages: Iterable[Any], model: str, stream: bool | None = False, **params: Any
    ) -> ChatCompletion | SyncChunkStream:
        """A chat completion. See :meth:`Completions.create`."""
        create = cast("Callable[..., Any]", self._completions.create)
        answer: Any = portal().call(create, messages=messages, model=model, stream=stream, **params)
        return SyncChunkStream(answer) if stream else cast("ChatCompletion", answer)


class Chat:
    """``client.chat``."""

    def __init__(self, client: QRewardClient) -> None:
        self.completions = Completions(client)


class SyncChat:
    """``client.chat`` of a client whose methods block."""

    def __init__(self, client: QRewardClient) -> None:
        self.completions = SyncCompletions(client)


class OpenAIFace:
    """The part of ``QRewardClient`` that looks like an ``openai.AsyncOpenAI``."""

    @property
    def chat(self) -> Chat:
        """``chat.completions.create(...)``, as in the openai SDK, for code that takes such a client."""
        return Chat(cast("QRewardClient", self))


class SyncOpenAIFace:
    """The part of ``SyncQRewardClient`` that looks like an ``openai.OpenAI``."""

    _client: QRewardClient

    @property
    def chat(self) -> SyncChat:
        """``chat.completions.create(...)``, as in the openai SDK, for code that takes such a client."""
        return SyncChat(self._client)


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    """What was really given, as the client wants it. Raises ``ConfigError``."""
    if params.get("extra_query"):
        raise ConfigError("extra_query is not supported; put parameters of the server into extra_body")
    given = {name: value for name, value in params.items() if name != "extra_query" and not _is_blank(value)}
    if "timeout" in given:
        given["timeout"] = getattr(given["timeout"], "read", given["timeout"])  # an httpx.Timeout
    return given


def _is_blank(value: object) -> bool:
    """Whether this is one of the SDK's words for nothing, which ``None`` is not."""
    kind = type(value)
    return kind.__name__ in ("NotGiven", "Omit") and kind.__module__.partition(".")[0] == "openai"
