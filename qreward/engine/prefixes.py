"""What the prompt of a request begins with, for the scheduler's prefix affinity.

Where the caller names a group, the group is the prefix. Else the text of the prompt is cut into blocks, and each block is hashed together
with all that precedes it, as the prefix caches of servers do. Content that is not a text, such as an image, counts as its ``repr``.
There is no tokenizer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar
from zlib import crc32

from qreward.codecs.base import WireRequest, hash_of_group
from qreward.codecs.decisions.base import DecisionInput
from qreward.scheduler.prefixes import Prefix, make_prefix

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
"""Named groups that are remembered."""

K = TypeVar("K")
V = TypeVar("V")


class PrefixFinder:
    """Finds what the prompts of requests begin with. Can be called from any thread."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], tuple[int, ...]] = {}  # by model and group: the key of each nested group
        self._common: dict[int, str] = {}  # by key: what the prompts of the group have in common so far

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
        elif isinstance(inputs, list) and inputs and _is_message(inputs[0]):
            text = _text(inputs)
        else:
            return None
        return _found(call, text) if call.group is None else self._named(call, text)

    def _named(self, call: WireRequest, text: str) -> Prefix:
        """Return the prefix of a named group. A tuple is nested groups, the outermost first. The keys are the same in all processes."""
        name = call.model, repr(call.group)
        keys = self._keys.get(name)
        if keys is None:
            keys = _remember(self._keys, name, _keys(call))
        lengths, longest = [], 0
        for key in keys:
            common = self._common.get(key)
            if common is None:
                common = _remember(self._common, key, text)
            elif not text.startswith(common):
                common = self._common[key] = common[: common_length(common, text)]
            longest = max(longest, len(common))
            lengths.append(float(longest))
        return make_prefix(Prefix, (keys, tuple(lengths), float(len(text)), True))


def _remember(known: dict[K, V], key: K, value: V) -> V:
    """Add an entry to a dict that holds ``MOST_GROUPS`` at most. Returns the value."""
    if len(known) >= MOST_GROUPS:
        known.pop(next(iter(known)), None)
    known[key] = value
    return value


def _keys(call: WireRequest) -> tuple[int, ...]:
    nested = call.group if isinstance(call.group, tuple) else (call.group,)
    start = crc32(call.model.encode("utf-8", "backslashreplace"))
    return tuple(accumulate(nested, lambda key, each: hash_of_group(each, key), initial=start))[1:]


def common_length(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    return bisect_left(range(1, min(len(one), len(other)) + 1), True, key=lambda length: one[:length] != other[:length])


def _found(call: WireRequest, text: str) -> Prefix | None:
    params = call.params
    key = hash(call.model)
    if "prompt_cache_key" in params or "cache_salt" in params:
        key = hash((key, repr(params.get("prompt_cache_key")), repr(params.get("cache_salt"))))
    begin, keys = 0, []
    ends = ENDS[: bisect_right(ENDS, len(text))]
    for end in ends:
        key = hash((key, text[begin:end]))
        keys.append(key)
        begin = end
    return make_prefix(Prefix, (tuple(keys), ends, float(len(text)), False)) if keys else None


def _is_message(value: Any) -> bool:
    return (type(value) is dict or isinstance(value, Mapping)) and "role" in value  # the test of the type is much quicker


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for message in messages:
        content = message.get("content")
        parts.append(content if type(content) is str else repr(content))
    return "\0".join(parts)
