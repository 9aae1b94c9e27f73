"""The base of all list codecs: one request body with many items, one response with as many values. Knows no particular server's API.

This module defines the kinds of items and their validation, the estimates of their size, which items may share a request and how many, and
when a failed request is split.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, CHAT, is_missing, joined
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import ListAnswer
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RequestError, RequestTimeout, ServerError
from qreward.results import Usage
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.settings.policies import RewardModel

TEXT, PAIR, CHAT_ITEM, TOKENS, PARTS = "text", "pair", "chat", "tokens", "parts"
"""The kinds of items. Items of different kinds never share a request."""

_BYTES_AROUND = 16
"""Bytes of JSON syntax per item: quotes, brackets, a comma."""


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A prompt and a response to it.

    Attributes:
        label: the correct answer, for servers that take it (OpenRLHF's ``labels``).
    """

    prompt: str
    response: str
    label: Any = None


class Conversation(msgspec.Struct, frozen=True, gc=False):
    """A conversation whose last message is scored."""

    messages: list[Any]


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Texts and images that form one item, as in moderations."""

    parts: list[Any]


def pair_item(raw: Any) -> str | Pair | Conversation:
    """Return an item to score: a text, ``(prompt, response)``, or a conversation. A conversation as prompt is joined with the response.

    Raises ``BadRequest`` for anything else.
    """
    if isinstance(raw, str):
        return raw
    if isinstance(raw, Pair):
        return _pair(raw.prompt, raw.response, raw.label)
    if isinstance(raw, Conversation):
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
    """Return a text. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, str):
        return raw
    _check_given(raw, "text")
    raise BadRequest(f"the item must be a text, not a {type(raw).__name__}")


def token_item(raw: Any) -> str | list[int]:
    """Return a non-empty text or list of token ids. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, list | tuple) and raw and set(map(type, raw)) == {int}:
        return list(raw)
    if isinstance(raw, str) and raw:
        return raw
    _check_given(raw, "input")
    what = "an empty one" if raw in ("", [], ()) else f"a {type(raw).__name__}"
    raise BadRequest(f"the item must be a text, or a list of token ids (int), not {what}")


def parts_item(raw: Any) -> str | Parts:
    """Return a text, or the ``Parts`` of a list such as ``[{"type": "text", "text": "..."}]``. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, str | Parts):
        return raw
    if isinstance(raw, list) and raw and all(isinstance(part, Mapping) for part in raw):
        return Parts(raw)
    _check_given(raw, "input")
    raise BadRequest(f"an item to moderate must be a text, or a list of parts (dicts) that are one input, not a {type(raw).__name__}")


def shape_of(item: Any) -> str:
    """Return the kind of an item: ``text``, ``pair``, ``chat``, ``tokens`` or ``parts``."""
    return _SHAPES[type(item)]


_SHAPES = {str: TEXT, Pair: PAIR, Conversation: CHAT_ITEM, list: TOKENS, Parts: PARTS}


def tokens_in(item: Any) -> float:
    """Return the tokens of an item: token ids are counted, texts estimated by their characters."""
    return float(len(item)) if isinstance(item, list) else _chars(item) / CHARS_PER_TOKEN


def bytes_in(item: Any) -> int:
    """Estimate the bytes of an item in a body. The estimate is not too small unless the item has many JSON escapes."""
    if isinstance(item, list):
        return sum(len(str(token)) + 1 for token in item) + _BYTES_AROUND
    text = item if isinstance(item, str) else item.prompt + item.response if isinstance(item, Pair) else ""
    if text or isinstance(item, str | Pair):
        return len(text.encode("utf-8", "surrogatepass")) + _BYTES_AROUND
    return len(jsonio.write("", "", item.messages if isinstance(item, Conversation) else item.parts, {}, all_text=False))


def _chars(item: Any) -> int:
    match item:
        case str():
            return len(item)
        case Pair():
            return len(item.prompt) + len(item.response)
        case Conversation():
            return sum(len(joined(message.get("content"))) for message in item.messages)
    return len(joined(item.parts))


def _of_mapping(raw: Mapping[Any, Any]) -> Pair | Conversation:
    if "messages" in raw:
        return _chat(raw["messages"])
    if "response" not in raw or "prompt" not in raw:
        raise BadRequest("a dict must have 'prompt' and 'response', or 'messages'")
    return _pair(raw["prompt"], raw["response"], raw.get("label"))


def _check_given(value: object, name: str) -> None:
    """Raise ``BadRequest`` for None: a missing value, as after a failed generation, must not be scored."""
    if value is None:
        raise BadRequest(f"the {name} is None; leave the item out, or give the {name}")


def _chat(messages: Any) -> Conversation:
    """Return a conversation. Raises ``BadRequest`` if its last message has no content."""
    _check_given(messages, "messages")
    checked = CHAT.validate(messages)
    if is_missing(checked[-1]):
        raise BadRequest("the last message, which is judged, has no content; leave the item out, or give the content")
    return Conversation(checked)


def _pair(prompt: Any, response: Any, label: Any) -> Pair | Conversation:
    _check_given(prompt, "prompt")
    _check_given(response, "response")
    if not isinstance(response, str):
        raise BadRequest(f"the response is a {type(response).__name__}; send a text")
    if isinstance(prompt, str):
        return Pair(prompt, response, label)
    return Conversation([*CHAT.validate(prompt), {"role": "assistant", "content": response}])


SPLITTING = frozenset({400, 413, 422, 424})
"""Statuses of a list for which one item may be the cause: these servers accept all items of a list or none."""

ONES_FAULT = (BadRequest, ServerError, InvalidResponse, ConnectionFailed, RequestTimeout)
"""Errors of a list for which one item may be the cause."""

_OURS = frozenset({FailureKind.REFUSED, FailureKind.UNSUITABLE})  # UNSUITABLE: too long for this model
_NOT_OURS = frozenset({FailureKind.OVERLOADED, FailureKind.QUOTA, FailureKind.UNSENDABLE})


class MergeLimits(msgspec.Struct, frozen=True):
    """How much one request may contain. None sets no limit.

    Attributes:
        items: number of items.
        tokens: estimated tokens of all items.
        bytes: size of the body.
    """

    items: int | None = None
    tokens: float | None = None
    bytes: int | None = None

    def with_items(self, most: int | None) -> MergeLimits:
        """Return the same limits with at most ``most`` items, but at least one. None changes nothing."""
        if most is None or (self.items is not None and self.items <= most):
            return self
        return MergeLimits(max(1, most), self.tokens, self.bytes)

    def of_items(self, items: int) -> MergeLimits:
        """Return the same limits with this number of items, but at least one."""
        return MergeLimits(max(1, items), self.tokens, self.bytes)

    def fitting(self, items: Iterable[Any]) -> int:
        """Return how many of the items, from the first, fit into one request. At least 1: the server rejects an item that is too large.

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
_AROUND = 512  # bytes of a body other than its items


def splits(failure: Failure, count: int) -> bool:
    """Return whether a failed list of ``count`` items is sent again in two halves, so that finally only the invalid item fails.

    After an overload, the whole list waits at the head of its queue instead. A wrong key or address would fail for each half too.
    """
    if count < 2 or failure.misconfigured or failure.kind in _NOT_OURS:
        return False
    status = failure.error.status_code if isinstance(failure.error, RequestError) else None
    return failure.kind in _OURS or status in SPLITTING


def may_be_one_items_fault(error: BaseException) -> bool:
    """Return whether parts of a list that finally failed may succeed.

    A response that was read but is not a list of results for these items is an error of the server, for the whole list. With fewer items,
    the response of such a server may seem valid: a server that always returns one number would be believed for a list of one item.
    """
    read = isinstance(error, InvalidResponse) and error.status_code is not None
    return isinstance(error, ONES_FAULT) and not read


def _over(amount: float, limit: float | None) -> bool:
    return limit is not None and amount > limit


LONE = frozenset({CHAT_ITEM, PARTS})
"""Kinds of which a body contains only one item."""


class Listing:
    """A codec whose inputs are lists of items."""


class Operation(Listing):
    """An operation on a list of items, before an endpoint is chosen.

    It is the ``codec`` of a ``WireRequest`` whose ``inputs`` are the items. It holds everything that does not depend on the server. When
    the call is sent, ``registry.bound`` replaces it with the codec of the endpoint.

    Attributes:
        name: ``score``, ``classify``, ``rerank``, ``embeddings``, ``completions`` or ``moderations``.
        item: function that returns one item, ready to be sent, or raises ``BadRequest``.
        path: empty; it depends on the kind of server.
    """

    path = ""

    def __init__(self, name: str, item: Callable[[Any], Any], check: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.name = name
        self.item = item
        self._check = check

    def validate(self, inputs: Any) -> list[Any]:
        """Return the items, ready to be sent. Raises ``BadRequest`` with the index of an invalid item."""
        if not isinstance(inputs, list | tuple) or not inputs:
            what = "empty" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise BadRequest(f"the items of {self.name} are {what}; send a list of at least one")
        return [self._valid(raw, index) for index, raw in enumerate(inputs)]

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise ``BadRequest`` for parameters that are missing or not supported."""
        if self._check is not None:
            self._check(params)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Estimate the items by their characters, and the output by ``max_tokens``. Only completions have output."""
        prompt = sum(map(tokens_in, call.inputs))
        most, choices = call.params.get("max_tokens"), call.params.get("n")
        if self.name != "completions" or not isinstance(most, int):
            return prompt, 0.0
        return prompt, float(most * (choices if isinstance(choices, int) else 1) * len(call.inputs))

    def merge_key(self, call: WireRequest) -> Hashable:
        """Return a key. Calls with equal keys may share a request: they differ only in their items, which have the same kinds.

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
    """The codec of one operation for one kind of server. Stateless except for its settings.

    Attributes:
        path: relative to the endpoint's base URL, or, if ``native``, to the root of the server, without ``/v1``.
        native: see ``path``.
        member: name of the member of the body that contains the items.
        has_template: a conversation may be sent as ``messages``, one per body.
        limits: how much one body may contain.
    """

    path: str
    native: ClassVar[bool] = False
    member: ClassVar[str] = "input"
    has_template: ClassVar[bool] = False
    limits: MergeLimits = UNLIMITED

    def __init__(self, operation: Operation, settings: RewardModel) -> None:
        self.operation = operation
        self.settings = settings

    # encoding

    def form(self, item: Any) -> Any:
        """Return the item in the form that this server accepts. Raises ``BadRequest`` if it accepts none."""
        return item

    def mergeable(self, item: Any) -> bool:
        """Return whether the item may share a body with others of its kind. Raises ``BadRequest`` like ``form``."""
        return shape_of(self.form(item)) not in LONE

    def measure(self, item: Any) -> tuple[float, int]:
        """Return the estimated tokens and bytes of an item, which count against ``limits``."""
        return tokens_in(item), bytes_in(item)

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the body. Raises ``BadRequest`` for items that cannot share it, that the server rejects, or that JSON cannot hold."""
        self.operation.check(call.params)
        items = [self.form(item) for item in call.inputs]
        kinds = {shape_of(item) for item in items}
        if len(items) > 1 and kinds & LONE:
            raise BadRequest(
                f"this server takes one {min(kinds & LONE)} per request, not {len(items)}; set RewardModel(template=...) to send texts"
            )
        return self.write(items, model, {**self.defaults(), **call.params})

    def defaults(self) -> dict[str, Any]:
        """Return members of the body that are sent unless the caller sets them."""
        return {}

    def write(self, items: list[Any], model: str, params: dict[str, Any]) -> bytes:
        """Return the body of items returned by ``form``. ``model`` is always sent: routers need it, and servers of one model ignore it."""
        if isinstance(items[0], Conversation):
            return jsonio.write(model, "messages", items[0].messages, params, all_text=False)
        return jsonio.write(model, self.member, items, params, all_text=True)

    # decoding

    def decode(self, body: bytes, call: WireRequest) -> ListAnswer:
        """Return a value or an ``InvalidResponse`` for each item. Raises ``EmbeddedError``, or ``Malformed`` if no item has a value."""
        document = parsing.read(body)
        rows = self.rows(document, call)
        values = [self._value(row, call) for row in rows]
        if all(isinstance(value, InvalidResponse) for value in values):
            raise Malformed(f"the answer has no {self.operation.name} for any item: {values[0]}")
        sizes = [tokens_in(item) for item in call.inputs]
        return ListAnswer(values, self.usage(document), self.usages(rows), sizes, self.outputs(values))

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        """Return the row of each item, in the order of the items. Raises ``Malformed``."""
        return parsing.in_order(parsing.member(document, "data"), len(call.inputs))

    def value(self, row: Any) -> Any:
        """Return the value of a row. Raises ``InvalidRow``."""
        raise NotImplementedError

    def usage(self, document: Any) -> Usage | None:
        """Return the usage of the whole request, or None if the response does not contain it."""
        return jsonio.usage_of(document.get("usage")) if isinstance(document, dict) else None

    def usages(self, rows: list[Any]) -> list[Usage | None] | None:  # noqa: ARG002 - for subclasses
        """Return the usage of each item, or None if the response does not contain it."""
        return None

    def outputs(self, values: list[Any]) -> list[float] | None:  # noqa: ARG002 - for subclasses
        """Return the size of the generated text of each item, or None if there is none."""
        return None

    # the other methods of Codec

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
        except parsing.InvalidRow as error:
            return InvalidResponse(f"the answer has no usable result for the item: {error}", model=call.model)


class TextCodec(ListCodec):
    """A codec whose server takes texts. A pair becomes a text by the template, or a conversation if the server has a chat template."""

    def form(self, item: Any) -> Any:
        if isinstance(item, Pair):
            if self.settings.template is not None:
                return self.settings.render(item.prompt, item.response)
            if self.has_template:
                return conversation(item)
            raise BadRequest(
                f"{self.path} of this server takes texts, not pairs; set RewardModel(template=...) to join prompt and response"
            )
        if isinstance(item, Conversation) and not self.has_template:
            raise BadRequest(f"{self.path} of this server takes no conversations; send the text, or (prompt, response) with a template")
        return item


def conversation(pair: Pair) -> Conversation:
    """Return a pair as a conversation, for the chat template of the server."""
    return Conversation([{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.response}])
