"""One streamed attempt: sends the request, reads the response chunk by chunk, and determines the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

from qreward.codecs import rate_limit_headers
from qreward.codecs.base import EmbeddedError, Malformed, Reply, TransportError, Unfinished, WireRequest
from qreward.codecs.chat import ChatCodec
from qreward.codecs.chat_stream import ChatChunk, StreamAccumulator, read_chunk, whole_chunk
from qreward.codecs.sse import Event, EventTooLong, Parser
from qreward.scheduler.outcome import CANCELLED, Answer, Cancelled, Failure
from qreward.transport.base import ByteStream, too_long
from qreward.transport.connection import EndpointConnection, failure_of

DRAIN = 0.1
"""Maximum number of seconds to wait for the end of a body after ``[DONE]``. If the body ends in this time, its connection can be reused.
The openai SDK waits equally long."""

_OPTIONS = "stream_options"
_REFUSALS = (400, 422)
_DONE = b"[DONE]"
_BEFORE_DONE = b' \t"'  # some servers send two blanks before [DONE], or quote it
_NO_STREAM = (b"{", b"[", b"<")  # first bytes of JSON or HTML; no line of an event starts with them
_BLANKS = b" \t\r\n\xef\xbb\xbf"  # whitespace, and the bytes of a byte order mark
_LOOKED_AT = 8192  # bytes of the beginning of the body, from which a stream is recognised; an error about a malformed response shows them


class ChatStream:
    """An open stream of one chat completion. One task reads it, and any may close it; only ``CancelledError`` is raised."""

    __slots__ = (
        "_assembly", "_beginning", "_body", "_call", "_connection", "_done", "_known", "_parser", "_whole", "headers",
        "limits", "on_close", "outcome",
    )  # fmt: skip

    def __init__(self, body: ByteStream, connection: EndpointConnection, call: WireRequest) -> None:
        self.headers: Mapping[str, str] = body.headers
        self.limits = rate_limit_headers.read(body.headers)
        self.outcome: Answer | Failure | Cancelled | None = None
        self.on_close: Callable[[], object] | None = None
        self._body = body
        self._connection = connection
        self._call = call
        self._parser = Parser()
        self._assembly = StreamAccumulator(call.model)
        self._known = False  # True if it is known whether the response is a stream
        self._beginning = b""
        self._whole: bytearray | None = None  # the body of a response that is not a stream
        self._done = False

    async def read(self) -> list[ChatChunk] | None:
        """Wait for at least one byte, and return the chunks that have arrived; None once the stream has its outcome."""
        if self.outcome is not None:
            return None
        chunks: list[ChatChunk] = []
        try:
            data = await self._body.read()
            chunks = self._take(data) if data else self._end()
        except Exception as error:
            whole = isinstance(error, TransportError) and self._finished()  # an answer that was already complete remains valid
            self._settle(self._ended(well=True) if whole else self._failure_of(error))
        except BaseException:
            self.end()
            raise
        return chunks if chunks or self.outcome is None else None

    @property
    def whole(self) -> bool:
        """True while the stream is open and its answer has ended."""
        return self.outcome is None and self._finished()

    def end(self) -> Answer | Failure | Cancelled:
        """Return the outcome. An open stream gets that of its answer if the answer has ended; otherwise it is cancelled."""
        self._settle(self._ended(well=True) if self.whole else CANCELLED)
        assert self.outcome is not None
        return self.outcome

    def text(self) -> str:
        """Return the text of the first choice that has arrived."""
        return self.outcome.value.text() if isinstance(self.outcome, Answer) else self._assembly.text()

    async def aclose(self) -> None:
        """Close the stream and its connection. After ``[DONE]``, keep the connection if the body ends within ``DRAIN`` seconds."""
        self.end()
        done, self._done = self._done, False
        try:
            if done:
                await self._body.drain(DRAIN)
            else:
                await self._body.aclose()
        finally:
            on_close, self.on_close = self.on_close, None
            if on_close is not None:
                on_close()

    async def __aenter__(self) -> ChatStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _settle(self, outcome: Answer | Failure | Cancelled) -> None:
        if self.outcome is None:
            self.outcome = outcome

    def _take(self, data: bytes) -> list[ChatChunk]:
        if not self._known:
            data = self._beginning + data
            self._beginning = data[:_LOOKED_AT]
            first = data.lstrip(_BLANKS)[:1]
            self._known = bool(first) or len(data) >= _LOOKED_AT
            if first in _NO_STREAM:
                self._whole = bytearray()
            if not self._known:
                return []
        if self._whole is None:
            return self._chunks(self._parser.feed(data))
        self._whole += data
        cap = self._connection.endpoint.max_response_bytes
        if len(self._whole) > cap:
            raise too_long(cap)
        return []

    def _chunks(self, events: Iterator[Event]) -> list[ChatChunk]:
        chunks, data = [], self._beginning
        assembly, model, cap = self._assembly, self._call.model, self._connection.endpoint.max_response_bytes
        try:
            for event in events:
                data = event.data
                if data.lstrip(_BEFORE_DONE).startswith(_DONE):
                    self._done = True
                    self._settle(self._ended(well=True))
                    break
                chunk = read_chunk(event, model)
                if chunk is not None:
                    assembly.add(chunk)
                    if assembly.size > cap:
                        self._settle(self._failure_of(too_long(cap)))
                        break
                    chunks.append(chunk)
        except EmbeddedError as error:
            self._settle(self._failure(error, data))
        except (Malformed, EventTooLong, RecursionError) as error:
            self._settle(self._failure(Malformed(str(error)), data))
        return chunks

    def _end(self) -> list[ChatChunk]:
        if self._whole is not None:
            reply = Reply(self._body.status, self.headers, bytes(self._whole))
            outcome = self._connection.outcome_of(reply, self._call)
            self._settle(outcome)
            return [whole_chunk(reply.body, self._call.model)] if isinstance(outcome, Answer) else []
        chunks = self._chunks(self._parser.finish())
        if self.outcome is None:
            # without a length, a cut and the end of the body look alike
            delimited = "transfer-encoding" in self.headers or "content-length" in self.headers
            self._settle(self._ended(well=self._assembly.goes_on and delimited))
        return chunks

    def _ended(self, *, well: bool) -> Answer | Failure:
        """Return the outcome of a stream that has ended. ``well`` is True if the stream counts as complete, as after ``[DONE]``."""
        assembly = self._assembly
        if assembly.empty:
            return self._failure(Malformed("the stream has no chunk with a choice"), self._beginning)
        if not well and not self._finished():
            what = "output followed a finish_reason, and no [DONE] came" if assembly.goes_on else "no finish_reason"
            return self._failure_of(TransportError(f"the stream ended before the answer did ({what})"))
        try:
            for ending in assembly.endings():
                cast("ChatCodec", self._call.codec).check_ending(ending)
        except Unfinished as error:
            return self._failure(error, b"")
        usage = assembly.usage
        if usage is None:
            return Answer(assembly)
        return Answer(assembly, usage.prompt_tokens, usage.completion_tokens, cached_tokens=usage.cached_tokens)

    def _finished(self) -> bool:
        choices = self._call.params.get("n")
        return self._assembly.finished(choices if isinstance(choices, int) else 1)

    def _failure_of(self, error: Exception) -> Failure:
        return failure_of(error, self._connection.endpoint, self._call, self._connection)

    def _failure(self, error: Malformed | EmbeddedError | Unfinished, data: bytes) -> Failure:
        return self._connection.failure_from_body(error, Reply(self._body.status, self.headers, data), self._call)


async def open_stream(connection: EndpointConnection, call: WireRequest) -> ChatStream | Failure:
    """Send a streamed request. Raises ``TransportError``, or ``BadRequest`` if the request cannot be sent."""
    cap = connection.endpoint.max_response_bytes
    ours = _OPTIONS not in call.params and connection.takes_stream_options
    body = await _send(connection, call, {_OPTIONS: {"include_usage": True}} if ours else {})
    refused = body.status in _REFUSALS
    if ours and refused:
        reply = await body.read_whole(cap)
        if _OPTIONS.encode() not in reply.body:
            return connection.failure_from_reply(reply, call)
        body = await _send(connection, call, {})
    if not 200 <= body.status < 300:
        return connection.failure_from_reply(await body.read_whole(cap), call)
    if ours and refused:
        connection.takes_stream_options = False  # the second request succeeded, so the options were the reason
    return ChatStream(body, connection, call)


async def _send(connection: EndpointConnection, call: WireRequest, options: Mapping[str, object]) -> ByteStream:
    request = WireRequest(call.codec, call.model, call.inputs, {**call.params, "stream": True, **options}, call.headers, call.group)
    return await connection.transport.begin("POST", call.codec.path, *connection.encoded(request, call))
