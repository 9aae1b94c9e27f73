"""What all codecs of lists share: one body of many items, one answer of as many values. Knows no server's dialect.

What is scored, labelled, ranked or embedded: the items of a list, checked once, and roughly how much each costs.

Knows nothing of servers or of how an item is written.

Which items may share a request, how many of them, and what is done when a shared request is refused. Data and arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, CHAT, is_missing, joined
from qreward.codecs.rewards import parsing as reading
from qreward.codecs.rewards.answers import ListAnswer
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RequestError, RequestTimeout, ServerError
from qreward.results import Usage
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.settings.policies import RewardModel

TEXT, PAIR, CHAT_ITEM, TOKENS, PARTS = "text", "pair", "chat", "tokens", "parts"
"""The shapes of items. Items of different shapes never share a request."""

_BYTES_AROUND = 16
"""Bytes of JSON around an item: quotes, brackets, a comma."""


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A prompt and a response to it.

    Attributes:
        label: what the right answer is, for servers that want to know (OpenRLHF's ``labels``).
    """

    prompt: str
    response: str
    label: Any = None


class Chat(msgspec.Struct, frozen=True, gc=False):
    """A conversation whose last message is judged."""

    messages: list[Any]


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Texts and pictures that are one item together, as moderations take them."""

    parts: list[Any]


def pair_item(raw: Any) -> str | Pair | Chat:
    """A text that is ready, ``(prompt, response)``, or a conversation; a prompt that is one becomes part of it.

    Raises ``BadRequest``.
    """
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Pair):
        return _pair(raw.prompt, raw.response, raw.label)
    if isinstance(raw, Chat):
        return _chat(raw.messages)
    if isinstance(raw, Mapping):
        return _of_mapping(raw)
    if isinstance(raw, tuple) or (isinstance(raw, list) and len(raw) == 2 and isinstance(raw[1], str | None)):
        if len(raw) != 2:
            raise BadRequest(f"a tuple of {len(raw)} cannot be scored; a pair is (prompt, response)")
        return _pair(raw[0], raw[1], None)
    if isinstance(raw, list):
        return _chat(raw)
    _check_given(raw, "item")
    raise BadRequest(f"an item to score must be (prompt, response), a text or a list of messages, not a {type(raw).__name__}")


def text_item(raw: Any) -> str:
    """A text. Raises ``BadRequest``."""
    if isinstance(raw, str):
        return raw
    _check_given(raw, "text")
    raise BadRequest(f"the item must be a text, not a {type(raw).__name__}")


def token_item(raw: Any) -> str | list[int]:
    """A text, or the token ids of one. Raises ``BadRequest``."""
    if isinstance(raw, list | tuple) and raw and set(map(type, raw)) == {int}:
        return list(raw)
    if isinstance(raw, str) and raw:
        return raw
    _check_given(raw, "input")
    what = "an empty one" if raw in ("", [], ()) else f"a {type(raw).__name__}"
    raise BadRequest(f"the item must be a text, or a list of token ids (int), not {what}")


def parts_item(raw: Any) -> str | Parts:
    """A text, or a list of parts such as ``{"type": "text", "text": "..."}``, which is one item. Raises ``BadRequest``."""
    if isinstance(raw, str | Parts):
        return raw
    if isinstance(raw, list) and raw and all(isinstance(part, Mapping) for part in raw):
        return Parts(raw)
    _check_given(raw, "input")
    raise BadRequest(f"an item to moderate must be a text, or a list of parts (dicts) that are one input, not a {type(raw).__name__}")


def shape_of(item: Any) -> str:
    """``text``, ``pair``, ``chat``, ``tokens`` or ``parts``."""
    return _SHAPES[type(item)]


_SHAPES = {str: TEXT, Pair: PAIR, Chat: CHAT_ITEM, list: TOKENS, Parts: PARTS}


def tokens_in(item: Any) -> float:
    """Tokens of an item: those that are given count themselves, texts by their characters."""
    return float(len(item)) if isinstance(item, list) else _chars(item) / CHARS_PER_TOKEN


def bytes_in(item: Any) -> int:
    """Bytes of an item in a body, not less than it takes as UTF-8 unless it is full of escapes."""
    if isinstance(item, list):
        return sum(len(str(token)) + 1 for token in item) + _BYTES_AROUND
    text = item if isinstance(item, str) else item.prompt + item.response if isinstance(item, Pair) else ""
    if text or isinstance(item, str | Pair):
        return len(text.encode("utf-8", "surrogatepass")) + _BYTES_AROUND
    return len(jsonio.write("", "", item.messages if isinstance(item, Chat) else item.parts, {}, all_text=False))


def _chars(item: Any) -> int:
    match item:
        case str():
            return len(item)
        case Pair():
            return len(item.prompt) + len(item.response)
        case Chat():
            return sum(len(joined(message.get("content"))) for message in item.messages)
    return len(joined(item.parts))


def _of_mapping(raw: Mapping[Any, Any]) -> Pair | Chat:
    if "messages" in raw:
        return _chat(raw["messages"])
    if "response" not in raw or "prompt" not in raw:
        raise BadRequest("a dict must have 'prompt' and 'response', or 'messages'")
    return _pair(raw["prompt"], raw["response"], raw.get("label"))


def _check_given(value: object, name: str) -> None:
    """Raise ``BadRequest`` for None: what is missing, as when a generation failed, must not be scored as if it were there."""
    if value is None:
        raise BadRequest(f"the {name} is None; leave the item out, or give the {name}")


def _chat(messages: Any) -> Chat:
    """A conversation, whose last message is there."""
    _check_given(messages, "messages")
    checked = CHAT.validate(messages)
    if is_missing(checked[-1]):
        raise BadRequest("the last message, which is judged, has no content; leave the item out, or give the content")
    return Chat(checked)


def _pair(prompt: Any, response: Any, label: Any) -> Pair | Chat:
    _check_given(prompt, "prompt")
    _check_given(response, "response")
    if not isinstance(response, str):
        raise BadRequest(f"the response is a {type(response).__name__}; send a text")
    if isinstance(prompt, str):
        return Pair(prompt, response, label)
    return Chat([*CHAT.validate(prompt), {"role": "assistant", "content": response}])


SPLITTING = frozenset({400, 413, 422, 424})
"""Statuses of a list that may be the fault of one item: these servers take all of a list or nothing."""

ONES_FAULT = (BadRequest, ServerError, InvalidResponse, ConnectionFailed, RequestTimeout)
"""Errors of a list that may be the fault of one item."""

_OURS = frozenset({FailureKind.REFUSED, FailureKind.UNSUITABLE})  # UNSUITABLE: too long for this model
_NOT_OURS = frozenset({FailureKind.OVERLOADED, FailureKind.QUOTA, FailureKind.UNSENDABLE})


class MergeLimits(msgspec.Struct, frozen=True):
    """How much one request may hold. None is without limit.

    Attributes:
        items: how many.
        tokens: of all items together, as estimated.
        bytes: of the body.
    """

    items: int | None = None
    tokens: float | None = None
    bytes: int | None = None

    def with_items(self, most: int | None) -> MergeLimits:
        """The same with at most so many items, at least one."""
        if most is None or (self.items is not None and self.items <= most):
            return self
        return MergeLimits(max(1, most), self.tokens, self.bytes)

    def of_items(self, items: int) -> MergeLimits:
        """The same for so many items, at least one."""
        return MergeLimits(max(1, items), self.tokens, self.bytes)

    def fitting(self, items: Iterable[Any]) -> int:
        """How many of the items, from the first on, go into one request: at least 1, for one that is too large alone must be told so.

        Example:
            >>> MergeLimits(items=2).fitting(["a", "b", "c"])
            2
        """
        count, tokens, size = 0, 0.0, _AROUND
        for item in items:
            tokens += tokens_in(item) if self.tokens is not None else 0.0
            size += bytes_in(item) if self.bytes is not None else 0
            if count and (_over(count + 1, self.items) or _over(tokens, self.tokens) or _over(size, self.bytes)):
                break
            count += 1
        return count


UNLIMITED = MergeLimits()
ALONE = MergeLimits(items=1)
_AROUND = 512  # bytes of a body beside its items


def splits(failure: Failure, count: int) -> bool:
    """Whether a list of ``count`` items that failed so is to be sent again in two halves, so that only the bad item fails in the end.

    An overload is none of that: the whole list waits, at the head of its queue. Nor is a wrong key or address, which no half mends.
    """
    if count < 2 or failure.misconfigured or failure.kind in _NOT_OURS:
        return False
    status = failure.error.status_code if isinstance(failure.error, RequestError) else None
    return failure.kind in _OURS or status in SPLITTING


def may_be_one_items_fault(error: BaseException) -> bool:
    """Whether a list that failed in the end may succeed in parts.

    An answer that was read and is not a list of results for these items is an error of the server and of the whole list. Asked for
    fewer items, such a server may seem right: one that always gives one number would be believed for a list of one item.
    """
    read = isinstance(error, InvalidResponse) and error.status_code is not None
    return isinstance(error, ONES_FAULT) and not read


def _over(amount: float, limit: float | None) -> bool:
    return limit is not None and amount > limit


LONE = frozenset({CHAT_ITEM, PARTS})
"""Shapes of which a body holds one."""


class Listing:
    """A codec whose calls have lists of items for inputs."""


class Operation(Listing):
    """Something that is asked about a list of items, before it is known which server will answer.

    It is the ``codec`` of a ``WireRequest`` whose ``inputs`` are the items. Everything that does not depend on the
    server is here; ``dialects.bound`` gives the call the codec of an endpoint when it is sent.

    Attributes:
        name: ``score``, ``classify``, ``rerank``, ``embeddings``, ``completions`` or ``moderations``.
        item: one item, ready to be sent. Raises ``BadRequest``.
        path: empty; each kind of server has its own.
    """

    path = ""

    def __init__(self, name: str, item: Callable[[Any], Any], check: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.name = name
        self.item = item
        self._check = check

    def validate(self, inputs: Any) -> list[Any]:
        """The items, ready to be sent. Raises ``BadRequest`` saying which is wrong."""
        if not isinstance(inputs, list | tuple) or not inputs:
            what = "empty" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise BadRequest(f"the items of {self.name} are {what}; send a list of at least one")
        return [self._valid(raw, index) for index, raw in enumerate(inputs)]

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise ``BadRequest`` for parameters that are missing, or that would make the answer unreadable."""
        if self._check is not None:
            self._check(params)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Items by their characters, output by ``max_tokens``; only completions have any."""
        prompt = sum(map(tokens_in, call.inputs))
        most, choices = call.params.get("max_tokens"), call.params.get("n")
        if self.name != "completions" or not isinstance(most, int):
            return prompt, 0.0
        return prompt, float(most * (choices if isinstance(choices, int) else 1) * len(call.inputs))

    def merge_key(self, call: WireRequest) -> Hashable:
        """Calls with equal keys may share a request: all but the items is the same, and the items have one shape.

        Raises ``BadRequest`` for parameters that JSON cannot hold.
        """
        params = jsonio.write(call.model, "", None, dict(sorted(call.params.items())), all_text=True)
        headers = frozenset((name.lower(), value) for name, value in (call.headers or {}).items())
        return self.name, frozenset(map(shape_of, call.inputs)), params, headers

    def encode(self, call: WireRequest, model: str) -> bytes:  # noqa: ARG002 - as all codecs have it
        raise TypeError(f"{self.name} is asked of a server in its dialect; bind the call to an endpoint first")

    def decode(self, body: bytes, call: WireRequest) -> ListAnswer:  # noqa: ARG002 - as all codecs have it
        raise TypeError(f"{self.name} is answered by a server in its dialect; bind the call to an endpoint first")

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    def _valid(self, raw: Any, index: int) -> Any:
        try:
            return self.item(raw)
        except BadRequest as error:
            raise BadRequest(f"item {index}: {error}") from None


class ListCodec(Listing):
    """How one operation is asked of one kind of server. Stateless but for the settings it is made of.

    Attributes:
        path: under the endpoint's base URL, or, if ``native``, under the server's root: beside its ``/v1``.
        member: what the body calls the items.
        has_template: a conversation may be sent as ``messages``, one a body.
        limits: how much one body may hold.
    """

    path: str
    native: ClassVar[bool] = False
    member: ClassVar[str] = "input"
    has_template: ClassVar[bool] = False
    limits: MergeLimits = UNLIMITED

    def __init__(self, operation: Operation, settings: RewardModel) -> None:
        self.operation = operation
        self.settings = settings

    # asking

    def form(self, item: Any) -> Any:
        """The item in the shape in which this server takes it. Raises ``BadRequest`` if it takes it in none."""
        return item

    def mergeable(self, item: Any) -> bool:
        """Whether the item may share a body with others of its shape. Raises ``BadRequest`` as ``form``."""
        return shape_of(self.form(item)) not in LONE

    def measure(self, item: Any) -> tuple[float, int]:
        """Tokens and bytes of an item, roughly: what ``limits`` speak of."""
        return tokens_in(item), bytes_in(item)

    def encode(self, call: WireRequest, model: str) -> bytes:
        """The body. Raises ``BadRequest`` for items that cannot share it, that this server does not take, or that JSON cannot hold."""
        self.operation.check(call.params)
        items = [self.form(item) for item in call.inputs]
        kinds = {shape_of(item) for item in items}
        if len(items) > 1 and kinds & LONE:
            raise BadRequest(
                f"this server takes one {min(kinds & LONE)} per request, not {len(items)}; set RewardModel(template=...) to send texts"
            )
        return self.write(items, model, {**self.defaults(), **call.params})

    def defaults(self) -> dict[str, Any]:
        """Members of the body that hold unless the caller sets them."""
        return {}

    def write(self, items: list[Any], model: str, params: dict[str, Any]) -> bytes:
        """The body of items in their form. ``model`` is sent to all: routers go by it, and servers of one model ignore it."""
        if isinstance(items[0], Chat):
            return jsonio.write(model, "messages", items[0].messages, params, all_text=False)
        return jsonio.write(model, self.member, items, params, all_text=True)

    # reading

    def decode(self, body: bytes, call: WireRequest) -> ListAnswer:
        """A value or an ``InvalidResponse`` for each item. Raises ``Malformed`` if no item has a value, or ``EmbeddedError``."""
        document = reading.read(body)
        rows = self.rows(document, call)
        values = [self._value(row, call) for row in rows]
        if all(isinstance(value, InvalidResponse) for value in values):
            raise Malformed(f"the answer has no {self.operation.name} for any item: {values[0]}")
        sizes = [tokens_in(item) for item in call.inputs]
        return ListAnswer(values, self.usage(document), self.usages(rows), sizes, self.outputs(values))

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        """What the answer has for each item, in their order. Raises ``Malformed``."""
        return reading.in_order(reading.member(document, "data"), len(call.inputs))

    def value(self, row: Any) -> Any:
        """What a row says. Raises ``Unusable``."""
        raise NotImplementedError

    def usage(self, document: Any) -> Usage | None:
        """What the whole request used, if the answer tells."""
        return jsonio.usage_of(document.get("usage")) if isinstance(document, dict) else None

    def usages(self, rows: list[Any]) -> list[Usage | None] | None:  # noqa: ARG002 - for those that do tell
        """What each item used, if the answer tells."""
        return None

    def outputs(self, values: list[Any]) -> list[float] | None:  # noqa: ARG002 - for those that write
        """The size of what was written for each item, if anything was."""
        return None

    # as any codec

    def validate(self, inputs: Any) -> Any:
        return self.operation.validate(inputs)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return self.operation.estimate_tokens(call)

    def merge_key(self, call: WireRequest) -> Hashable:
        return self.operation.merge_key(call)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def _value(self, row: Any, call: WireRequest) -> Any:
        try:
            return self.value(row)
        except reading.InvalidRow as error:
            return InvalidResponse(f"the answer has no usable result for the item: {error}", model=call.model)


class TextCodec(ListCodec):
    """A codec whose server takes texts: a pair becomes one by the template, or a conversation where the server has its own."""

    def form(self, item: Any) -> Any:
        if isinstance(item, Pair):
            if self.settings.template is not None:
                return self.settings.render(item.prompt, item.response)
            if self.has_template:
                return conversation(item)
            raise BadRequest(
                f"{self.path} of this server takes texts, not pairs; set RewardModel(template=...) to join prompt and response"
            )
        if isinstance(item, Chat) and not self.has_template:
            raise BadRequest(f"{self.path} of this server takes no conversations; send the text, or (prompt, response) with a template")
        return item


def conversation(pair: Pair) -> Chat:
    """A pair as the server's own template takes it."""
    return Chat([{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.response}])
