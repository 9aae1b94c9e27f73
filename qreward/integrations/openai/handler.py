"""Sends the requests of an SDK through a client and returns HTTP replies. Knows clients, but no HTTP library and no SDK.

Chat completions, legacy completions, moderations and rerank requests are passed through unchanged, and so are the bytes of the endpoint's
answer. An answer is returned whatever its ``finish_reason``, which the program must check. Inputs of embedding requests are merged with
those of other calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, VERBATIM_CHAT
from qreward.errors import QRewardError
from qreward.integrations.openai import responses
from qreward.integrations.openai.request import MEMBERS, OpenAIRequest, read, route_of
from qreward.integrations.openai.responses import Events, OpenAIReply, event, silence
from qreward.options import preparer
from qreward.results import Result, Usage
from qreward.runtime import runtime_of
from qreward.scheduler.request import RequestOptions
from qreward.scoring.formats import asking_embeddings

if TYPE_CHECKING:
    from qreward.client import QRewardClient


class _Seen(msgspec.Struct, gc=False):
    """The members of an answer that are decoded."""

    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Seen)


class PlainAnswer(msgspec.Struct, gc=False):
    """An answer that is passed through unchanged."""

    body: bytes
    model: str
    usage: Usage | None

    def text(self) -> str:
        """Return ``""``: the position of the text in such an answer is unknown."""
        return ""

    def build(self) -> bytes:
        """Return the JSON body."""
        return self.body


class PlainCodec:
    """Codec of a ``POST`` to one path. Requests are neither merged nor split.

    Args:
        path: path of the API, such as ``/completions``.

    Attributes:
        path: path of the API.
        name: name of the operation, for telemetry.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self._member = MEMBERS[path]

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the JSON body. Raises ``BadRequest`` for values that JSON cannot represent."""
        return jsonio.write(model, self._member, call.inputs, call.params, all_text=False)

    def decode(self, body: bytes, call: WireRequest) -> PlainAnswer:
        """Return the answer. Raises ``Malformed`` or ``EmbeddedError``."""
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            document = jsonio.read_object(body)
            seen = _Seen(jsonio.usage_of(document.get("usage")), document.get("error"))
        if seen.error:
            raise EmbeddedError(seen.error)
        return PlainAnswer(body, call.model, seen.usage)

    def validate(self, inputs: Any) -> Any:
        """Return the inputs unchanged; the server validates them."""
        return inputs

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Estimate input tokens from the length of the inputs, and output tokens from ``max_tokens``, which only completions have."""
        inputs, most, choices = call.inputs, call.params.get("max_tokens"), call.params.get("n")
        prompt = len(str(inputs)) / CHARS_PER_TOKEN
        if not isinstance(most, int):
            return prompt, 0.0
        prompts = len(inputs) if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int) else 1
        return prompt, float(most * prompts * (choices if isinstance(choices, int) else 1))


_CODECS = {"/chat/completions": VERBATIM_CHAT} | {path: PlainCodec(path) for path in ("/completions", "/moderations", "/rerank")}


class RequestHandler:
    """Handles requests with a client, in any event loop.

    Args:
        client: the client that sends the requests. It stays open; its owner closes it.
        priority, hedge, tenant: options of all requests, as in ``QRewardClient.chat_completion``.
    """

    def __init__(self, client: QRewardClient, priority: int | str, hedge: bool, tenant: str | None) -> None:
        self.client = client
        self._options = {"priority": priority, "hedge": hedge, "tenant": tenant}
        self._terms()  # raises now if one of them is wrong

    async def answer(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes, seconds: float | None) -> OpenAIReply:
        """Return the reply to a request. Raises nothing but ``CancelledError``.

        Args:
            method: HTTP method.
            path: path of the URL; its end selects the operation.
            headers: headers of the request.
            body: body of the request.
            seconds: timeout of the request, in seconds. Without streaming it covers the whole answer, including queueing and retries. With
                streaming it covers the wait for the first token and each pause between two chunks. None leaves it to the client.
        """
        path = path.rstrip("/")
        try:
            if method == "GET" and (path.endswith("/models") or "/models/" in path):
                return self._models(path.partition("/models")[2].removeprefix("/"))
            route = route_of(path)
            if method != "POST" or route is None:
                return responses.not_offered(method, path)
            return await self._asked(read(route, headers, body), seconds)
        except QRewardError as error:
            return responses.refused(error)

    def _models(self, name: str) -> OpenAIReply:
        if not name:
            return responses.models(route.pattern for route in self.client.list_routes())
        runtime_of(self.client).pool(name)
        return responses.model(name)

    async def _asked(self, asked: OpenAIRequest, seconds: float | None) -> OpenAIReply:
        if asked.params.get("stream"):
            return await self._stream(asked, seconds)
        ask = self._embeddings if asked.route == "/embeddings" else self._one
        result = await ask(asked, self._within(seconds))
        return responses.answered(_body(result), result.endpoint)

    def _terms(self) -> RequestOptions:
        return runtime_of(self.client).request_options(self._options)

    def _within(self, seconds: float | None) -> RequestOptions:
        terms = self._terms()
        return terms if seconds is None else terms._replace(timeout=min(seconds, inf if terms.timeout is None else terms.timeout))

    async def _one(self, asked: OpenAIRequest, terms: RequestOptions) -> Result[Any]:
        codec = _CODECS[asked.route]
        call = WireRequest(codec, asked.model, codec.validate(asked.inputs), asked.params, asked.headers)
        return await runtime_of(self.client).one(call, terms)

    async def _embeddings(self, asked: OpenAIRequest, terms: RequestOptions) -> Result[Any]:
        asking = asking_embeddings(asked.model, {}, asked.headers, asked.params)
        (result,) = await runtime_of(self.client).merged(asking, [asking.call(asked.inputs)], terms)
        return result

    async def _stream(self, asked: OpenAIRequest, seconds: float | None) -> OpenAIReply:
        """Return the reply when the first token has arrived. A failure before that is an HTTP error, once all attempts have failed."""
        if asked.route != "/chat/completions":
            return responses.not_offered("streamed", asked.route)
        params = {name: value for name, value in asked.params.items() if name != "stream"}
        call = preparer(VERBATIM_CHAT, asked.model, params, asked.headers, None)(asked.inputs)
        stream = runtime_of(self.client).stream(call, self._options)
        try:
            async with asyncio.timeout(seconds):
                await stream
        except QRewardError:
            raise
        except TimeoutError:
            await stream.aclose()
            raise silence(seconds, "before the first token") from None
        return responses.streamed(Events(stream, seconds, told_usage="stream_options" in params, as_event=_as_event))


def _body(result: Result[Any]) -> bytes:
    """Return the JSON of the answer as the endpoint sent it. Raises the result's error."""
    body: bytes = result._answered().body  # type: ignore[attr-defined]
    return body


def _as_event(error: QRewardError) -> bytes:
    return event(msgspec.json.encode({"error": responses.described(error)}))
