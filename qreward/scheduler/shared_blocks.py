"""Finds which prompts begin alike, from the hashes of their blocks of text: where nobody has told the groups of a batch.

The group of a task is its deepest block that another task has too. Tasks are told apart one after another, so the first of a group looks
as if it were alone; when the second comes, ``find`` names the first again. The module does not know sources or queues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from qreward.scheduler.prefixes import Prefix

REMEMBERED = 16_384
"""Blocks that are remembered at least, and twice as many at most."""

Levels = list[tuple[int, float]]
"""Nested groups from the outermost to the innermost: the key of each, and its length in characters."""


class Waiting(Protocol):
    """A task, as far as this matters here and to ``AffineQueue``."""

    prefix: Prefix | None
    group: Any  # the ``Group`` in which it waits, or None
    turn: int


T = TypeVar("T", bound=Waiting)


class SharedBlocks(Generic[T]):
    """How many recent tasks have each block."""

    __slots__ = ("_alone", "_before", "_counts")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # recent blocks
        self._before: dict[int, int] = {}  # those before them
        self._alone: dict[int, T] = {}  # the waiting task that is the only one to have a block, by the first such block of the task

    def find(self, task: T, prefix: Prefix, warm: Container[int]) -> tuple[Levels, T | None]:
        """Return the groups of a task, and the waiting task that belongs to the innermost of them from now on.

        Args:
            task: the task, which is remembered.
            prefix: its prefix.
            warm: the blocks that a source has, perhaps from tasks of long ago.
        """
        keys, lengths = prefix.keys, prefix.lengths
        places, single = self._shared(keys)
        first = None if single < 0 else self._alone.pop(keys[single], None)
        place = places[-1] if places else 0
        if place < len(keys):
            self._remember(keys, place)
            while first is None and place < len(keys) and keys[place] in warm:
                place += 1
            if place < len(keys):
                self._alone[keys[place]] = task
            if place and (not places or places[-1] != place):
                places.append(place)
        if first is not None and first.prefix is not None and place < len(first.prefix.keys):
            self._alone[first.prefix.keys[place]] = first
        return [(keys[place - 1], lengths[place - 1]) for place in places], first

    def _shared(self, keys: tuple[int, ...]) -> tuple[list[int], int]:
        """Count the blocks that other tasks have too.

        Returns how many blocks each nested group has, and the place of the first block that only one other task has, or -1.
        """
        counts, before = self._counts, self._before
        places: list[int] = []
        fewest, single, place = 0, -1, 0
        for key in keys:
            count = counts.get(key) or (before and before.get(key))
            if not count:
                break
            if count == 1 and single < 0:
                single = place
            if count < fewest:
                places.append(place)
            fewest = count
            counts[key] = count + 1
            place += 1
        if place:
            places.append(place)
        return places, single

    def _remember(self, keys: tuple[int, ...], place: int) -> None:
        """Remember the blocks from ``place`` on, which no other task has."""
        if len(self._counts) > REMEMBERED:
            self._before, self._counts = self._counts, {}
        self._counts.update(dict.fromkeys(islice(keys, place, None), 1))

    def left(self, prefix: Prefix, length: float) -> None:
        """A task no longer waits; its innermost group was of this length."""
        place = bisect_right(prefix.lengths, length)
        if place < len(prefix.keys):
            self._alone.pop(prefix.keys[place], None)
