"""A batch in parts, and what came of them as one list again. Knows neither actors nor queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qreward.batching.backlog import halves
from qreward.batching.buffer.scored import InvalidScores, read_scores

Columns = tuple[Sequence[Any], ...]
"""A list for each parameter of the scorer, all of one length."""


def parts_of(columns: Columns) -> tuple[Columns, Columns]:
    """The first and the second half of a batch.

    Example:
        >>> parts_of((["a", "b", "c"], [1, 2, 3]))
        ((['a', 'b'], [1, 2]), (['c'], [3]))
    """
    first, second = zip(*(halves(column) for column in columns), strict=True)
    return tuple(first), tuple(second)


def rows_of(given: Any, count: int) -> list[Any]:
    """What a scorer gave for a part, with one thing for each item, so that parts can be put together.

    Args:
        given: a list, tuple or array; or, as scorers of rewards may give, a mapping of lists.
        count: how many items there were.

    Raises:
        InvalidScores: it is neither, or it holds more or fewer.
    """
    if isinstance(given, Mapping):
        return [
            {"reward": one.reward, "error": one.cause or one.error, "meta": dict(one.meta), "next_turn_feedback": one.feedback}
            for one in read_scores(given, count)
        ]
    if isinstance(given, str | bytes) or not (hasattr(given, "__len__") and hasattr(given, "__iter__")):
        raise InvalidScores(f"a scorer must return a list with one result for each item, not a {type(given).__name__}")
    rows = list(given)
    if len(rows) != count:
        raise InvalidScores(f"the scorer gave {len(rows)} results for {count} item{'s'[: count != 1]}; it must be one for each")
    return rows
