"""The base of all codecs of lists: one request body with many items, one response with as many values. Knows no particular server's API.

Before an endpoint is chosen, a request has an ``Operation``: it validates items, estimates their size, and says which of them may share a
request. When an endpoint can take it, the ``ListCodec`` of the endpoint's kind encodes the body and decodes the response. A ``ServerKind``
is the record of everything that is known of one kind of server.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import CHARS_PER_TOKEN, CHAT, is_missing, joined, most_output
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import ItemAnswer, ListAnswer, RewardScore
from qreward.codecs.rewards.server_info import Load
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RequestError, RequestTimeout, ServerError
from qreward.results import Usage
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.settings.policies import RewardModel

TEXT, PAIR, CHAT_ITEM, TOKENS, PARTS = "text", "pair", "chat", "tokens", "parts"
"""The kinds of items. Items of different kinds never share a request."""
LONE = frozenset({CHAT_ITEM, PARTS})
"""Kinds of which a body contains only one item."""

_BYTES_AROUND_ITEM = 16  # of JSON syntax: quotes, brackets, a comma
_BYTES_AROUND_ITEMS = 512  # of a body other than its items


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A prompt and a response to it. ``label`` is the correct answer, for servers that take it (OpenRLHF's ``labels``)."""

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
    found = raw
    if isinstance(raw, Mapping):
        if "messages" not in raw and not ("prompt" in raw and "response" in raw):
            raise BadRequest("a dict must have 'prompt' and 'response', or 'messages'")
        found = Conversation(raw["messages"]) if "messages" in raw else Pair(raw["prompt"], raw["response"], raw.get("label"))
    elif isinstance(raw, tuple) or (isinstance(raw, list) and len(raw) == 2 and isinstance(raw[1], str | None)):
        if len(raw) != 2:
            raise BadRequest(f"a tuple of {len(raw)} cannot be scored; a pair is (prompt, response)")
        found = Pair(*raw)
    elif isinstance(raw, list):
        found = Conversation(raw)
    if isinstance(found, Pair):
        return _pair(found)
    if isinstance(found, Conversation):
        return _chat(found.messages)
    raise _not_an_item(raw, "item", "an item to score must be (prompt, response), a text or a list of messages")


def text_item(raw: Any) -> str:
    """Return a text. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, str):
        return raw
    raise _not_an_item(raw, "text", "the item must be a text")


def token_item(raw: Any) -> str | list[int]:
    """Return a non-empty text or list of token ids. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, list | tuple) and raw and set(map(type, raw)) == {int}:
        return list(raw)
    if isinstance(raw, str) and raw:
        return raw
    raise _not_an_item(raw, "input", "the item must be a text, or a list of token ids (int)")


def parts_item(raw: Any) -> str | Parts:
    """Return a text, or the ``Parts`` of a list such as ``[{"type": "text", "text": "..."}]``. Raises ``BadRequest`` for anything else."""
    if isinstance(raw, str | Parts):
        return raw
    if isinstance(raw, list) and raw and all(isinstance(part, Mapping) for part in raw):
        return Parts(raw)
    raise _not_an_item(raw, "input", "an item to moderate must be a text, or a list of parts (dicts) that are one input")


def _not_an_item(raw: object, name: str, rule: str) -> BadRequest:
    """None is a missing value, as after a failed generation."""
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


def shape_of(item: Any) -> str:
    """Return the kind of an item: ``text``, ``pair``, ``chat``, ``tokens`` or ``parts``."""
    return _SHAPES[type(item)]


_SHAPES = {str: TEXT, Pair: PAIR, Conversation: CHAT_ITEM, list: TOKENS, Parts: PARTS}


def tokens_in(item: Any) -> float:
    """Return the tokens of an item: token ids are counted, texts estimated by their characters."""
    match item:
        case str():
            chars = len(item)
        case list():
            return float(len(item))
        case Pair():
            chars = len(item.prompt) + len(item.response)
        case Conversation():
            chars = sum(len(joined(message.get("content"))) for message in item.messages)
        case _:
            chars = len(joined(item.parts))
    return chars / CHARS_PER_TOKEN


def bytes_in(item: Any) -> int:
    """Estimate the bytes of an item in a body. The estimate is not too small unless the item has many JSON escapes."""
    match item:
        case list():
            size = sum(len(str(token)) + 1 for token in item)
        case str():
            size = len(item.encode("utf-8", "surrogatepass"))
        case Pair():
            size = len((item.prompt + item.response).encode("utf-8", "surrogatepass"))
        case _:
            size = len(jsonio.write("", "", item.messages if isinstance(item, Conversation) else item.parts, {}, all_text=False))
    return size + _BYTES_AROUND_ITEM


class MergeLimits(msgspec.Struct, frozen=True):
    """How much one request may contain. None sets no limit.

    Args:
        items: number of items.
        tokens: estimated tokens of all items.
        bytes: size of the body.
    """

    items: int | None = None
    tokens: float | None = None
    bytes: int | None = None

    def with_items(self, most: int | None) -> MergeLimits:
        """Return the same limits with at most ``most`` items, but at least one. None changes nothing."""
        return self if most is None or (self.items is not None and self.items <= most) else self.of_items(most)

    def of_items(self, items: int) -> MergeLimits:
        """Return the same limits with this number of items, but at least one."""
        return MergeLimits(max(1, items), self.tokens, self.bytes)

    def fitting(self, items: Iterable[Any]) -> int:
        """Return how many of the items, from the first, fit into one request. At least 1: the server rejects an item that is too large.

        Example:
            >>> MergeLimits(items=2).fitting(["a", "b", "c"])
            2
        """
        count, tokens, size = 0, 0.0, _BYTES_AROUND_ITEMS
        for item in items:
            tokens += tokens_in(item) if self.tokens is not None else 0.0
            size += bytes_in(item) if self.bytes is not None else 0
            if count and (_over(count + 1, self.items) or _over(tokens, self.tokens) or _over(size, self.bytes)):
                break
            count += 1
        return count


def _over(amount: float, limit: float | None) -> bool:
    return limit is not None and amount > limit


UNLIMITED = MergeLimits()
ALONE = MergeLimits(items=1)

SPLITTING = frozenset({400, 413, 422, 424})
"""Statuses of a list for which one item may be the cause: these servers accept all items of a list or none."""
ONES_FAULT = (BadRequest, ServerError, InvalidResponse, ConnectionFailed, RequestTimeout)
"""Errors of a list for which one item may be the cause."""
_OF_AN_ITEM = frozenset({FailureKind.REFUSED, FailureKind.UNSUITABLE})  # UNSUITABLE: too long for this model
_OF_NO_ITEM = frozenset({FailureKind.OVERLOADED, FailureKind.QUOTA, FailureKind.UNSENDABLE})


def splits(failure: Failure, count: int) -> bool:
    """Return whether a failed list of ``count`` items is sent again in two halves, so that finally only the invalid item fails.

    After an overload, the whole list waits at the head of its queue instead. A wrong key or address would fail for each half too.
    """
    if count < 2 or failure.misconfigured or failure.kind in _OF_NO_ITEM:
        return False
    status = failure.error.status_code if isinstance(failure.error, RequestError) else None
    return failure.kind in _OF_AN_ITEM or status in SPLITTING


def may_be_one_items_fault(error: BaseException) -> bool:
    """Return whether parts of a list that finally failed may succeed.

    A response that was read but is not a list of results for these items is an error of the server, for the whole list. With fewer items,
    the response of such a server may seem valid: a server that always returns one number would be believed for a list of one item.
    """
    read = isinstance(error, InvalidResponse) and error.status_code is not None
    return isinstance(error, ONES_FAULT) and not read


class Operation:
    """An operation on a list of items, before an endpoint is chosen. It is the ``codec`` of a ``WireRequest`` whose ``inputs`` are items.

    Attributes:
        name: such as ``score``.
        item: returns one item, ready to be sent, or raises ``BadRequest``.
        check: raises ``BadRequest`` for parameters that are missing or not supported.
    """

    path = ""

    def __init__(self, name: str, item: Callable[[Any], Any], check: Callable[[Mapping[str, Any]], None] = lambda _: None) -> None:
        self.name = name
        self.item = item
        self.check = check

    def validate(self, inputs: Any) -> list[Any]:
        """Return the items, ready to be sent. Raises ``BadRequest`` with the index of an invalid item."""
        if not isinstance(inputs, list | tuple) or not inputs:
            what = "empty" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise BadRequest(f"the items of {self.name} are {what}; send a list of at least one")
        items = []
        for index, raw in enumerate(inputs):
            try:
                items.append(self.item(raw))
            except BadRequest as error:
                raise BadRequest(f"item {index}: {error}") from None
        return items

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        """Estimate the items by their characters, and the output by ``max_tokens``. Only completions have output."""
        output = most_output(call.params) * len(call.inputs) if self.name == "completions" else 0.0
        return sum(map(tokens_in, call.inputs)), output

    def merge_key(self, call: WireRequest) -> Hashable:
        """Return a key. Calls with equal keys may share a request: they differ only in their items, which have the same kinds.

        Raises ``BadRequest`` for parameters that JSON cannot hold.
        """
        params = jsonio.write(call.model, "", None, dict(sorted(call.params.items())), all_text=True)
        headers = frozenset((name.lower(), value) for name, value in (call.headers or {}).items())
        return self.name, frozenset(map(shape_of, call.inputs)), params, headers

    def encode(self, call: WireRequest, model: str) -> bytes:  # noqa: ARG002 - as all codecs have it
        raise TypeError(f"the body of {self.name} depends on the kind of server; bind the call to an endpoint first")

    def decode(self, body: bytes, call: WireRequest) -> ListAnswer:  # noqa: ARG002 - as all codecs have it
        raise TypeError(f"the response to {self.name} depends on the kind of server; bind the call to an endpoint first")

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"


class ListCodec:
    """How one operation is sent to one kind of server. Subclass it, set the attributes, and override what the server does differently.

    Attributes:
        path: path of the API, such as ``/reward``.
        native: False if ``path`` is relative to the endpoint's ``base_url``; True if it is relative to the root of the server, that is, to
            ``base_url`` without its ``/v1``.
        member: name of the member of the body that holds the items.
        texts, pairs, chats: what the server takes as an item. A pair becomes a text by ``RewardModel(template=...)`` or, if ``pairs`` is
            False and ``chats`` is True, a conversation. A body holds one conversation, as ``messages``.
        rows_in: name of the member of the response that is a list with one row per item; ``""`` if the response itself is that list.
        value_in: name of the member of a row that holds the reward. A row that is not an object is the reward itself.
        limits: how much one body may contain.
        answer: the type of the answer of an item, which builds what callers receive.
        operation: the operation.
        settings: the :class:`RewardModel` of the endpoint.

    Example:
        class AcmeReward(ListCodec):    # POST /reward {"texts": ["a", "b"]} -> {"rewards": [0.5, 0.25]}
            path = "/reward"
            native = True
            member = "texts"
            rows_in = "rewards"
    """

    path: str
    native: ClassVar[bool] = False
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
        """Return the item in the form that this server accepts. Raises ``BadRequest`` if it accepts none."""
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
        """Return whether the item may share a body with others of its kind. Raises ``BadRequest`` like ``form``."""
        return shape_of(self.form(item)) not in LONE

    def encode(self, call: WireRequest, model: str) -> bytes:
        """Return the body. Raises ``BadRequest`` for items that cannot share it, that the server rejects, or that JSON cannot hold."""
        self.operation.check(call.params)
        items = [self.form(item) for item in call.inputs]
        lone = LONE & set(map(shape_of, items))
        if len(items) > 1 and lone:
            count = len(items)
            raise BadRequest(f"this server takes one {min(lone)} per request, not {count}; set RewardModel(template=...) to send texts")
        body = self.body(items)
        if taken := body.keys() & call.params.keys():
            raise BadRequest(f"{min(taken)!r} holds the items in the body of {self.path}; leave it out of the parameters")
        params = {**body, **self.defaults(), **call.params}
        name = next(iter(params))
        inputs = params.pop(name)
        return jsonio.write(model, name, inputs, params, all_text=type(items[0]) in (str, list))

    def body(self, items: list[Any]) -> dict[str, Any]:
        """Return the members of the body that hold the items, as ``form`` returns them."""
        if isinstance(items[0], Conversation):
            return {"messages": items[0].messages}
        return {self.member: items[0].parts if isinstance(items[0], Parts) else items}

    def defaults(self) -> dict[str, Any]:
        """Return further members, which the caller may replace. ``model`` is always sent: routers need it."""
        return {}

    def decode(self, body: bytes, call: WireRequest) -> ListAnswer:
        """Return a value or an ``InvalidResponse`` for each item. Raises ``EmbeddedError``, or ``Malformed`` if no item has a value."""
        document = parsing.read(body)
        try:
            rows = self.rows(document, call)
            values = [self._value(row, call) for row in rows]
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # of a codec that does not expect such a response
            raise Malformed(f"the answer has another form than {type(self).__name__} expects ({type(error).__name__})") from error
        if all(isinstance(value, InvalidResponse) for value in values):
            raise Malformed(f"the answer has no {self.operation.name} for any item: {values[0]}")
        usage, each = jsonio.usage_of(document.get("usage")) if isinstance(document, dict) else None, self.usages(rows)
        if each is not None:
            tokens = sum(used.prompt_tokens or 0 for used in each)
            usage = Usage(tokens, None, tokens)
        return ListAnswer(values, usage, each, [tokens_in(item) for item in call.inputs], self.outputs(values), self.answer)

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        """Return the row of each item, in the order of the items. Raises ``Malformed``."""
        return parsing.in_order(parsing.member(document, self.rows_in), len(call.inputs))

    def value(self, row: Any) -> Any:
        """Return the value of a row. Raises ``InvalidRow``."""
        return RewardScore(parsing.number(parsing.row_of(row).get(self.value_in) if isinstance(row, dict) else row))

    def usages(self, rows: list[Any]) -> list[Usage] | None:  # noqa: ARG002 - for subclasses
        """Return the usage of each item (prompt tokens), or None if the rows do not contain it."""
        return None

    def outputs(self, values: list[Any]) -> list[float] | None:  # noqa: ARG002 - for subclasses
        """Return the size of the generated text of each item, or None if there is none."""
        return None

    def validate(self, inputs: Any) -> Any:
        return self.operation.validate(inputs)

    def estimate_tokens(self, call: WireRequest) -> tuple[float, float]:
        return self.operation.estimate_tokens(call)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def _value(self, row: Any, call: WireRequest) -> Any:
        try:
            return self.value(row)
        except parsing.InvalidRow as error:
            return InvalidResponse(f"the answer has no usable result for the item: {error}", model=call.model)


class NumberCodec(ListCodec):
    """A codec of rows that hold the numbers of a classifier or a vector, of which the settings select the reward.

    Attributes:
        value_in: the member that holds the numbers.
        last: without a setting, the last number is the reward; otherwise there must be only one.
    """

    last: ClassVar[bool] = False

    def value(self, row: Any) -> RewardScore:
        settings, name = self.settings, self.value_in
        values = parsing.numbers(parsing.row_of(row).get(name), name)
        return RewardScore(parsing.by_position(values, settings.label, settings.labels, last=self.last, what=name))


@dataclass(frozen=True)
class ServerKind:
    """A kind of server: how each operation is sent to it, and what it reports about itself.

    Args:
        name: value of ``Endpoint.kind``.
        codecs: name of an operation (``score``, ``classify``, ``rerank``, ``embeddings``, ``completions``, ``moderations``) -> its
            :class:`ListCodec`, or ``RewardModel.route`` -> codec if there are several; the route ``""`` is the default.
        probe: paths of the GET requests of a probe, relative to the root of the server. A path without a reader tells by its status
            whether the server is ready.
        info: path whose response changes only when the server restarts, such as its limits; None if there is none.
        readers: path -> function that parses the body of its response, for paths that are not in ``server_info.READERS``.
        chat: it also serves chat completions.
        lists_models: it lists its models at ``/v1/models``, and rejects others.
    """

    name: str
    codecs: Mapping[str, type[ListCodec] | Mapping[str, type[ListCodec]]]
    probe: tuple[str, ...] = ()
    info: str | None = None
    readers: Mapping[str, Callable[[bytes], Load]] = field(default_factory=dict)
    chat: bool = False
    lists_models: bool = False

    def routes(self, operation: str) -> Mapping[str, type[ListCodec]]:
        """Return route -> codec of an operation; empty if the operation is not supported."""
        found = self.codecs.get(operation, {})
        return {"": found} if isinstance(found, type) else found
