"""Progress of real batches: what a function is told, and that the showing ends with the batch, however that ends."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import httpx
import pytest
from client_tools import HI, MODEL, Recorder, endpoint, use
from shared_tools import each

from qreward import BatchInterrupted, ConfigError, Progress, QRewardClient


class Slow(Recorder):
    """Answers after a while; the first request of all is turned away."""

    came = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.came += 1
        first = self.came == 1
        await asyncio.sleep(0.01)
        answer = await super().handle_async_request(request)
        return httpx.Response(429, headers={"retry-after-ms": "1"}) if first else answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_function_gets_how_far_a_batch_is() -> None:
    for items, total in (([HI] * 30, 30), (iter([HI] * 30), None)):
        seen: list[Progress] = []
        asking = lambda client: client.batch_chat_completion(items, MODEL, progress=seen.append)  # noqa: B023, E731
        assert len(use(QRewardClient([endpoint(Slow())]), asking)) == 30
        first, last = seen[0], seen[-1]
        assert (first.done, first.elapsed < last.elapsed, first.window > 0) == (0, True, True)
        assert (last.done, last.total, last.ok, last.failed) == (30, total, 30, 0)
        assert (last.in_flight, last.retried, last.rejected) == (0, 0, 1)  # sent again after a 429: no retry
        assert (last.prompt_tokens, last.completion_tokens) == (90, 60)


@each("end", ["good", "on_result", "cancel", "deadline"])
def test_the_bar_is_closed_however_the_batch_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    async def batch(client: QRewardClient) -> None:
        settings: dict[str, Any] = {
            "on_result": (lambda result: 1 // (result.index - 2)) if end == "on_result" else None,
            "deadline": 0.02 if end == "deadline" else None,
        }
        task = asyncio.ensure_future(client.batch_chat_completion([HI] * 6, MODEL, progress=True, **settings))
        if end == "cancel":
            await asyncio.sleep(0.005)
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        expected = {"on_result": BatchInterrupted, "cancel": asyncio.CancelledError}.get(end)
        assert expected is None or isinstance(result, expected)

    use(QRewardClient([endpoint(Slow())]), batch)
    drawn = terminal.getvalue()
    assert "/6 [" in drawn
    assert drawn.endswith("\n")


def test_progress_that_is_no_function_is_told_before_anything_is_sent() -> None:
    recorder = Recorder()
    with pytest.raises(ConfigError, match="progress must be True, False, None or a plain function"):
        use(QRewardClient([endpoint(recorder)]), lambda client: client.batch_chat_completion([HI], MODEL, progress="yes"))  # type: ignore[arg-type]
    assert recorder.requests == []
