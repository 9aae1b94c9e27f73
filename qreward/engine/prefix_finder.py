"""Finds the prefix of a request's prompt, for the scheduler's prefix affinity.

If the caller names a group, the group is the prefix. Otherwise the text of the prompt is cut into blocks, and each block is hashed
together with all text before it, as the prefix caches of servers do. An image or another long value counts as a sample of its characters.
There is no tokenizer. Whole prompts are not kept: of the common beginning of a group, the first characters and a sample are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, starmap
from typing import Any
from zlib import crc32

from qreward.codecs.base import WireRequest, hash_of_group
from qreward.codecs.decisions import DecisionInput
from qreward.scheduler.prefixes import Prefix

BLOCK = 256
"""Number of characters in a block of the smallest size, about 64 tokens. vLLM caches blocks of 16 tokens, but hashing so many blocks would
cost more than it gains."""
PER_SIZE = 16
"""Number of blocks of the smallest size. After the first 4,096 characters, the block length doubles each time the position doubles."""
LONGEST = 1 << 22
"""Minimum number of characters at the beginning of a long prompt that are hashed. The maximum is about twice this number."""


def _ends() -> Iterator[int]:
    yield from range(BLOCK, BLOCK * PER_SIZE, BLOCK)
    at, step = BLOCK * PER_SIZE, 2 * BLOCK
    while at <= LONGEST:
        yield from range(at, 2 * at, step)
        at, step = 2 * at, 2 * step


ENDS = tuple(_ends())
"""Positions, in characters, at which blocks end."""
FIRST_ENDS = tuple(ENDS[:count] for count in range(len(ENDS) + 1))
"""``FIRST_ENDS[n]`` holds the first n positions of ``ENDS``."""
BLOCKS = tuple(starmap(slice, pairwise((0, *ENDS))))
"""The slices of a text that are its blocks."""
MOST_GROUPS = 1024
"""Maximum number of named groups that are remembered."""
EXACT = 4096
"""Number of characters of the common beginning of a named group that are kept. Of the rest, ``SAMPLES`` characters are kept."""
SAMPLES = 256
"""Number of characters, evenly spread, that stand for the rest of a long beginning, or for a long value such as an image."""


class PrefixFinder:
    """Finds the prefixes of requests. Can be called from any thread."""

    def __init__(self) -> None:
        self._common: dict[int, Beginning] = {}  # key of a group -> beginning that all prompts of the group had so far
        # of the last prompt: salt, keys, the text that it shared with the prompt before, and the number of blocks of this text
        self._last: tuple[int, tuple[int, ...], str, int] = 0, (), "", 0

    def __call__(self, call: WireRequest, named_only: bool = False) -> Prefix | None:
        """Return the prefix of a request, or None if its input is not a prompt, as for a reward model, or is shorter than a block.

        If the caller has named a group, a prompt of any length has a prefix. ``named_only`` returns the prefixes of such prompts alone.
        """
        if named_only and call.group is None:
            return None
        inputs = call.inputs
        if type(inputs) is DecisionInput:
            inputs = inputs.input
        if isinstance(inputs, str):
            text = inputs
        elif isinstance(inputs, list) and inputs and (type(first := inputs[0]) is dict or isinstance(first, Mapping)) and "role" in first:
            text = _text(inputs)
        else:
            return None
        return self._found(call, text) if call.group is None else self._named(call, text)

    def _found(self, call: WireRequest, text: str) -> Prefix | None:
        """Return the prefix of a prompt, from its blocks. Blocks that the last two prompts had in common are not hashed again."""
        size = len(text)
        if size < BLOCK:
            return None
        ends = FIRST_ENDS[bisect_right(ENDS, size)]
        salt, params = hash(call.model), call.params
        if "prompt_cache_key" in params or "cache_salt" in params:
            salt = hash((salt, repr(params.get("prompt_cache_key")), repr(params.get("cache_salt"))))
        last_salt, last, common, reused = self._last
        if reused and salt == last_salt and text.startswith(common):
            keys, key = list(last[:reused]), last[reused - 1]
        else:
            keys, key, reused = [], salt, 0
        for block in BLOCKS[reused : len(ends)]:
            key = hash((key, text[block]))
            keys.append(key)
        found, shared = tuple(keys), reused
        while shared < len(last) and shared < len(found) and found[shared] == last[shared]:
            shared += 1
        if shared != reused or not reused:
            common = text[: ends[shared - 1]] if shared else ""
        self._last = salt, found, common, shared
        return Prefix(found, ends, float(size))

    def _named(self, call: WireRequest, text: str) -> Prefix:
        """Return the prefix of a named group. The keys are the same in all processes."""
        key, keys, lengths, longest = crc32(call.model.encode("utf-8", "backslashreplace")), [], [], 0
        for group in call.group if isinstance(call.group, tuple) else (call.group,):
            key = hash_of_group(group, key)
            common = self._common.get(key)
            if common is None:
                if len(self._common) >= MOST_GROUPS:
                    self._common.pop(next(iter(self._common)), None)
                common = self._common[key] = Beginning(text)
            else:
                common.shorten(text)
            longest = max(longest, common.length)
            keys.append(key)
            lengths.append(float(longest))
        return Prefix(tuple(keys), tuple(lengths), float(len(text)), named=True)


class Beginning:
    """The beginning that all prompts of a group have in common. ``length`` is its number of characters.

    Up to ``EXACT`` characters, the length is exact. Beyond, only every ``_step``-th character is kept and compared, because a prompt that
    differs from another differs in most characters from there on.
    """

    __slots__ = ("_head", "_rest", "_step", "length")

    def __init__(self, text: str) -> None:
        self._step = max(1, (len(text) - EXACT) // SAMPLES)
        self._head, self._rest, self.length = text[:EXACT], text[EXACT :: self._step], len(text)

    def shorten(self, text: str) -> None:
        """Keep only what another prompt has in common with the beginning."""
        if not text.startswith(self._head):
            self._head, self._rest = self._head[: common_length(self._head, text)], ""
            self.length = len(self._head)
        elif self._rest and self._rest != (rest := text[EXACT : self.length : self._step]):
            self._rest = self._rest[: common_length(self._rest, rest)]
            self.length = EXACT + len(self._rest) * self._step
        self.length = min(self.length, len(text))


def common_length(one: str, other: str) -> int:
    """Return the number of characters at the beginning that two texts have in common."""
    return bisect_left(range(1, len(one) + 1), True, key=lambda length: one[:length] != other[:length])


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    contents = [message.get("content") for message in messages]
    try:
        return "\0".join(contents)  # type: ignore[arg-type]
    except TypeError:
        return "\0".join([content if type(content) is str else "\1" + _sample(content) for content in contents])


def _sample(value: Any) -> str:
    """Return the content of a message as text: its texts, and a sample of each other long value, such as an image."""
    if isinstance(value, str):
        return value if len(value) <= 2 * SAMPLES else f"{len(value)} {value[:: len(value) // SAMPLES]}"
    if isinstance(value, Mapping):
        text = value.get("text")
        return text if type(text) is str else "\1".join([f"{key}:{_sample(each)}" for key, each in value.items()])
    return "\1".join(map(_sample, value)) if isinstance(value, list | tuple) else repr(value)
