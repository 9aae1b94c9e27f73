"""Which items may share a request, how many of them, and what is done when a shared request is refused. Data and arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from qreward.core.outcome import Failure, FailureKind
from qreward.errors import BadRequest, ConnectionFailed, InvalidResponse, RequestError, RequestTimeout, ServerError
from qreward.wire.rewards.items import bytes_in, tokens_in

SPLITTING = frozenset({400, 413, 422, 424})
"""Statuses of a list that may be the fault of one item: these servers take all of a list or nothing."""

ONES_FAULT = (BadRequest, ServerError, InvalidResponse, ConnectionFailed, RequestTimeout)
"""Errors of a list that may be the fault of one item."""

_OURS = frozenset({FailureKind.REFUSED, FailureKind.UNSUITABLE})  # UNSUITABLE: too long for this model
_NOT_OURS = frozenset({FailureKind.OVERLOADED, FailureKind.QUOTA, FailureKind.UNSENDABLE})


class MergeLimits(msgspec.Struct, frozen=True):
    """How much one request may hold. None is without limit.

    Attributes:
        items: how many.
        tokens: of all items together, as estimated.
        bytes: of the body.
    """

    items: int | None = None
    tokens: float | None = None
    bytes: int | None = None

    def with_items(self, most: int | None) -> MergeLimits:
        """The same with at most so many items, at least one."""
        if most is None or (self.items is not None and self.items <= most):
            return self
        return MergeLimits(max(1, most), self.tokens, self.bytes)

    def of_items(self, items: int) -> MergeLimits:
        """The same for so many items, at least one."""
        return MergeLimits(max(1, items), self.tokens, self.bytes)

    def fitting(self, items: Iterable[Any]) -> int:
        """How many of the items, from the first on, go into one request: at least 1, for one that is too large alone must be told so.

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
_AROUND = 512  # bytes of a body beside its items


def splits(failure: Failure, count: int) -> bool:
    """Whether a list of ``count`` items that failed so is to be sent again in two halves, so that only the bad item fails in the end.

    An overload is none of that: the whole list waits, at the head of its queue. Nor is a wrong key or address, which no half mends.
    """
    if count < 2 or failure.misconfigured or failure.kind in _NOT_OURS:
        return False
    status = failure.error.status_code if isinstance(failure.error, RequestError) else None
    return failure.kind in _OURS or status in SPLITTING


def may_be_one_items_fault(error: BaseException) -> bool:
    """Whether a list that failed in the end may succeed in parts.

    An answer that was read and is not a list of results for these items is an error of the server and of the whole list. Asked for
    fewer items, such a server may seem right: one that always gives one number would be believed for a list of one item.
    """
    read = isinstance(error, InvalidResponse) and error.status_code is not None
    return isinstance(error, ONES_FAULT) and not read


def _over(amount: float, limit: float | None) -> bool:
    return limit is not None and amount > limit
