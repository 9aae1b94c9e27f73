"""How items are merged into one request, how many fit, and how the response is split among them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.embeddings import EMBEDDINGS, EmbeddingsAnswer
from qreward.codecs.rewards.answers import share
from qreward.codecs.rewards.base import ALONE, MergeLimits, Operation, shape_of, tokens_in
from qreward.codecs.rewards.registry import EMBED, RERANK, codec_of, settings_of
from qreward.errors import BadRequest, ConfigError, InvalidResponse
from qreward.options import preparer
from qreward.results import Answered, Usage
from qreward.settings.policies import Endpoint


class MergeSpec:
    """The request that a call or batch makes for each of its items, and how such requests are merged.

    Each item receives one value: a score, labels, a rank, choices, a moderation.

    Args:
        operation: what is done with each item.
        model, params, headers, body: what the items share, as passed to the client's method.
        read: converts an item of the caller, or raises ``BadRequest``; by default ``operation.item``.

    Attributes:
        blank: the request without items.
        divides: a request may hold fewer items than it could, so that several requests share the work. Rankings are split only if a limit
            requires it: some models compare all documents of a request.

    Raises:
        ConfigError, BadRequest: what the items share is invalid.
    """

    __slots__ = ("_key", "_operation", "_read", "blank", "divides")

    def __init__(
        self,
        operation: Operation,
        model: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        shared = preparer(operation, model, params, headers, body)(["an item of any operation"])
        operation.check(shared.params)
        self.blank = WireRequest(operation, model, [], shared.params, shared.headers)
        self.divides = operation is not RERANK
        self._operation, self._read = operation, read or operation.item
        self._key = operation.merge_key(self.blank)

    def call(self, item: Any) -> WireRequest:
        """Return the request of one item alone, or raise ``BadRequest``."""
        return self._request([self._read(item)])

    def calls(self, name: str, items: Iterable[Any]) -> list[WireRequest]:
        """Return the requests of the items of an argument. Raises ``BadRequest`` naming the index of an invalid one."""
        calls = []
        for index, item in enumerate(items):
            try:
                calls.append(self.call(item))
            except BadRequest as error:
                raise BadRequest(f"{name}[{index}]: {error}") from None
        return calls

    def key(self, call: WireRequest) -> Hashable:
        """Return the merge key of a request. Only requests with equal keys, which have items of one shape, may be merged."""
        return self._key, shape_of(self.inputs(call)[0])

    def inputs(self, call: WireRequest) -> list[Any]:
        """Return the inputs of a request that the limits count."""
        inputs: list[Any] = call.inputs
        return inputs

    def limits(self, endpoint: Endpoint, call: WireRequest) -> MergeLimits:
        """Return the limits of one request to an endpoint, for items like that of ``call``."""
        try:
            codec = codec_of(endpoint.kind, self._operation, settings_of(endpoint))
            return codec.limits if codec.mergeable(self.inputs(call)[0]) else ALONE
        except (ConfigError, BadRequest):  # this endpoint does not support it, and sending will report that
            return ALONE

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        """Return how many of the requests, from the first, can be merged; at least 1."""
        if limits.tokens is None and limits.bytes is None:
            return len(calls) if limits.items is None else min(len(calls), limits.items)
        return limits.fitting(call.inputs[0] for call in calls)

    def merged(self, calls: Sequence[WireRequest]) -> WireRequest:
        """Merge requests. One alone is sent unchanged."""
        return calls[0] if len(calls) == 1 else self._request(list(chain.from_iterable(map(self.inputs, calls))))

    def shares(self, answer: Any, _calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
        """Split the response to merged requests into one answer or error per request."""
        shares: Sequence[Answered | InvalidResponse] = answer.shares()
        return shares

    def _request(self, inputs: Any) -> WireRequest:
        blank = self.blank
        return WireRequest(blank.codec, blank.model, inputs, blank.params, blank.headers)


class EmbeddingsSpec(MergeSpec):
    """Embeddings, whose items are whole calls. Each receives the response that it would have received alone.

    One with more inputs than the server accepts fails as it would without merging.
    """

    __slots__ = ()

    def __init__(self, model: str, params: Mapping[str, Any], headers: Mapping[str, str] | None, body: Mapping[str, Any] | None) -> None:
        super().__init__(EMBED, model, params, headers, body)
        self.blank.codec = EMBEDDINGS

    def call(self, item: Any) -> WireRequest:
        return self._request(EMBEDDINGS.validate(item))

    def inputs(self, call: WireRequest) -> list[Any]:
        """Return the inputs of a call. A text or a list of token ids is one input."""
        inputs = call.inputs
        many = [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
        return [list(each) if isinstance(each, tuple) else each for each in many]

    def fitting(self, limits: MergeLimits, calls: Sequence[WireRequest]) -> int:
        inputs = list(map(self.inputs, calls))
        held = limits.fitting(chain.from_iterable(inputs))
        return max(1, sum(end <= held for end in accumulate(map(len, inputs))))

    def shares(self, answer: Any, calls: Sequence[WireRequest]) -> Sequence[Answered | InvalidResponse]:
        if len(calls) == 1:
            return [answer]
        inputs = list(map(self.inputs, calls))
        return parts_of(answer, list(map(len, inputs)), [sum(map(tokens_in, each)) for each in inputs])


_Document = dict[str, msgspec.Raw]
_DOCUMENT = msgspec.json.Decoder(_Document)
_ROWS = msgspec.json.Decoder(list[_Document])
_INDEX = msgspec.json.Decoder(int)


class SharedEmbeddings(EmbeddingsAnswer, gc=False):
    """Embeddings of one call from a merged request. Its usage is a share of the request's, in proportion to the size of its inputs."""

    estimated: bool = True


def parts_of(answer: EmbeddingsAnswer, counts: Sequence[int], sizes: Sequence[float]) -> list[EmbeddingsAnswer | InvalidResponse]:
    """Split a merged embeddings response into one response per call. The vectors are not parsed, because callers may never read them.

    If the response cannot be split with certainty, every call receives an ``InvalidResponse``, so that each is sent again alone.

    Args:
        counts: the number of vectors of each call.
        sizes: the size of the inputs of each call; usage is shared in this proportion.
    """
    try:
        document = _DOCUMENT.decode(answer.body)
        rows = _in_order(_ROWS.decode(document["data"]))
    except (*jsonio.REFUSED, KeyError):
        error = f"an answer for {len(counts)} callers could not be taken apart"
        return [InvalidResponse(error, model=answer.model) for _ in counts]
    used = answer.usage
    prompts = share(used.prompt_tokens if used else None, sizes)
    totals = share(used.total_tokens if used else None, sizes)
    parts: list[EmbeddingsAnswer | InvalidResponse] = []
    start = 0
    for count, prompt, total in zip(counts, prompts, totals, strict=True):
        part: dict[str, Any] = {**document, "data": [{**row, "index": index} for index, row in enumerate(rows[start : start + count])]}
        usage = None if used is None else Usage(prompt, None, total)
        if usage is not None:
            part["usage"] = {"prompt_tokens": prompt or 0, "total_tokens": total or 0}
        parts.append(SharedEmbeddings(msgspec.json.encode(part), answer.model, usage))
        start += count
    return parts


def _in_order(rows: list[_Document]) -> list[_Document]:
    """Sort rows by ``index`` if the indexes are 0..n-1 in some order; otherwise keep their order."""
    try:
        by_index = {_INDEX.decode(row["index"]): row for row in rows}
        return [by_index[index] for index in range(len(rows))]
    except (*jsonio.REFUSED, KeyError):
        return rows
