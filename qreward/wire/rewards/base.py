"""What all codecs of lists share: one body of many items, one answer of as many values. Knows no server's dialect."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar

from qreward.errors import BadRequest, InvalidResponse
from qreward.results import Usage
from qreward.reward_policies import RewardModel
from qreward.wire import jsonio
from qreward.wire.base import Call, Malformed
from qreward.wire.rewards import items as shapes
from qreward.wire.rewards import reading
from qreward.wire.rewards.answers import ListAnswer
from qreward.wire.rewards.items import Chat, Pair, bytes_in, shape_of, tokens_in
from qreward.wire.rewards.merging import UNLIMITED, MergeLimits

LONE = frozenset({shapes.CHAT_ITEM, shapes.PARTS})
"""Shapes of which a body holds one."""


class Listing:
    """A codec whose calls have lists of items for inputs."""


class Operation(Listing):
    """Something that is asked about a list of items, before it is known which server will answer.

    It is the ``codec`` of a :class:`~qreward.wire.base.Call` whose ``inputs`` are the items. Everything that does not depend on the
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

    def estimate_tokens(self, call: Call) -> tuple[float, float]:
        """Items by their characters, output by ``max_tokens``; only completions have any."""
        prompt = sum(map(tokens_in, call.inputs))
        most, choices = call.params.get("max_tokens"), call.params.get("n")
        if self.name != "completions" or not isinstance(most, int):
            return prompt, 0.0
        return prompt, float(most * (choices if isinstance(choices, int) else 1) * len(call.inputs))

    def merge_key(self, call: Call) -> Hashable:
        """Calls with equal keys may share a request: all but the items is the same, and the items have one shape.

        Raises ``BadRequest`` for parameters that JSON cannot hold.
        """
        params = jsonio.write(call.model, "", None, dict(sorted(call.params.items())), all_text=True)
        headers = frozenset((name.lower(), value) for name, value in (call.headers or {}).items())
        return self.name, frozenset(map(shape_of, call.inputs)), params, headers

    def encode(self, call: Call, model: str) -> bytes:  # noqa: ARG002 - as all codecs have it
        raise TypeError(f"{self.name} is asked of a server in its dialect; bind the call to an endpoint first")

    def decode(self, body: bytes, call: Call) -> ListAnswer:  # noqa: ARG002 - as all codecs have it
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

    def encode(self, call: Call, model: str) -> bytes:
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

    def decode(self, body: bytes, call: Call) -> ListAnswer:
        """A value or an ``InvalidResponse`` for each item. Raises ``Malformed`` if no item has a value, or ``EmbeddedError``."""
        document = reading.read(body)
        rows = self.rows(document, call)
        values = [self._value(row, call) for row in rows]
        if all(isinstance(value, InvalidResponse) for value in values):
            raise Malformed(f"the answer has no {self.operation.name} for any item: {values[0]}")
        sizes = [tokens_in(item) for item in call.inputs]
        return ListAnswer(values, self.usage(document), self.usages(rows), sizes, self.outputs(values))

    def rows(self, document: Any, call: Call) -> list[Any]:
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

    def estimate_tokens(self, call: Call) -> tuple[float, float]:
        return self.operation.estimate_tokens(call)

    def merge_key(self, call: Call) -> Hashable:
        return self.operation.merge_key(call)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    def _value(self, row: Any, call: Call) -> Any:
        try:
            return self.value(row)
        except reading.Unusable as error:
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
