"""How items are merged into one request, how many fit, and how the response is split among them.

A ``MergeSpec`` is made from the arguments of a call or batch; what its items share is validated once. A merged embeddings response is
split into one document per call, as if each had been sent alone. The vectors are copied without being parsed, because callers may never
read them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.embeddings import EMBEDDINGS, EmbeddingsAnswer, inputs_of
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
    """Embeddings of one call from a merged request. Its usage is a share of the request's, in proportion to the size of its inputs."""

    estimated: bool = True


def parts_of(answer: EmbeddingsAnswer, counts: Sequence[int], sizes: Sequence[float]) -> list[EmbeddingsAnswer | InvalidResponse]:
    """Split a merged embeddings response into one response per call.

    If the response cannot be split with certainty, every call receives an ``InvalidResponse``, so that each is sent again alone.

    Args:
        counts: the number of vectors of each call.
        sizes: the size of the inputs of each call; usage is shared in this proportion.
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
    """Sort rows by ``index`` if the indexes are 0..n-1 in some order; otherwise keep their order."""
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
    """How items of one kind are merged into a request.

    Attributes:
        spreads: a request may hold fewer items than it could, so that several requests share the work.
    """

    @property
    def divides(self) -> bool: ...

    def shape(self, call: WireRequest) -> Hashable:
        """The shape of a call. Calls of different shapes never share a request."""

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:
        """The limits of one request to an endpoint, for items like those of ``call``."""

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        """How many of the first calls fit into one request; at least 1."""

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        """Merge the calls into one request."""

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
        """Split the response into one answer or error per call."""


class Items:
    """Merges calls of one item each, which receive one value each: scores, labels, rankings, completions, moderations.

    Args:
        built: the type into which the answer of an item is converted, if any.
    """

    def __init__(self, operation: Operation, *, divides: bool = True, built: type[ItemAnswer] | None = None) -> None:
        self._operation = operation
        self._built = built
        self.divides = divides

    def shape(self, call: WireRequest) -> Hashable:
        return shape_of(call.inputs[0])

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:
        try:
            codec = codec_of(endpoint.kind, self._operation, settings_of(endpoint))
            return codec.limits if codec.mergeable(call.inputs[0]) else ALONE
        except (ConfigError, BadRequest):  # this endpoint does not support it, and sending will report that
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

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:  # noqa: ARG002 - part of the protocol
        found: Sequence[ItemAnswer | InvalidResponse] = answer.shares()
        built = self._built
        if built is None:
            return found
        return [built(each.value, each.usage, each.estimated) if isinstance(each, ItemAnswer) else each for each in found]


class Embeddings:
    """Merges whole embeddings calls. Each receives the response that it would have received alone.

    A call that is sent alone is sent unchanged and receives the response unchanged. One with more inputs than the server accepts fails as
    it would without merging.
    """

    divides = True

    def shape(self, call: WireRequest) -> Hashable:
        return TEXT if isinstance(inputs_of(call)[0], str) else TOKENS

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:  # noqa: ARG002 - all shapes are accepted
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


class MergeSpec:
    """The request that a call or batch makes for each of its items.

    Args:
        listing: how the items are merged.
        blank: the request without items.
        call: converts an item into the request that it would be alone, or raises ``BadRequest``.
        key: merge key without the shape of the items.
    """

    __slots__ = ("_key", "blank", "call", "listing")

    def __init__(self, listing: MergeFormat, blank: WireRequest, call: Callable[[Any], WireRequest], key: Hashable) -> None:
        self.listing = listing
        self.blank = blank
        self.call = call
        self._key = key

    def calls(self, name: str, items: Iterable[Any]) -> list[WireRequest]:
        """Convert the items of an argument. Raises ``BadRequest`` naming the index of an invalid one."""
        calls = []
        for index, item in enumerate(items):
            try:
                calls.append(self.call(item))
            except BadRequest as error:
                raise BadRequest(f"{name}[{index}]: {error}") from None
        return calls

    def key(self, call: WireRequest) -> Hashable:
        """The merge key of a call. Calls with equal keys may share a request."""
        return self._key, self.listing.shape(call)


_LISTS = {operation: Items(operation, divides=operation is not RERANK) for operation in (SCORE, CLASSIFY, RERANK)}
_LISTS |= {COMPLETE: Items(COMPLETE, built=Choices), MODERATE: Items(MODERATE, built=Moderated)}
"""Rankings are split only if a limit requires it: some models compare all documents of a request."""
_EMBEDDINGS = Embeddings()


class _NoItems:
    """Replaces the codec of a request without items."""

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
    """The spec of an operation. Raises ``ConfigError`` or ``BadRequest`` for invalid parameters, headers or body."""
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
    """The spec of embeddings, whose items are whole calls. Raises as ``asking``."""
    call = preparer(EMBEDDINGS, model, params, headers, body)
    checked = preparer(_NoItems(), model, params, headers, body)(None)  # type: ignore[arg-type]
    blank = WireRequest(EMBEDDINGS, model, [], checked.params, checked.headers)
    key = EMBED.merge_key(WireRequest(EMBED, model, [], checked.params, checked.headers))
    return MergeSpec(_EMBEDDINGS, blank, call, key)
