"""From a caller's arguments to items that may be merged: what is asked of them, checked once for all that belong together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from qreward.arguments import preparer
from qreward.errors import BadRequest
from qreward.rewards.lists import Embeddings, Items, Listing
from qreward.wire.base import Call
from qreward.wire.embeddings import EMBEDDINGS
from qreward.wire.rewards.base import Operation
from qreward.wire.rewards.built import Choices, Moderated
from qreward.wire.rewards.dialects import CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE


class Asking:
    """What is asked of each item of a call or a batch.

    Args:
        listing: how such items are merged.
        blank: the call without an item.
        call: makes an item into the call that it would be alone, or raises ``BadRequest``.
        key: equal for all that may share a request, but for the shape of the items.
    """

    __slots__ = ("_key", "blank", "call", "listing")

    def __init__(self, listing: Listing, blank: Call, call: Callable[[Any], Call], key: Hashable) -> None:
        self.listing = listing
        self.blank = blank
        self.call = call
        self._key = key

    def calls(self, name: str, items: Iterable[Any]) -> list[Call]:
        """Several items of one argument. Raises ``BadRequest`` saying which is wrong."""
        calls = []
        for index, item in enumerate(items):
            try:
                calls.append(self.call(item))
            except BadRequest as error:
                raise BadRequest(f"{name}[{index}]: {error}") from None
        return calls

    def key(self, call: Call) -> Hashable:
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
) -> Asking:
    """What is asked by an operation of the wire. Raises ``ConfigError`` or ``BadRequest`` for what the items share."""
    checked = preparer(_NoItems(), model, params, headers, body)(None)  # type: ignore[arg-type]
    operation.check(checked.params)
    blank = Call(operation, model, [], checked.params, checked.headers)
    item = operation.item

    def call(raw: Any) -> Call:
        return Call(operation, model, [item(raw)], blank.params, blank.headers)

    return Asking(_LISTS[operation], blank, call, operation.merge_key(blank))


def asking_embeddings(model: str, params: Mapping[str, Any], headers: Mapping[str, str] | None, body: Mapping[str, Any] | None) -> Asking:
    """The same for embeddings, whose items are whole calls."""
    call = preparer(EMBEDDINGS, model, params, headers, body)
    checked = preparer(_NoItems(), model, params, headers, body)(None)  # type: ignore[arg-type]
    blank = Call(EMBEDDINGS, model, [], checked.params, checked.headers)
    key = EMBED.merge_key(Call(EMBED, model, [], checked.params, checked.headers))
    return Asking(_EMBEDDINGS, blank, call, key)
