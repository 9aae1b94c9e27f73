"""What the prompt of a request begins with, for the scheduler's prefix affinity.

Where the caller names a group, the group is the prefix. Else the text of the prompt is cut into blocks, and each block is hashed together
with all that precedes it, as the prefix caches of servers do. Content that is not a text, such as an image, counts as its ``repr``.
There is no tokenizer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput
from qreward.scheduler.prefixes import Prefix

BLOCK = 256
"""Characters of a block, about 64 tokens. Servers cache blocks of 16 tokens (vLLM); smaller blocks cost more time than they find."""
PER_SIZE = 16
"""Blocks of one size. After the first 4,096 characters blocks are twice as long for each doubling of the position."""
LONGEST = 1 << 22
"""Characters after which a prompt is not looked at."""


def _ends() -> Iterator[int]:
    yield from range(BLOCK, BLOCK * PER_SIZE, BLOCK)
    at, step = BLOCK * PER_SIZE, 2 * BLOCK
    while at <= LONGEST:
        yield from range(at, 2 * at, step)
        at, step = 2 * at, 2 * step


ENDS = tuple(_ends())
"""Positions at which blocks end."""


MOST_GROUPS = 1024
"""Named groups whose common beginning is remembered."""


class PrefixFinder:
    """Finds what the prompts of requests begin with. Can be called from any thread."""

    def __init__(self) -> None:
        self._common: dict[int, str] = {}  # by key of a named group: what its prompts have in common so far

    def __call__(self, call: WireRequest, named_only: bool = False) -> Prefix | None:
        """Return the prefix of a request, or None if its inputs are no prompt, such as those of a reward model, or shorter than a block.

        Args:
            call: the request.
            named_only: return None unless the caller has named a group.
        """
        inputs = call.inputs
        if type(inputs) is DecisionInput:
            inputs = inputs.input
        if named_only and call.group is None:
            return None
        if isinstance(inputs, str):
            text = inputs
        elif isinstance(inputs, list) and inputs and isinstance(inputs[0], Mapping) and "role" in inputs[0]:
            text = _text(inputs)
        else:
            return None
        return _found(call, text) if call.group is None else self._named(call, text)

    def _named(self, call: WireRequest, text: str) -> Prefix:
        """Return the prefix of a named group. A tuple is nested groups, the outermost first. The keys are the same in all processes."""
        nested = call.group if isinstance(call.group, tuple) else (call.group,)
        key = crc32(call.model.encode("utf-8", "backslashreplace"))
        keys, lengths, begin = [], [], 0.0
        for each in nested:
            key = crc32(repr(each).encode("utf-8", "backslashreplace"), key)
            begin = max(begin, self._length(key, text))
            keys.append(key)
            lengths.append(begin)
        return Prefix(tuple(keys), tuple(lengths), float(len(text)), told=True)

    def _length(self, key: int, text: str) -> float:
        """Return the characters that the prompts of a group have in common so far. Of the first prompt of a group that is all of it."""
        common = self._common.get(key)
        if common is None and len(self._common) >= MOST_GROUPS:
            self._common.pop(next(iter(self._common)), None)
        if common is None or not text.startswith(common):
            common = self._common[key] = text if common is None else common[: common_length(common, text)]
        return float(len(common))


def common_length(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    return bisect_left(range(1, min(len(one), len(other)) + 1), True, key=lambda length: one[:length] != other[:length])


def _found(call: WireRequest, text: str) -> Prefix | None:
    params = call.params
    key = hash((call.model, repr(params.get("prompt_cache_key")), repr(params.get("cache_salt"))))
    begin, keys = 0, []
    size = len(text)
    for end in ENDS:
        if end > size:
            break
        key = hash((key, text[begin:end]))
        keys.append(key)
        begin = end
    return Prefix(tuple(keys), ENDS[: len(keys)], float(size)) if keys else None


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for message in messages:
        content = message.get("content")
        parts.append(content if type(content) is str else repr(content))
    return "\0".join(parts)
