"""A scorer that says what a test wants, and the settings' memory of the process, emptied: for tests of trainers' adapters."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from qreward.errors import RequestTimeout
from qreward.judge.types import Verdict, Vote
from qreward.results import Usage

REWARDER = importlib.import_module("qreward.integrations.trainers.rewarder")
SETTINGS: dict[str, Any] = {"client": {"endpoints": [{"base_url": "http://127.0.0.1:9/v1"}]}, "judge": {"model": "judge-7b"}}


class FakeScorer:
    """Scores a response by ``said``: its number, or an error that it raises. Notes what it was asked, and in which loop."""

    def __init__(self, said: Callable[[str], float | Exception] = float) -> None:
        self.said = said
        self.asked: list[dict[str, Any]] = []
        self.loops: set[int] = set()

    async def score(
        self, prompt: Any, response: Any, *, reference: Any = None, timeout: Any = None, priority: int = 5, **fields: Any
    ) -> Verdict:
        self.asked.append({"prompt": prompt, "response": response, "reference": reference, "timeout": timeout, **fields})
        self.loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        found = self.said(response)
        if isinstance(found, Exception):
            raise found
        return Verdict(found, (Vote(found),), usage=Usage(total_tokens=7))

    async def batch_score(self, items: Any, **settings: Any) -> Any:
        raise NotImplementedError  # no adapter here asks for batches

    async def aclose(self) -> None:
        """Holds nothing."""


def number_or_late(response: str) -> float | Exception:
    """A number is its own score; for anything else there was no answer in time."""
    try:
        return float(response)
    except ValueError:
        return RequestTimeout("no answer in time", endpoint="judge-0", model="judge-7b")


def installed(monkeypatch: pytest.MonkeyPatch, said: Callable[[str], float | Exception] = number_or_late) -> FakeScorer:
    """A scorer that all settings lead to."""
    scorer = FakeScorer(said)
    monkeypatch.setattr(REWARDER, "make_scorer", lambda client, who, **_: scorer)
    monkeypatch.setattr(REWARDER, "_MADE", {})
    monkeypatch.setattr(REWARDER, "_GIVEN", {})
    monkeypatch.delenv("QREWARD_REWARD", raising=False)
    return scorer


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))
