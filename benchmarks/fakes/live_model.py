"""Runs a ``ModelServer`` in real time, for a fake endpoint with a prefix cache. This module does not use HTTP."""

from __future__ import annotations

import asyncio
import time
from math import inf

from fakes.model_server import ModelRequest, ModelServer, ServedModel
from qreward.testing.endpoint import chain

_BYTES = 4  # bytes per token, as ``text.count_tokens`` estimates
_SHORTEST = 0.0005  # minimum seconds of a timer, because some loops round to milliseconds


class LiveModel:
    """Runs one replica of a model in real time. The object belongs to the running event loop."""

    def __init__(self, model: ServedModel) -> None:
        self.server = ModelServer(model)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queried(self) -> int:
        return self.server.queried

    @property
    def hits(self) -> int:
        return self.server.hits

    @property
    def computed(self) -> int:
        return self.server.prefilled

    @property
    def block(self) -> int:
        return self.server.model.block

    @property
    def tokens(self) -> int:
        return self.server.model.cache_tokens

    @property
    def load(self) -> tuple[float, float, float]:
        """The number of running requests, the number of waiting requests, and the used share (0 to 1) of the KV cache."""
        return float(self.server.running), float(len(self.server.waiting)), self.server.load

    async def serve(self, model: str, text: bytes, prompt: int, output: int) -> int:
        """Wait until a request is served. Return the number of cached prompt tokens.

        Args:
            model: name of the model. Different models share no cached blocks.
            text: the prompt. Prompts with the same beginning share cached blocks.
            prompt: number of prompt tokens.
            output: number of output tokens.

        Raises:
            ValueError: the request needs more blocks than the whole cache has.
        """
        size = self.server.model.block
        done = asyncio.get_running_loop().create_future()
        keys = chain(model, text, size * _BYTES)
        request = ModelRequest(prompt, output, keys, [size * (place + 1) for place in range(len(keys))], done)
        self._run()
        self.server.submit(time.monotonic(), request)
        self._plan(0.0)  # the step begins later, because all requests of this iteration of the event loop share it
        try:
            await done
        except asyncio.CancelledError:
            self._run()
            self.server.cancel(time.monotonic(), request)
            self._run()
            raise
        assert request.cached is not None
        return request.cached

    def _run(self) -> None:
        """Complete the steps that have ended, and set a timer for the next step."""
        for request in self.server.run(time.monotonic()):
            if not request.handle.done():
                request.handle.set_result(None)
        self._plan(self.server.next_at)

    def _plan(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = when - time.monotonic()
        delay = max(left, _SHORTEST) if left > 0 else 0.0
        self._timer = None if when == inf else asyncio.get_running_loop().call_later(delay, self._run)
