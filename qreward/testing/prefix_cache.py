"""The prefix cache of a fake server: which blocks of prompts it has computed, and how long it computes. This module does not use HTTP."""

from __future__ import annotations

import asyncio

from qreward.testing.text import BYTES_PER_TOKEN


class PromptCache:
    def __init__(self, tokens: int, block: int, prefill: float) -> None:
        self.tokens, self.block = tokens, block
        self._prefill = prefill
        self.queried = self.hits = self.computed = 0
        self._running = 0
        self._blocks: dict[int, None] = {}  # hash of a prompt up to the end of a block; least recently used first

    @property
    def load(self) -> tuple[float, float, float]:
        return float(self._running), 0.0, len(self._blocks) * self.block / self.tokens

    async def serve(self, model: str, text: bytes, prompt: int, output: int) -> int:  # noqa: ARG002 - part of the interface
        keys = chain(model, text, self.block * BYTES_PER_TOKEN)[: (prompt - 1) // self.block]
        known = next((place for place, key in enumerate(keys) if key not in self._blocks), len(keys))
        for key in keys:
            self._blocks.pop(key, None)
            self._blocks[key] = None
        while len(self._blocks) * self.block > self.tokens:
            del self._blocks[next(iter(self._blocks))]
        cached = known * self.block
        self.queried += prompt
        self.hits += cached
        self.computed += prompt - cached
        self._running += 1
        try:
            await asyncio.sleep(self._prefill * (prompt - cached))
        finally:
            self._running -= 1
        return cached


def chain(model: str, text: bytes, size: int) -> list[int]:
    keys, previous = [], hash(model)
    for begin in range(0, len(text) - size + 1, size):
        previous = hash((previous, text[begin : begin + size]))
        keys.append(previous)
    return keys
