"""The base of all list codecs: one request body with many items, and one response with a value for each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Codec, Malformed, Unbound, WireRequest, WithoutText, ending_of
from qreward.codecs.chat import CHARS_PER_TOKEN, CHAT, is_missing, joined, most_output, tokens_of
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.server_info import Load
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RequestError, RequestTimeout, ServerError
from qreward.results import Usage
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.settings.policies import RewardModel

_BYTES_AROUND_ITEM = 4  # bytes of brackets and a comma
_BYTES_AROUND_ITEMS = 512  # bytes of all other members of a body


class Pair(msgspec.Struct, frozen=True, gc=False):
    """Holds a prompt and a response to the prompt. ``label`` is the correct answer, for servers such as OpenRLHF that accept it."""

    prompt: str
    response: str
    label: Any = None


class Conversation(msgspec.Struct, frozen=True, gc=False):
    messages: list[Any]


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Holds the texts and images of one item. The operation ``moderations`` accepts such items."""

    parts: list[Any]


def pair_item(raw: Any) -> str | Pair | Conversation:
    match raw:
        case str():
            return str.__str__(raw)  # of a subclass too, such as ``numpy.str_``
        case Pair():
            return _pair(raw)
        case {"messages": messages} | Conversation(messages=messages):
            return _chat(messages)
        case {"prompt": prompt, "response": response}:
            return _pair(Pair(prompt, response, raw.get("label")))
        case Mapping():
            raise BadRequest("a dict must have 'prompt' and 'response', or 'messages'")
        case [prompt, response] if isinstance(raw, tuple) or isinstance(response, str | None):
            return _pair(Pair(prompt, response))
        case tuple():
            raise BadRequest(f"a tuple of {len(raw)} cannot be scored; a pair is (prompt, response)")
        case list():
            return _chat(raw)
    raise _not_an_item(raw, "item", "an item to score must be (prompt, response), a text or a list of messages")


def text_item(raw: Any) -> str:
    if isinstance(raw, str):
        return str.__str__(raw)
    raise _not_an_item(raw, "text", "the item must be a text")


def token_item(raw: Any) -> str | list[int]:
    if isinstance(raw, list | tuple) and raw and set(map(type, raw)) == {int}:
        return list(raw)
    if isinstance(raw, str) and raw:
        return str.__str__(raw)
    raise _not_an_item(raw, "input", "the item must be a text, or a list of token ids (int)")


def parts_item(raw: Any) -> str | Parts:
    """Return a text, or the ``Parts`` of a list such as ``[{"type": "text", "text": "..."}]``. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, str | Parts):
        return str.__str__(raw) if isinstance(raw, str) else raw
    if isinstance(raw, list) and raw and all(isinstance(part, Mapping) for part in raw):
        return Parts(raw)
    raise _not_an_item(raw, "input", "an item to moderate must be a text, or a list of parts (dicts) that are one input")


def _not_an_item(raw: object, name: str, rule: str) -> BadRequest:
    if raw is None:
        return BadRequest(f"the {name} is None; leave the item out, or give the {name}")
    return BadRequest(f"{rule}, not {'an empty one' if raw in ('', [], ()) else f'a {type(raw).__name__}'}")


def _pair(pair: Pair) -> Pair | Conversation:
    for name in ("prompt", "response"):
        if getattr(pair, name) is None:
            raise _not_an_item(None, name, "")
    if not isinstance(pair.response, str):
        raise BadRequest(f"the response is a {type(pair.response).__name__}; send a text")
    if isinstance(pair.prompt, str):
        return pair
    return Conversation([*CHAT.validate(pair.prompt), {"role": "assistant", "content": pair.response}])


def _chat(messages: Any) -> Conversation:
    if messages is None:
        raise _not_an_item(None, "messages", "")
    checked = CHAT.validate(messages)
    if is_missing(checked[-1]):
        raise BadRequest("the last message, which is judged, has no content; leave the item out, or give the content")
    return Conversation(checked)


LONE = (Conversation, Parts)
"""Types of items that are sent alone: the body of a request holds only one of them. Items of different types never share a request."""


def tokens_in(item: Any) -> float:
    """Return the number of tokens of an item. For texts, the number is estimated from the number of characters."""
    match item:
        case str():
            return len(item) / CHARS_PER_TOKEN
        case list():
            return float(len(item))
        case Pair():
            return (len(item.prompt) + len(item.response)) / CHARS_PER_TOKEN
        case Conversation():
            return tokens_of(item.messages)
        case _:
            return len(joined(item.parts)) / CHARS_PER_TOKEN


class MergeLimits(msgspec.Struct, frozen=True):
    """Holds the limits of one request. None means that there is no limit.

    Args:
        items: maximum number of items.
        tokens: maximum number of tokens of all items together. ``tokens_in`` estimates the tokens of an item.
        bytes: maximum number of bytes of the body.
    """

    items: int | None = None
    tokens: float | None = None
    bytes: int | None = None

    def with_items(self, most: int | None) -> MergeLimits:
        """Return these limits with the maximum number of items lowered to ``most``. A value below 1 counts as 1. None changes nothing."""
        return self if most is None or (self.items is not None and self.items <= most) else self.of_items(most)

    def of_items(self, items: int) -> MergeLimits:
        """Return these limits with ``items`` as the maximum number of items. A value below 1 counts as 1."""
        return MergeLimits(max(1, items), self.tokens, self.bytes)

    def fitting(self, items: Iterable[Any]) -> int:
        """Return how many items, counted from the first, fit into one request; at least 1, because an item over a limit is sent alone.

        Example:
            >>> MergeLimits(items=2).fitting(["a", "b", "c"])
            2
        """
        most_items, most_tokens, most_bytes = (inf if limit is None else limit for limit in (self.items, self.tokens, self.bytes))
        count, tokens, size = 0, 0.0, _BYTES_AROUND_ITEMS
        for item in items:
            tokens += tokens_in(item) if self.tokens is not None else 0.0
            size += len(jsonio.dumps(item)) + _BYTES_AROUND_ITEM if self.bytes is not None else 0
            if count and (count >= most_items or tokens > most_tokens or size > most_bytes):
                break
            count += 1
        return count


UNLIMITED = MergeLimits()
ALONE = MergeLimits(items=1)

BAD_ITEM_STATUSES = frozenset({400, 413, 422, 424})
"""HTTP statuses that a server may send for a list because of a single bad item."""
NOT_FOUND = 404
"""Status of a server that does not have the route or the model, which no part of a list changes."""
_BAD_ITEM_ERRORS = (BadRequest, ServerError, InvalidResponse, ConnectionFailed, RequestTimeout)


def splits(failure: Failure, count: int) -> bool:
    """Return True if a failed list of ``count`` items must be sent again in two halves, so that in the end only the bad item fails."""
    status = failure.error.status_code if isinstance(failure.error, RequestError) else None
    if count < 2 or failure.misconfigured or status == NOT_FOUND:
        return False
    if failure.kind in (FailureKind.REFUSED, FailureKind.UNSUITABLE):  # UNSUITABLE: an item is too long for this model
        return not isinstance(failure.error, InvalidResponse)  # the server ignores n, so it would ignore it in each half
    return status in BAD_ITEM_STATUSES and failure.kind not in (FailureKind.OVERLOADED, FailureKind.QUOTA)


def may_have_a_bad_item(error: BaseException) -> bool:
    """Return True if a list may have failed with this error because of a single bad item."""
    if not isinstance(error, _BAD_ITEM_ERRORS) or error.status_code == NOT_FOUND:
        return False
    return error.status_code is None or not isinstance(error, InvalidResponse)


_MOST = 2**53  # largest total that ``share`` divides; above this number, floats cannot represent every whole number


class RewardScore(float):
    """Holds a reward: a float with the other numbers that the server returned.

    Attributes:
        attributes: name -> number, such as ``helpfulness`` and ``correctness``. Empty if the server returns only one number.

    Example:
        >>> score = RewardScore(1.25, {"helpfulness": 1.25, "correctness": 0.43})
        >>> score + 1, score.attributes["correctness"]
        (2.25, 0.43)
    """

    attributes: dict[str, float]

    def __new__(cls, value: float, attributes: dict[str, float] | None = None) -> RewardScore:
        score = super().__new__(cls, value)
        score.attributes = attributes or {}
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return RewardScore, (float(self), self.attributes)


class ItemAnswer(msgspec.Struct, gc=False):
    value: Any
    usage: Usage | None
    estimated: bool

    def build(self) -> Any:
        return self.value

    def text(self) -> str:
        text = self._first().get("text")
        return text if isinstance(text, str) else ""

    @property
    def finish_reason(self) -> str | None:
        return ending_of(self._first().get("finish_reason"))

    def _first(self) -> dict[str, Any]:
        first = self.value[0] if isinstance(self.value, list) and self.value else None
        return first if isinstance(first, dict) else {}


class ListAnswer(WithoutText, gc=False):
    items: list[Any]
    usage: Usage | None
    each: Sequence[Usage | None] | None
    sizes: list[float]
    outputs: list[float] | None = None
    kind: type[ItemAnswer] = ItemAnswer

    def build(self) -> list[Any]:
        """Return the values. Raises the error of the first failed item."""
        for item in self.items:
            if isinstance(item, InvalidResponse):
                raise item
        return self.items

    def shares(self) -> list[ItemAnswer | InvalidResponse]:
        whole, usages = self.usage, self.each or [self.usage] * len(self.items)
        if estimated := self.each is None and whole is not None and len(self.items) > 1:
            prompts, totals = share(whole.prompt_tokens, self.sizes), share(whole.total_tokens, self.sizes)
            outputs = share(whole.completion_tokens, self.outputs or self.sizes)
            if self.outputs is not None:
                totals = [None if None in pair else sum(pair) for pair in zip(prompts, outputs, strict=True)]  # type: ignore[arg-type]
            usages = list(map(Usage, prompts, outputs, totals))
        return [
            item if isinstance(item, InvalidResponse) else self.kind(item, usage, estimated)
            for item, usage in zip(self.items, usages, strict=True)
        ]


def share(total: int | None, sizes: Sequence[float]) -> list[int | None]:
    """Split a total into integers in proportion to the sizes (Hamilton's method of largest remainders)."""
    if total is None or not 0 <= total <= _MOST:
        return [None] * len(sizes)
    whole = sum(sizes)
    exact = [total * size / whole for size in sizes] if whole > 0 else [total / len(sizes)] * len(sizes)
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return list(counts)


class Choices(ItemAnswer, gc=False):
    def build(self) -> Any:
        kind = jsonio.openai_type("CompletionChoice")
        return [kind.construct(**{"logprobs": None, **choice}) for choice in self.value]


class Moderated(ItemAnswer, gc=False):
    def build(self) -> Any:
        return jsonio.openai_type("Moderation").construct(**self.value)


class Operation(Unbound):
    """Defines an operation on a list of items, such as ``score``."""

    def __init__(self, name: str, item: Callable[[Any], Any], check: Callable[[Mapping[str, Any]], None] = lambda _: None) -> None:
        self.name = name
        self.item = item
        self.check = check

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        output = most_output(call.params) * len(call.inputs) if self.name == "completions" else 0.0
        return sum(map(tokens_in, call.inputs)), output


class ListCodec(Codec):
    """Encodes the requests and decodes the responses of one operation, for one kind of server.

    To support another server, write a subclass, set its attributes, and override the methods in which the server differs.

    Attributes:
        path: path of the API, such as ``/reward``.
        native: False if ``path`` is relative to the endpoint's ``base_url``; True if ``path`` is relative to the root of the server, which
            is ``base_url`` without ``/v1``.
        member: name of the body's member with the items.
        texts: True if the server takes texts as items.
        pairs: True if the server takes pairs as items. A pair becomes a text if ``RewardModel(template=...)`` is set. Without a template,
            a pair becomes a conversation if the server takes conversations but no pairs.
        chats: True if the server takes conversations as items. Each conversation is sent alone in a body, as ``messages``.
        rows_in: name of the response's member with a list of one row per item; ``""`` if the response itself is the list.
        value_in: name of the row's member with the reward. If a row is not an object, the row itself is the reward.
        limits: the limits of one body.
        answer: the type of an item's answer. Its ``build`` returns the result for the caller.
        operation: the operation.
        settings: the :class:`RewardModel` of the endpoint.

    Example:
        class AcmeReward(ListCodec):    # POST /reward {"texts": ["a", "b"]} -> {"rewards": [0.5, 0.25]}
            path = "/reward"
            native = True
            member = "texts"
            rows_in = "rewards"
    """

    member: ClassVar[str] = "input"
    texts: ClassVar[bool] = True
    pairs: ClassVar[bool] = False
    chats: ClassVar[bool] = False
    rows_in: ClassVar[str] = "data"
    value_in: ClassVar[str] = "score"
    limits: MergeLimits = UNLIMITED
    answer: ClassVar[type[ItemAnswer]] = ItemAnswer

    def __init__(self, operation: Operation, settings: RewardModel) -> None:
        self.operation = operation
        self.settings = settings

    def form(self, item: Any) -> Any:
        """Return the item in a form that this server accepts. Raises ``BadRequest`` if there is no such form."""
        if type(item) is str and self.texts:
            return item
        if isinstance(item, Pair):
            if self.texts and self.settings.template is not None:
                return self.settings.render(item.prompt, item.response)
            if self.pairs:
                return item
            if self.chats:
                return Conversation([{"role": "user", "content": item.prompt}, {"role": "assistant", "content": item.response}])
            raise BadRequest(
                f"{self.path} of this server takes texts, not pairs; set RewardModel(template=...) to join prompt and response"
            )
        if isinstance(item, Conversation) and not self.chats:
            raise BadRequest(f"{self.path} of this server takes no conversations; send (prompt, response){', or a text' * self.texts}")
        if isinstance(item, str):
            what = "conversations" if self.chats else "pairs"
            raise BadRequest(f"{self.path} of this server judges {what}, not texts; send (prompt, response)")
        return item

    def mergeable(self, item: Any) -> bool:
        """Return True if the item may share a body with others of its kind. Raises ``BadRequest`` if the server does not accept it."""
        return not isinstance(self.form(item), LONE)

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the body. Raises ``BadRequest`` if the items cannot share a body, or if the server or JSON does not take them."""
        self.operation.check(call.params)
        items = [self.form(item) for item in call.inputs]
        if len(items) > 1 and (lone := next((item for item in items if isinstance(item, LONE)), None)) is not None:
            kind = "chat" if isinstance(lone, Conversation) else "parts"
            raise BadRequest(f"this server takes one {kind} per request, not {len(items)}; set RewardModel(template=...) to send texts")
        body = self.body(items)
        if taken := body.keys() & call.params.keys():
            raise BadRequest(f"{min(taken)!r} holds the items in the body of {self.path}; leave it out of the parameters")
        params = {**body, **self.defaults(), **call.params}
        name = next(iter(params))
        inputs = params.pop(name)
        return jsonio.write(model, name, inputs, params, all_text=type(items[0]) in (str, list))

    def body(self, items: list[Any]) -> dict[str, Any]:
        """Return the members of the body with the items. ``items`` are results of ``form``."""
        if isinstance(items[0], Conversation):
            return {"messages": items[0].messages}
        return {self.member: items[0].parts if isinstance(items[0], Parts) else items}

    def defaults(self) -> dict[str, Any]:
        """Return further members of the body, without ``model``. A parameter of the caller replaces the member with the same name."""
        return {}

    def decode(self, body: bytes, call: WireRequest) -> ListAnswer:
        """Return the response, with a value or an ``InvalidResponse`` for each item. Raises ``EmbeddedError``, and ``Malformed`` if no item
        has a value or the response does not have the expected form."""
        document = parsing.read(body)
        try:
            rows = self.rows(document, call)
            values = list[Any]()
            for row in rows:
                try:
                    values.append(self.value(row))
                except parsing.InvalidRow as error:
                    values.append(InvalidResponse(f"the answer has no usable result for the item: {error}", model=call.model))
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # raised by a codec for an unexpected response
            raise Malformed(f"the answer has another form than {type(self).__name__} expects ({type(error).__name__})") from error
        if all(isinstance(value, InvalidResponse) for value in values):
            raise Malformed(f"the answer has no {self.operation.name} for any item: {values[0]}")
        usage, each = jsonio.usage_of(document.get("usage")) if isinstance(document, dict) else None, self.usages(rows)
        if each is not None:
            tokens = sum(used.prompt_tokens or 0 for used in each)
            usage = Usage(tokens, None, tokens)
        return ListAnswer(values, usage, each, [tokens_in(item) for item in call.inputs], self.outputs(values), self.answer)

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        """Return the row of each item, in the order of the items. Raises ``Malformed`` if the rows do not match the items."""
        return parsing.in_order(parsing.member(document, self.rows_in), len(call.inputs))

    def value(self, row: Any) -> Any:
        """Return the value of a row. Raises ``InvalidRow`` if the row has no valid value."""
        return RewardScore(parsing.number(parsing.row_of(row).get(self.value_in) if isinstance(row, dict) else row))

    def usages(self, rows: list[Any]) -> list[Usage] | None:  # noqa: ARG002 - for subclasses
        """Return the usage of each item (prompt tokens), or None if the rows do not contain it."""
        return None

    def outputs(self, values: list[Any]) -> list[float] | None:  # noqa: ARG002 - for subclasses
        """Return the size of each item's generated text, or None if the operation generates no text."""
        return None

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return self.operation.estimate_tokens(call)


class NumberCodec(ListCodec):
    last: ClassVar[bool] = False

    def value(self, row: Any) -> RewardScore:
        settings, name = self.settings, self.value_in
        values = parsing.numbers(parsing.row_of(row).get(name), name)
        parsing.check_labels(row.get("label"), values, settings.labels)
        return RewardScore(parsing.by_position(values, settings.label, settings.labels, last=self.last, what=name))


@dataclass(frozen=True)
class ServerKind:
    """Defines a kind of server: the codec of each operation, and the routes that report the state of the server.

    Args:
        name: value of ``Endpoint.kind``.
        codecs: name of an operation (``score``, ``classify``, ``rerank``, ``embeddings``, ``completions``, ``moderations``) ->
            :class:`ListCodec` of this operation. If an operation has several codecs, the value is a mapping of ``RewardModel.route`` ->
            codec, with the key ``""`` for the default.
        probe: paths of the GET requests of a probe, relative to the root of the server. If neither ``readers`` nor ``server_info.READERS``
            has a function for a path, the status of the response shows whether the server is ready.
        info: path of a GET request whose response changes only when the server restarts, such as a response with the limits of the server.
            None if there is no such path.
        readers: path -> function that parses the response body, for paths that are not in ``server_info.READERS``.
        chat: True if the server also serves chat completions.
        lists_models: True if the server lists its models at ``/v1/models`` and rejects requests for all other models.
    """

    name: str
    codecs: Mapping[str, type[ListCodec] | Mapping[str, type[ListCodec]]]
    probe: tuple[str, ...] = ()
    info: str | None = None
    readers: Mapping[str, Callable[[bytes], Load]] = field(default_factory=dict)
    chat: bool = False
    lists_models: bool = False

    def routes(self, operation: str) -> Mapping[str, type[ListCodec]]:
        """Return the mapping of route -> codec for an operation; an empty mapping if the operation is not supported."""
        found = self.codecs.get(operation, {})
        return {"": found} if isinstance(found, type) else found
