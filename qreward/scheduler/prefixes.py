"""Prompts that begin alike, and what of them an endpoint still has in its prefix cache.

Model servers keep the attention state of prompts they have seen (vLLM's automatic prefix caching, SGLang's RadixAttention, prompt caching of
hosted APIs), so that a prompt that begins like an earlier one at the same server is cheaper. The module does not know messages, hashing,
queues or time.
"""

from __future__ import annotations

from typing import NamedTuple


class Prefix(NamedTuple):
    """What the prompt of a task begins with: nested prefixes, from the outermost to the innermost.

    Equal keys mean equal text from the beginning of the prompt, for one model.
    """

    keys: tuple[int, ...]  # a hash per nested prefix, salted by the model
    lengths: tuple[float, ...]  # characters from the beginning of the prompt to the end of each; increasing
    total: float  # characters of the whole prompt
    told: bool = False  # the keys are groups that the caller named; False: they are the ends of blocks of text, found by hashing
