"""The codec of chat completions in the OpenAI API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import (
    ABORTED,
    WITHHELD,
    Codec,
    EmbeddedError,
    Ignored,
    Malformed,
    Unfinished,
    WireRequest,
    WithoutText,
    ending_of,
    is_failure,
)
from qreward.errors import BadRequest
from qreward.records import MOST_TOKENS
from qreward.results import Usage

CHARS_PER_TOKEN = 3.5
"""Number of characters per token in estimates. The scheduler corrects the estimates with the usage that servers report."""

_EXAMPLE = "[{'role': 'user', 'content': '...'}]"
_ITEMS = "chat_completion(item['messages'], ...) or batch_chat_completion([item['messages'] for item in items], ...)"


class _Message(msgspec.Struct, gc=False):
    content: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = None
    message: _Message | None = None
    error: Any = None
    finish_reason: Any = None


class _Completion(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Completion)


class ChatAnswer(msgspec.Struct, gc=False):
    body: bytes
    model: str
    content: Any
    usage: Usage | None
    finish_reason: str | None = None

    def text(self) -> str:
        return self.content if type(self.content) is str else joined(self.content)

    def build(self) -> Any:
        built = jsonio.build("chat.ChatCompletion", self.body, partial(completed, "chat.completion", "message", self.model))
        if len(built.choices) > 1:
            built.choices.sort(key=lambda choice: choice.index)
        return built


class ChatCodec(Codec):
    """Encodes requests to ``POST /chat/completions``, and decodes the responses. Inputs are messages. ``failures`` are the values of
    ``finish_reason`` for which ``Unfinished`` is raised. If there are none, neither these nor the number of choices are checked."""

    path = "/chat/completions"

    def __init__(self, failures: frozenset[str] = ABORTED | WITHHELD) -> None:
        self.failures = failures

    def encode(self, call: WireRequest, model: str) -> bytes:
        all_text = True
        for message in call.inputs:
            for value in message.values():
                if type(value) is not str:
                    all_text = False
        return jsonio.write(model, "messages", call.inputs, call.params, all_text=all_text)

    def decode(self, body: bytes, call: WireRequest) -> ChatAnswer:
        try:
            seen = _DECODER.decode(body)
        except jsonio.REFUSED:
            seen = _read_leniently(body)
        if seen.error:
            raise EmbeddedError(seen.error)
        if not seen.choices:
            raise Malformed("the answer has no choices")
        first = seen.choices[0] if len(seen.choices) == 1 else first_of(seen.choices, [choice.index for choice in seen.choices])
        if first.error:
            raise EmbeddedError(first.error)
        for choice in seen.choices:
            if choice.finish_reason != "stop":
                self.check_ending(choice.finish_reason)
        if "n" in call.params:
            self.check_count(len(seen.choices), call.params)
        ending = "stop" if first.finish_reason == "stop" else ending_of(first.finish_reason)
        if first.message is None and not is_failure(ending):
            raise Malformed("the answer has a choice without a message")
        return ChatAnswer(body, call.model, first.message and first.message.content, seen.usage, ending)

    def check_ending(self, reason: object) -> None:
        ending = ending_of(reason)
        if ending is not None and ending in self.failures:
            raise Unfinished(ending)

    def check_count(self, found: int, params: Mapping[str, Any]) -> None:
        """Raise ``Ignored`` if a response has fewer choices than the request asks for. Some servers ignore ``n``."""
        if found < (count := count_of(params)) and self.failures:
            raise Ignored(f"the answer has {found} of {count} choices; send the request {count} times if the server ignores n")

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return tokens_of(call.inputs), most_output(call.params)

    def validate(self, inputs: Any) -> Any:
        if type(inputs) is list and inputs:
            for message in inputs:
                if type(message) is not dict or type(message.get("role")) is not str:
                    break
            else:
                return inputs
        if isinstance(inputs, str):
            raise BadRequest(f"messages is a text; send {_EXAMPLE}")
        if isinstance(inputs, Mapping) and "messages" in inputs:
            raise BadRequest(f"messages is a dict with the key 'messages'; pass the list that it holds: {_ITEMS}")
        if isinstance(inputs, Mapping):
            raise BadRequest(f"messages is one message; put it in a list: {_EXAMPLE}")
        if not isinstance(inputs, list | tuple):
            raise BadRequest(f"messages is a {type(inputs).__name__}; send a list such as {_EXAMPLE}")
        if not inputs:
            raise BadRequest(f"messages is empty; send at least one message, such as {_EXAMPLE}")
        return [_message(raw, index) for index, raw in enumerate(inputs)]


CHAT, VERBATIM_CHAT = ChatCodec(), ChatCodec(failures=frozenset())
"""The second one is for programs that check answers themselves."""


def tokens_of(messages: Iterable[Mapping[str, Any]]) -> float:
    return sum(len(joined(message.get("content"))) for message in messages) / CHARS_PER_TOKEN


def most_output(params: Mapping[str, Any]) -> float:
    """Return the maximum output tokens of a request, added up over its choices; 0 if the caller set no limit."""
    most = params.get("max_completion_tokens") or params.get("max_tokens")
    return float(min(most * count_of(params), MOST_TOKENS)) if type(most) is int and most > 0 else 0.0


def count_of(params: Mapping[str, Any]) -> int:
    """Return the number of choices that a request asks for."""
    choices = params.get("n")
    return choices if type(choices) is int and choices > 0 else 1


def first_of(choices: list[Any], indexes: Iterable[object]) -> Any:
    """Return the choice with the index 0. If none has this index, return the one that comes first."""
    return next((choice for choice, index in zip(choices, indexes, strict=True) if type(index) is int and index == 0), choices[0])


_PAIR = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")


def paired(text: str) -> str:
    """Return a text in which each pair of surrogates is the character that the pair means. Servers may cut a character in two."""
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


REASONING = ("reasoning", "thinking")
"""Types of the parts of a content that are not part of the answer."""


def joined(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") if isinstance(part, dict) and part.get("type") not in REASONING else part for part in content]
    return paired("".join(part for part in parts if isinstance(part, str)))


def characters(value: object) -> float:
    """Return the number of characters of all texts in a JSON value. A list of numbers counts as token ids. Data URLs do not count."""
    if isinstance(value, str):
        return 0.0 if value.startswith("data:") else float(len(value))
    if isinstance(value, Mapping):
        return sum(map(characters, value.values()))
    if not isinstance(value, list | tuple):
        return 0.0
    return len(value) * CHARS_PER_TOKEN if value and isinstance(value[0], int) else sum(map(characters, value))


def is_missing(message: Mapping[str, Any]) -> bool:
    """Return True if a message has neither content nor tool calls. An empty string is content."""
    return message.get("content") is None and not message.get("tool_calls") and not message.get("function_call")


def _message(raw: Any, index: int) -> dict[str, Any]:
    message = jsonio.dumped(raw)
    if isinstance(message, list | tuple):
        raise BadRequest(f"messages[{index}] is a list; several conversations go to batch_chat_completion")
    if not isinstance(message, Mapping):
        raise BadRequest(f"messages[{index}] is a {type(raw).__name__}; a message is a dict such as {_EXAMPLE[1:-1]}")
    if "role" not in message and "messages" in message:
        raise BadRequest(f"messages[{index}] is a dict with the key 'messages', not a message; pass the list that it holds: {_ITEMS}")
    if "role" not in message:
        raise BadRequest(f"messages[{index}] has no 'role'; give it 'system', 'user' or 'assistant'")
    if not isinstance(message["role"], str):
        raise BadRequest(f"messages[{index}].role is a {type(message['role']).__name__}; it must be a text such as 'user'")
    return dict(message)


def _read_leniently(body: bytes) -> _Completion:
    document = jsonio.read_object(body)
    raw = document.get("choices")
    choices = []
    for each in raw if isinstance(raw, list) else ():
        choice = each if isinstance(each, dict) else {}
        message = _Message(said.get("content")) if isinstance(said := choice.get("message"), dict) else None
        choices.append(_Choice(choice.get("index"), message, choice.get("error"), choice.get("finish_reason")))
    return _Completion(choices, jsonio.usage_of(document.get("usage")), document.get("error"))


def completed(kind: str, member: str, model: str, document: dict[str, Any]) -> dict[str, Any]:
    raw, choices = document.get("choices"), []
    for index, each in enumerate(raw if isinstance(raw, list) else []):
        choice = {"index": index, "finish_reason": None, **(each if isinstance(each, dict) else {})}
        if type(choice["index"]) is not int:
            choice["index"] = index
        body = {"role": "assistant", "content": None} if member == "message" else {}
        delta, message = choice.pop("delta", None), choice.pop("message", None)
        found = delta if isinstance(delta, dict) else message
        body |= found if isinstance(found, dict) else {}
        if isinstance(body.get("content"), list):
            body["content"] = joined(body["content"])
        choices.append({**choice, member: body})
    own = document if member == "message" else {**document, "object": kind}
    return {"id": "", "object": kind, "created": 0, "model": model, **own, "choices": choices}


class PassthroughAnswer(WithoutText, gc=False):
    body: bytes
    usage: Usage | None

    def build(self) -> Any:
        return jsonio.read_object(self.body)


class PassthroughCodec(Codec):
    """Encodes ``POST`` requests to any route of a server, whose whole body is in the parameters, and decodes the responses.

    A response of ``/completions`` must be complete; with ``verbatim``, it must only have a choice. What a response of another route must
    have is not known.
    """

    def __init__(self, path: str, native: bool = True, *, verbatim: bool = False) -> None:
        self.path, self.native, self.verbatim = path, native, verbatim

    def encode(self, call: WireRequest, model: str) -> bytes:
        return jsonio.write(model, "model", model, call.params, all_text=True)

    def decode(self, body: bytes, call: WireRequest) -> PassthroughAnswer:
        document = jsonio.read_object(body)
        if document.get("error") or document.get("object") == "error":
            raise EmbeddedError(document)
        if not document:
            raise Malformed("the answer is an empty object")
        usage = jsonio.usage_of(document.get("usage"))
        if not self.path.endswith("/completions"):
            return PassthroughAnswer(body, usage)
        choices, count = document.get("choices"), count_of(call.params) * _prompts_in(call.params)
        if not isinstance(choices, list) or not choices:
            raise Malformed("the answer has no choices")
        for choice in () if self.verbatim else choices:
            said = choice if isinstance(choice, dict) else {}
            if is_failure(ending := ending_of(said.get("finish_reason"))):
                raise Unfinished(str(ending))
            if said.get("text", said.get("message")) is None:
                raise Malformed("the answer has a choice without a text")
        if len(choices) < count and not self.verbatim:
            raise Ignored(f"the answer has {len(choices)} of {count} choices; send a line for each if the server ignores n or lists")
        return PassthroughAnswer(body, usage)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return characters(call.params) / CHARS_PER_TOKEN, most_output(call.params) * _prompts_in(call.params)


def _prompts_in(params: Mapping[str, Any]) -> int:
    prompts = params.get("prompt")
    return len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1


passthrough = lru_cache(maxsize=256)(PassthroughCodec)
