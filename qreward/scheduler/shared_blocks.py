"""Finds which prompts begin alike, from the hashes of their blocks of text: where nobody has told the groups of a batch.

The group of a task is its deepest block that another task has too. Tasks are told apart one after another, so the first of a group looks
as if it were alone; when the second comes, ``find`` names the first again. The module does not know sources or queues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container
from itertools import islice
from typing import TYPE_CHECKING

from qreward.scheduler.prefixes import Prefix

if TYPE_CHECKING:
    from qreward.scheduler.state import Task

REMEMBERED = 16_384
"""Blocks that are remembered at least, and twice as many at most."""

Levels = list[tuple[int, float]]
"""Nested groups from the outermost to the innermost: the key of each, and its length in characters."""


class SharedBlocks:
    """How many recent tasks have each block."""

    __slots__ = ("_alone", "_before", "_counts")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # recent blocks
        self._before: dict[int, int] = {}  # those before them
        self._alone: dict[int, Task] = {}  # the waiting task that is the only one to have a block, by the first such block of the task

    def find(self, task: Task, prefix: Prefix, warm: Container[int]) -> tuple[Levels, Task | None]:
        """Return the groups of a task, and the waiting task that belongs to the innermost of them from now on.

        Args:
            task: the task, which is remembered.
            prefix: its prefix.
            warm: the blocks that a source has, perhaps from tasks of long ago.
        """
        counts, before, keys, lengths = self._counts, self._before, prefix.keys, prefix.lengths
        levels: Levels = []
        first: Task | None = None
        fewest, place, single = 0, 0, -1
        for place, key in enumerate(keys):  # noqa: B007 - the loop ends at the first block that nobody else has
            count = counts.get(key) or before.get(key, 0)
            if not count:
                break
            if count == 1 and single < 0:
                single = place
            if place and count < fewest:
                levels.append((keys[place - 1], lengths[place - 1]))
            fewest = count
            counts[key] = count + 1
        else:
            place = len(keys)
        if single >= 0:
            first = self._alone.pop(keys[single], None)
        if place < len(keys):
            self._remember(keys, place)
            while first is None and place < len(keys) and keys[place] in warm:
                place += 1
            if place < len(keys):
                self._alone[keys[place]] = task
        if place and (not levels or levels[-1][0] != keys[place - 1]):
            levels.append((keys[place - 1], lengths[place - 1]))
        if first is not None and first.prefix is not None and place < len(first.prefix.keys):
            self._alone[first.prefix.keys[place]] = first
        return levels, first

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
