"""Sends the requests of an SDK through a client and returns HTTP replies. This module imports no HTTP library and no SDK.

Chat completions, legacy completions, moderations and rerank requests are passed through unchanged. The bytes of the endpoint's answer are
passed through unchanged too. An answer is returned whatever its ``finish_reason`` is, so the program must check the ``finish_reason``.
Inputs of embedding requests are merged with the inputs of other calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Codec, EmbeddedError, Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, VERBATIM_CHAT, characters, most_output
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.errors import BadRequest, QRewardError
from qreward.integrations.openai import responses
from qreward.integrations.openai.responses import Events, OpenAIReply, paused_too_long
from qreward.options import preparer
from qreward.results import Usage
from qreward.runtime import runtime_of
from qreward.scoring.merge_spec import EmbeddingsSpec

if TYPE_CHECKING:
    from qreward.client import QRewardClient
    from qreward.sync_client import SyncQRewardClient


class PlainAnswer(msgspec.Struct, gc=False):
    """An answer that is passed through unchanged."""

    body: bytes
    model: str
    usage: Usage | None

    def text(self) -> str:
        """Return ``""``, because the position of the text in such an answer is unknown."""
        return ""

    def build(self) -> bytes:
        return self.body


class PlainCodec:
    """Codec of a ``POST`` to one path. Requests are neither merged nor split.

    Args:
        path: path of the API, such as ``/completions``.
        member: the member of the body that holds the inputs.
    """

    def __init__(self, path: str, member: str) -> None:
        self.path, self._member = path, member
        self.name = path.rpartition("/")[2]

    def encode(self, call: WireRequest, model: str) -> bytes:
        return jsonio.write(model, self._member, call.inputs, call.params, all_text=False)

    def decode(self, body: bytes, call: WireRequest) -> PlainAnswer:
        document = jsonio.read_object(body)
        if document.get("error") or document.get("object") == "error":
            raise EmbeddedError(document)
        return PlainAnswer(body, call.model, jsonio.usage_of(document.get("usage")))

    def validate(self, inputs: Any) -> Any:
        """Return the inputs unchanged; the server validates them."""
        return inputs

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Return estimates of the input tokens and the output tokens.

        The input tokens are estimated from the length of the inputs. The output tokens are estimated from ``max_tokens``, which only
        completions have.
        """
        inputs = call.inputs
        prompts = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
        return characters(inputs) / CHARS_PER_TOKEN, most_output(call.params) * prompts


ROUTES: dict[str, tuple[str, Codec]] = {
    "/chat/completions": ("messages", VERBATIM_CHAT),
    "/completions": ("prompt", PlainCodec("/completions", "prompt")),
    "/embeddings": ("input", EMBEDDINGS),
    "/moderations": ("input", PlainCodec("/moderations", "input")),
    "/rerank": ("documents", PlainCodec("/rerank", "documents")),
}
"""The end of a path -> the member of the body that holds the inputs, and the codec. If several entries match a path, the first entry
counts."""

_OURS = frozenset({
    "host", "connection", "content-length", "content-type", "transfer-encoding", "accept", "accept-encoding", "user-agent",
    "authorization", "proxy-authorization", "api-key", "x-api-key", "cookie", "openai-organization", "openai-project",
    "traceparent", "tracestate", "baggage",
})  # fmt: skip
"""Headers that are not forwarded. They belong to the connection, to the account (each endpoint has its own), or to the client's spans."""
_SDK = "x-stainless-"


def route_of(path: str) -> str | None:
    """Return the key of ``ROUTES`` with which a path ends; None if the path ends with no key."""
    return next((route for route in ROUTES if path.endswith(route)), None)


def read(route: str, headers: Iterable[tuple[str, str]], body: bytes) -> WireRequest:
    """Parse a request without validating its inputs. Raises ``BadRequest`` if the body is not a JSON object or names no model."""
    try:
        params = jsonio.read(body)
    except Malformed:
        raise BadRequest("the body is not JSON; send a JSON object as the OpenAI API takes it, without compression") from None
    if not isinstance(params, dict):
        raise BadRequest(f"the body is a JSON {type(params).__name__}; send an object with 'model'")
    model = params.pop("model", None)
    if not isinstance(model, str) or not model:
        raise BadRequest("the request has no model; set model='...' to a name that a route matches")
    member, codec = ROUTES[route]
    return WireRequest(codec, model, params.pop(member, None), params, forwarded(headers))


def forwarded(headers: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Return the headers that the program added, which are forwarded. Keys, and headers of the connection or the SDK, are left out."""
    named = ((name.lower(), value) for name, value in headers)
    return {name: value for name, value in named if name not in _OURS and not name.startswith(_SDK)} or None


class RequestHandler:
    """Handles requests with a client, in any event loop.

    Args:
        client: the client that sends the requests. The handler does not close the client.
        priority, hedge, tenant: options of all requests, as in ``QRewardClient.chat_completion``.
    """

    def __init__(self, client: QRewardClient | SyncQRewardClient, priority: int | str, hedge: bool, tenant: str | None) -> None:
        self.client = client
        self._given = {"priority": priority, "hedge": hedge, "tenant": tenant}
        self._runtime = runtime_of(client)
        self._runtime.request_options(self._given)  # raises at once if an option is wrong

    async def answer(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes, seconds: float | None) -> OpenAIReply:
        """Return the reply to a request. Only ``CancelledError`` is raised.

        Args:
            method: HTTP method.
            path: path of the URL; its end selects the operation.
            headers: headers of the request.
            body: body of the request.
            seconds: timeout of the request, in seconds. Without streaming, the timeout covers the whole answer, including queueing and
                retries. With streaming, the timeout covers the wait for the first token and each pause between two chunks. None means the
                client's own timeout.
        """
        path = path.rstrip("/")
        try:
            if method == "GET" and (path.endswith("/models") or "/models/" in path):
                return self._models(path.partition("/models")[2].removeprefix("/"))
            route = route_of(path)
            if method != "POST" or route is None:
                return responses.not_offered(method, path, ROUTES)
            call = read(route, headers, body)
            if not call.params.get("stream"):
                return await self._whole(call, seconds)
            if call.codec is not VERBATIM_CHAT:
                return responses.not_offered("streamed", route, ROUTES)
            return await self._stream(call, seconds)
        except QRewardError as error:
            return responses.refused(error)

    def _models(self, name: str) -> OpenAIReply:
        if not name:
            return responses.models(route.pattern for route in self.client.list_routes())
        self._runtime.pool(name)
        return responses.model(name)

    async def _whole(self, call: WireRequest, seconds: float | None) -> OpenAIReply:
        options = self._runtime.request_options(self._given)
        if seconds is not None:
            options = options._replace(timeout=min(seconds, inf if options.timeout is None else options.timeout))
        if call.codec is EMBEDDINGS:
            spec = EmbeddingsSpec(call.model, {}, call.headers, call.params)
            (result,) = await self._runtime.merged(spec, [spec.call(call.inputs)], options)
        else:
            call.inputs = call.codec.validate(call.inputs)
            result = await self._runtime.one(call, options)
        answer: Any = result._answered()  # raises the result's error
        return responses.answered(answer.body, result.endpoint)

    async def _stream(self, call: WireRequest, seconds: float | None) -> OpenAIReply:
        """Return the reply when the first token has arrived. If all attempts fail before that, the reply is an HTTP error."""
        params = {name: value for name, value in call.params.items() if name != "stream"}
        stream = self._runtime.stream(preparer(call.codec, call.model, {}, call.headers, params)(call.inputs), self._given)
        try:
            async with asyncio.timeout(seconds):
                await stream
        except QRewardError:
            raise
        except TimeoutError:
            await stream.aclose()
            raise paused_too_long(seconds, "before the first token") from None
        return responses.streamed(Events(stream, seconds, wants_usage="stream_options" in params))
