"""What a collector collects: how items become one call, how many go into it, and what each gets out of the answer.

An answer with the vectors of several callers, taken apart: each gets a document as if it had asked alone.

Vectors stay as they came, for nobody may ever look at them. Knows the members of the answer, nothing of who asked.

From a caller's arguments to items that may be merged: what is asked of them, checked once for all that belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.embeddings import EMBEDDINGS, EmbeddingsAnswer
from qreward.codecs.rewards.answers import Choices, ItemAnswer, Moderated, share
from qreward.codecs.rewards.base import ALONE, TEXT, TOKENS, MergeLimits, Operation, shape_of, tokens_in
from qreward.codecs.rewards.registry import CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE, codec_of, settings_of
from qreward.errors import BadRequest, ConfigError, InvalidResponse
from qreward.options import preparer
from qreward.results import Answered, Usage
from qreward.settings.policies import Endpoint

_Document = dict[str, msgspec.Raw]
_DOCUMENT = msgspec.json.Decoder(_Document)
_ROWS = msgspec.json.Decoder(list[_Document])
_INDEX = msgspec.json.Decoder(int)


class SharedEmbeddings(EmbeddingsAnswer, gc=False):
    """Embeddings that came with those of others; the usage is a share, by the size of the inputs."""

    estimated: bool = True


def parts_of(answer: EmbeddingsAnswer, counts: Sequence[int], sizes: Sequence[float]) -> list[EmbeddingsAnswer | InvalidResponse]:
    """One answer for each caller, of so many vectors and of inputs of such a size.

    An answer that is too odd to be taken apart with certainty gives an error to all, so that they ask again, each alone.
    """
    try:
        document = _DOCUMENT.decode(answer.body)
        rows = _in_order(_ROWS.decode(document["data"]))
    except (*jsonio.REFUSED, KeyError):
        odd = f"an answer for {len(counts)} callers could not be taken apart"
        return [InvalidResponse(odd, model=answer.model) for _ in counts]
    used = answer.usage
    prompts = share(used.prompt_tokens if used else None, sizes)
    totals = share(used.total_tokens if used else None, sizes)
    parts: list[EmbeddingsAnswer | InvalidResponse] = []
    start = 0
    for count, prompt, total in zip(counts, prompts, totals, strict=True):
        usage = None if used is None else Usage(prompt, None, total)
        body = _document(document, rows[start : start + count], usage)
        parts.append(SharedEmbeddings(body, answer.model, usage))
        start += count
    return parts


def _in_order(rows: list[_Document]) -> list[_Document]:
    """By ``index`` if the indexes are 0..n-1 in some order; else as they came."""
    try:
        indexes = [_INDEX.decode(row["index"]) for row in rows]
    except (*jsonio.REFUSED, KeyError):
        return rows
    if sorted(indexes) != list(range(len(rows))):
        return rows
    return [row for _, row in sorted(zip(indexes, rows, strict=True), key=lambda pair: pair[0])]


def _document(whole: _Document, rows: list[_Document], usage: Usage | None) -> bytes:
    data = [{**row, "index": index} for index, row in enumerate(rows)]
    told = {} if usage is None else {"usage": {"prompt_tokens": usage.prompt_tokens or 0, "total_tokens": usage.total_tokens or 0}}
    return msgspec.json.encode({**whole, "data": data, **told})


class MergeFormat(Protocol):
    """One kind of list.

    Attributes:
        spreads: a list may be shorter than it could be, so that several requests share the work.
    """

    @property
    def spreads(self) -> bool: ...

    def shape(self, call: WireRequest) -> Hashable:
        """Calls of different shapes share no request."""

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:
        """How much a request to an endpoint may hold of items such as this call's."""

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        """How many of the calls, from the first on, go into one request; at least 1."""

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        """One call that asks for all."""

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
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

    def shape(self, call: WireRequest) -> Hashable:
        return shape_of(call.inputs[0])

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:
        try:
            codec = codec_of(endpoint.kind, self._operation, settings_of(endpoint))
            return codec.limits if codec.mergeable(call.inputs[0]) else ALONE
        except (ConfigError, BadRequest):  # this endpoint does not take it, and will say so
            return ALONE

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        if limits.tokens is None and limits.bytes is None:
            return len(calls) if limits.items is None else min(len(calls), limits.items)
        return limits.fitting(call.inputs[0] for call in calls)

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        first = calls[0]
        return (
            first
            if len(calls) == 1
            else WireRequest(first.codec, first.model, [call.inputs[0] for call in calls], first.params, first.headers)
        )

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:  # noqa: ARG002 - as all have it
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

    def shape(self, call: WireRequest) -> Hashable:
        return TEXT if isinstance(inputs_of(call)[0], str) else TOKENS

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:  # noqa: ARG002 - all shapes are taken
        try:
            return codec_of(endpoint.kind, EMBED, settings_of(endpoint)).limits
        except ConfigError:
            return ALONE

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        inputs = [inputs_of(call) for call in calls]
        held = limits.fitting(chain.from_iterable(inputs))
        return max(1, sum(end <= held for end in accumulate(map(len, inputs))))

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        first = calls[0]
        if len(calls) == 1:
            return first
        return WireRequest(first.codec, first.model, list(chain.from_iterable(map(inputs_of, calls))), first.params, first.headers)

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
        if len(calls) == 1:
            return [answer]
        inputs = [inputs_of(call) for call in calls]
        return parts_of(answer, [len(each) for each in inputs], [sum(map(tokens_in, each)) for each in inputs])


def inputs_of(call: WireRequest) -> list[Any]:
    """The inputs of a call for embeddings; a text, or the tokens of one, are one."""
    inputs = call.inputs
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else list(inputs)


class MergeSpec:
    """What is asked of each item of a call or a batch.

    Args:
        listing: how such items are merged.
        blank: the call without an item.
        call: makes an item into the call that it would be alone, or raises ``BadRequest``.
        key: equal for all that may share a request, but for the shape of the items.
    """

    __slots__ = ("_key", "blank", "call", "listing")

    def __init__(self, listing: MergeFormat, blank: WireRequest, call: Callable[[Any], WireRequest], key: Hashable) -> None:
        self.listing = listing
        self.blank = blank
        self.call = call
        self._key = key

    def calls(self, name: str, items: Iterable[Any]) -> list[WireRequest]:
        """Several items of one argument. Raises ``BadRequest`` saying which is wrong."""
        calls = []
        for index, item in enumerate(items):
            try:
                calls.append(self.call(item))
            except BadRequest as error:
                raise BadRequest(f"{name}[{index}]: {error}") from None
        return calls

    def key(self, call: WireRequest) -> Hashable:
        """Calls of equal keys may share a request."""
        return self._key, self.listing.shape(call)


_LISTS = {operation: Items(operation, spreads=operation is not RERANK) for operation in (SCORE, CLASSIFY, RERANK)}
_LISTS |= {COMPLETE: Items(COMPLETE, built=Choices), MODERATE: Items(MODERATE, built=Moderated)}
"""A ranking is not cut up without need: there are models that look at all documents together."""
_EMBEDDINGS = Embeddings()


class _NoItems:
    """In place of a codec, while there is no item."""

    path = ""

    @staticmethod
    def validate(_inputs: Any) -> list[Any]:
        return []


def asking(
    operation: Operation,
    model: str,
    params: Mapping[str, Any],
    headers: Mapping[str, str] | None,
    body: Mapping[str, Any] | None,
) -> MergeSpec:
    """What is asked by an operation of the wire. Raises ``ConfigError`` or ``BadRequest`` for what the items share."""
    checked = preparer(_NoItems(), model, params, headers, body)(None)  # type: ignore[arg-type]
    operation.check(checked.params)
    blank = WireRequest(operation, model, [], checked.params, checked.headers)
    item = operation.item

    def call(raw: Any) -> WireRequest:
        return WireRequest(operation, model, [item(raw)], blank.params, blank.headers)

    return MergeSpec(_LISTS[operation], blank, call, operation.merge_key(blank))


def asking_embeddings(
    model: str, params: Mapping[str, Any], headers: Mapping[str, str] | None, body: Mapping[str, Any] | None
) -> MergeSpec:
    """The same for embeddings, whose items are whole calls."""
    call = preparer(EMBEDDINGS, model, params, headers, body)
    checked = preparer(_NoItems(), model, params, headers, body)(None)  # type: ignore[arg-type]
    blank = WireRequest(EMBEDDINGS, model, [], checked.params, checked.headers)
    key = EMBED.merge_key(WireRequest(EMBED, model, [], checked.params, checked.headers))
    return MergeSpec(_EMBEDDINGS, blank, call, key)
