"""Merge items into one request, count how many items fit, and split the response among the items."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec
from msgspec.structs import replace

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.embeddings import EMBEDDINGS, MERGED_EMBEDDINGS, EmbeddingsAnswer
from qreward.codecs.rewards.base import ALONE, MergeLimits, Operation, share, tokens_in
from qreward.codecs.rewards.kinds import EMBED, RERANK, codec_at
from qreward.errors import BadRequest, ConfigError, InvalidResponse
from qreward.options import preparer
from qreward.results import Answered, Usage
from qreward.settings.policies import Endpoint


class MergeSpec:
    """Makes and merges the requests of a call or batch. Its options can be passed as keywords, as to ``preparer``."""

    __slots__ = ("_key", "_operation", "_read", "blank", "divides")

    def __init__(
        self,
        operation: Operation,
        model: str,
        params: Mapping[str, Any],
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        read: Callable[[Any], Any] | None = None,
        **_: object,
    ) -> None:
        shared = preparer(operation, model, params, extra_headers, extra_body)(["an item of any operation"])
        operation.check(shared.params)
        self.blank = WireRequest(operation, model, [], shared.params, shared.headers)
        self.divides = operation is not RERANK
        self._operation, self._read = operation, read or operation.item
        written = jsonio.write(model, "", None, dict(sorted(shared.params.items())), all_text=True)
        self._key = operation.name, written, frozenset((name.lower(), value) for name, value in (shared.headers or {}).items())

    def call(self, item: Any) -> WireRequest:
        """Return a request with one item. Raises ``BadRequest`` for an invalid item."""
        return self._request([self._read(item)])

    def calls(self, name: str, items: Iterable[Any]) -> list[WireRequest]:
        """Return a request for each item. Raises ``BadRequest`` for an invalid item, with ``name`` and its index in the message."""
        calls = []
        for index, item in enumerate(items):
            try:
                calls.append(self.call(item))
            except BadRequest as error:
                raise BadRequest(f"{name}[{index}]: {error}") from None
        return calls

    def key(self, call: WireRequest) -> Hashable:
        """Return the key of a call. Calls with equal keys differ only in their items, so the items may share a request."""
        return self._key, type(self.inputs(call)[0])

    def inputs(self, call: WireRequest) -> list[Any]:
        return call.inputs  # type: ignore[no-any-return]

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:
        try:
            codec = codec_at(endpoint, self._operation)
            return codec.limits if codec.mergeable(self.inputs(call)[0]) else ALONE
        except (ConfigError, BadRequest):  # the endpoint does not support the operation; sending a request raises this error again
            return ALONE

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        """Return how many requests, counted from the first, fit into one merged request; at least 1."""
        if limits.tokens is None and limits.bytes is None:
            return len(calls) if limits.items is None else min(len(calls), limits.items)
        return limits.fitting(call.inputs[0] for call in calls)

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        return calls[0] if len(calls) == 1 else self._request(list(chain.from_iterable(map(self.inputs, calls))))

    def shares(self, answer: Any, _calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
        return answer.shares()  # type: ignore[no-any-return]

    def _request(self, inputs: Any) -> WireRequest:
        blank = self.blank
        return WireRequest(blank.codec, blank.model, inputs, blank.params, blank.headers)


class EmbeddingsSpec(MergeSpec):
    """Makes and merges requests for embeddings. An item is a whole call, and receives the response that it would receive alone."""

    __slots__ = ()

    def __init__(self, model: str, params: Mapping[str, Any], *headers_and_body: Any, **options: Any) -> None:
        super().__init__(EMBED, model, params, *headers_and_body, **options)
        self.blank.codec = EMBEDDINGS

    def call(self, item: Any) -> WireRequest:
        return self._request(EMBEDDINGS.validate(item))

    def inputs(self, call: WireRequest) -> list[Any]:
        inputs = call.inputs
        many = [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
        return [list(each) if isinstance(each, tuple) else each for each in many]

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        inputs = list(map(self.inputs, calls))
        held = limits.fitting(chain.from_iterable(inputs))
        return max(1, sum(end <= held for end in accumulate(map(len, inputs))))

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        request = super().merged(calls)
        return request if len(calls) == 1 else replace(request, codec=MERGED_EMBEDDINGS)

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
        if len(calls) == 1:
            return [answer]
        inputs = list(map(self.inputs, calls))
        return parts_of(answer, list(map(len, inputs)), [sum(map(tokens_in, each)) for each in inputs])


_Document = dict[str, msgspec.Raw]
_DOCUMENT = msgspec.json.Decoder(_Document)
_ROWS = msgspec.json.Decoder(list[_Document])
_INDEX = msgspec.json.Decoder(int)
_NULL = msgspec.Raw(b"null")


class SharedEmbeddings(EmbeddingsAnswer, gc=False):
    """The embeddings of one call, taken from the response to a merged request."""

    estimated: bool = True


def parts_of(answer: EmbeddingsAnswer, counts: Sequence[int], sizes: Sequence[float]) -> list[EmbeddingsAnswer | InvalidResponse]:
    """Split a merged embeddings response into one response per call. The vectors are not parsed, because callers may never read them."""
    try:
        document = _DOCUMENT.decode(answer.body)
        rows = _in_order(_ROWS.decode(document["data"]))
    except (*jsonio.REFUSED, KeyError):
        error = f"the response to {len(counts)} merged calls could not be split"
        return [InvalidResponse(error, model=answer.model) for _ in counts]
    used = answer.usage
    prompts = share(used.prompt_tokens if used else None, sizes)
    totals = share(used.total_tokens if used else None, sizes)
    parts: list[EmbeddingsAnswer | InvalidResponse] = []
    start = 0
    for count, prompt, total in zip(counts, prompts, totals, strict=True):
        own = rows[start : start + count]
        start += count
        if any(row["embedding"] == _NULL for row in own):
            parts.append(InvalidResponse("the answer has no valid vector for an input of the call", model=answer.model))
            continue
        part: dict[str, Any] = {**document, "data": [{**row, "index": index} for index, row in enumerate(own)]}
        usage = None if used is None else Usage(prompt, None, total)
        if usage is not None:
            part["usage"] = {"prompt_tokens": prompt or 0, "total_tokens": total or 0}
        parts.append(SharedEmbeddings(msgspec.json.encode(part), answer.model, usage))
    return parts


def _in_order(rows: list[_Document]) -> list[_Document]:
    """Return the rows in the order of ``index`` if the indexes are 0 to n-1, otherwise as they are."""
    try:
        by_index = {_INDEX.decode(row["index"]): row for row in rows}
        return [by_index[index] for index in range(len(rows))]
    except (*jsonio.REFUSED, KeyError):
        return rows
