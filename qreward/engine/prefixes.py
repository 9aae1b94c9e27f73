"""What the prompt of a request begins with, for the scheduler's prefix affinity.

Where the caller names a group, the group is the prefix. Else the text of the prompt is cut into blocks, and each block is hashed together
with all that precedes it, as the prefix caches of servers do. Images and other parts count as their JSON does. There is no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any
from zlib import crc32

from qreward.codecs.base import WireRequest
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


def prefix_of(call: WireRequest) -> Prefix | None:
    """Return the prefix of a request, or None if its inputs are no prompt, such as those of a reward model, or shorter than a block."""
    inputs = call.inputs
    if isinstance(inputs, str):
        text = inputs
    elif isinstance(inputs, list) and inputs and isinstance(inputs[0], Mapping) and "role" in inputs[0]:
        text = _text(inputs)
    else:
        return None
    if call.group is not None:
        return _named(call.model, call.group, float(len(text)))
    return _found(call, text)


def _named(model: str, group: object, total: float) -> Prefix:
    """Return the prefix of a group. A tuple is nested groups, the outermost first. The keys are the same in all processes."""
    nested = group if isinstance(group, tuple) else (group,)
    names = [repr(each).encode("utf-8", "backslashreplace") for each in nested]
    keys = accumulate(names, lambda key, name: crc32(name, key), initial=crc32(model.encode("utf-8", "backslashreplace")))
    lengths = tuple(total * place / len(names) for place in range(1, len(names) + 1))
    return Prefix(tuple(keys)[1:], lengths, total, told=True)


def _found(call: WireRequest, text: str) -> Prefix | None:
    key = hash((call.model, call.params.get("prompt_cache_key")))
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
