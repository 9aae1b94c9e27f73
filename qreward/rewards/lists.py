"""What a collector collects: how items become one call, how many go into it, and what each gets out of the answer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol

from qreward.errors import BadRequest, ConfigError, InvalidResponse
from qreward.policies import Endpoint
from qreward.results import Answered
from qreward.rewards.embedded import parts_of
from qreward.wire.base import Call
from qreward.wire.rewards.answers import ItemAnswer
from qreward.wire.rewards.base import Operation
from qreward.wire.rewards.dialects import EMBED, codec_of, settings_of
from qreward.wire.rewards.items import TEXT, TOKENS, shape_of, tokens_in
from qreward.wire.rewards.merging import ALONE, MergeLimits


class Listing(Protocol):
    """One kind of list.

    Attributes:
        spreads: a list may be shorter than it could be, so that several requests share the work.
    """

    @property
    def spreads(self) -> bool: ...

    def shape(self, call: Call) -> Hashable:
        """Calls of different shapes share no request."""

    def limits(self, endpoint: Endpoint, call: Call) -> MergeLimits:
        """How much a request to an endpoint may hold of items such as this call's."""

    def fitting(self, limits: MergeLimits, calls: Sequence[Call]) -> int:
        """How many of the calls, from the first on, go into one request; at least 1."""

    def merged(self, calls: Sequence[Call]) -> Call:
        """One call that asks for all."""

    def shares(self, answer: Any, calls: Sequence[Call]) -> Sequence[Answered | InvalidResponse]:
        """What each call gets."""


class Items:
    """Lists of single items, each of which gets a value of its own: scores, labels, rankings.

    Args:
        built: what an item's answer is given out as, if not as it came.
    """

    def __init__(self, operation: Operation, *, spreads: bool = True, built: type[ItemAnswer] | None = None) -> None:
        self._operation = operation
        self._built = built
        self.spreads = spreads

    def shape(self, call: Call) -> Hashable:
        return shape_of(call.inputs[0])

    def limits(self, endpoint: Endpoint, call: Call) -> MergeLimits:
        try:
            codec = codec_of(endpoint.kind, self._operation, settings_of(endpoint))
            return codec.limits if codec.mergeable(call.inputs[0]) else ALONE
        except (ConfigError, BadRequest):  # this endpoint does not take it, and will say so
            return ALONE

    def fitting(self, limits: MergeLimits, calls: Sequence[Call]) -> int:
        if limits.tokens is None and limits.bytes is None:
            return len(calls) if limits.items is None else min(len(calls), limits.items)
        return limits.fitting(call.inputs[0] for call in calls)

    def merged(self, calls: Sequence[Call]) -> Call:
        first = calls[0]
        return first if len(calls) == 1 else Call(first.codec, first.model, [call.inputs[0] for call in calls], first.params, first.headers)

    def shares(self, answer: Any, calls: Sequence[Call]) -> Sequence[Answered | InvalidResponse]:  # noqa: ARG002 - as all have it
        found: Sequence[ItemAnswer | InvalidResponse] = answer.shares()
        built = self._built
        if built is None:
            return found
        return [built(each.value, each.usage, each.estimated) if isinstance(each, ItemAnswer) else each for each in found]


class Embeddings:
    """Lists of whole calls for embeddings: each gets the answer that it would have got alone.

    A call that goes alone is sent as it was given, and gets what came. So one that holds more than a server takes fails as it would have.
    """

    spreads = True

    def shape(self, call: Call) -> Hashable:
        return TEXT if isinstance(inputs_of(call)[0], str) else TOKENS

    def limits(self, endpoint: Endpoint, call: Call) -> MergeLimits:  # noqa: ARG002 - all shapes are taken
        try:
            return codec_of(endpoint.kind, EMBED, settings_of(endpoint)).limits
        except ConfigError:
            return ALONE

    def fitting(self, limits: MergeLimits, calls: Sequence[Call]) -> int:
        inputs = [inputs_of(call) for call in calls]
        held = limits.fitting(chain.from_iterable(inputs))
        return max(1, sum(end <= held for end in accumulate(map(len, inputs))))

    def merged(self, calls: Sequence[Call]) -> Call:
        first = calls[0]
        if len(calls) == 1:
            return first
        return Call(first.codec, first.model, list(chain.from_iterable(map(inputs_of, calls))), first.params, first.headers)

    def shares(self, answer: Any, calls: Sequence[Call]) -> Sequence[Answered | InvalidResponse]:
        if len(calls) == 1:
            return [answer]
        inputs = [inputs_of(call) for call in calls]
        return parts_of(answer, [len(each) for each in inputs], [sum(map(tokens_in, each)) for each in inputs])


def inputs_of(call: Call) -> list[Any]:
    """The inputs of a call for embeddings; a text, or the tokens of one, are one."""
    inputs = call.inputs
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else list(inputs)
