"""An answer that comes in pieces, as server-sent events. Knows chunks and the form of events; knows no HTTP library.

A stream that breaks off ends in an event with an ``error``, which SDKs raise, and then in a broken connection, for those that do not look
at errors: it never looks like a short answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec

from qreward.errors import QRewardError, RequestTimeout
from qreward.streams.reader import Reader
from qreward.streams.single import Stream
from qreward.wire import jsonio
from qreward.wire.stream_chat import ChatChunk, read_object

DONE = b"data: [DONE]\n\n"
_RAW = msgspec.json.Decoder(msgspec.Raw)


class Broken(Exception):
    """What follows the event that says why."""


class Events:
    """The events of a stream that has begun, one after the other; an asynchronous iterator of bytes.

    Args:
        stream: what is read.
        seconds: the longest silence between two pieces; None is any.
        told_usage: the caller wants the chunk that tells the usage. It is asked for in any case, for the scheduler learns from it, but a
            program that did not ask does not expect a chunk without choices.
        as_event: how an error is told.
    """

    def __init__(self, stream: Stream, seconds: float | None, told_usage: bool, as_event: Callable[[QRewardError], bytes]) -> None:
        self._stream, self._seconds, self._as_event = stream, seconds, as_event
        self._reader = Reader(stream, _Shown(told_usage))
        self._over = False
        self._error: QRewardError | None = None

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> bytes:
        if self._error is not None:
            raise Broken(str(self._error))
        if self._over:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout(self._seconds):
                return await anext(self._reader)
        except StopAsyncIteration:
            self._over = True
            return DONE
        except QRewardError as error:
            return self._told(error)
        except TimeoutError:
            return self._told(silence(self._seconds, "amid the answer"))

    async def aclose(self) -> None:
        """Leave; the request is stopped upstream, and its connection closed, when this returns."""
        await self._stream.aclose()

    def _told(self, error: QRewardError) -> bytes:
        self._error = error
        return self._as_event(error)


class _Shown:
    """From chunks to events."""

    __slots__ = ("_first", "_told_usage")

    def __init__(self, told_usage: bool) -> None:
        self._first, self._told_usage = True, told_usage

    def __call__(self, chunk: ChatChunk) -> bytes | None:
        if not self._told_usage and tells_usage_only(chunk):
            return None
        first, self._first = self._first, False
        return event(strict(in_pieces(chunk.body) if first else chunk.body))


def tells_usage_only(chunk: Any) -> bool:
    """Whether this chunk, ours or openai's, is the one at the end with the usage and no choices."""
    return not chunk.choices and chunk.usage is not None


def strict(body: bytes) -> bytes:
    """The same JSON, written anew only where a strict reader would refuse it: a byte order mark, bare control characters, broken UTF-8."""
    try:
        _RAW.decode(body)
        _ = body.isascii() or body.decode()  # which the decoder does not look at
    except jsonio.REFUSED:
        return json.dumps(jsonio.read_leniently(body)).encode()
    return body


def event(data: bytes) -> bytes:
    """One event.

    Example:
        >>> event(b'{"a": 1}')
        b'data: {"a": 1}\\n\\n'
    """
    return b"".join(b"data: %b\n" % line for line in data.splitlines()) + b"\n"


def in_pieces(body: bytes) -> bytes:
    """A first chunk as it came; the whole answer of a server that does not stream as the one chunk it stands for."""
    if b'"message"' not in body:
        return body
    document = read_object(body)
    choices = document.get("choices")
    if not isinstance(choices, list) or not any(isinstance(choice, dict) and "message" in choice for choice in choices):
        return body
    return json.dumps(
        {**document, "object": "chat.completion.chunk", "choices": [_choice_in_pieces(choice) for choice in choices]}
    ).encode()


def _choice_in_pieces(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    message = choice.get("message")
    delta = dict(message) if isinstance(message, dict) else {}
    if isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    return {**{name: value for name, value in choice.items() if name != "message"}, "delta": delta}


def silence(seconds: float | None, when: str) -> RequestTimeout:
    """The time that the request itself gives was over."""
    return RequestTimeout(f"nothing came for {seconds:g} s {when}, which is the timeout that the request was given; give it more")
