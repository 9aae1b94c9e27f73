"""A scorer that says what a test wants, the settings' memory of the process, emptied, and modules of trainers that are not installed."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qreward.errors import RequestTimeout
from qreward.integrations.trainers import RewardConfig, Rewarder
from qreward.judge.types import Verdict, Vote
from qreward.results import Usage

REWARDER = importlib.import_module("qreward.integrations.trainers.rewarder")
SETTINGS: dict[str, Any] = {"client": {"endpoints": [{"base_url": "http://127.0.0.1:9/v1"}]}, "judge": {"model": "judge-7b"}}


class FakeScorer:
    """Scores a response by ``said``: its number, or an error that it raises. Notes what it was asked, and in which loop.

    Args:
        said: of a response.
        attributes: of each verdict.
    """

    def __init__(self, said: Callable[[str], float | Exception] = float, attributes: dict[str, float] | None = None) -> None:
        self.said = said
        self.asked: list[dict[str, Any]] = []
        self.timeouts: list[float | None] = []
        self.priorities: list[Any] = []
        self.loops: set[int] = set()
        self.peak = self._in_flight = 0
        self._attributes = attributes

    async def score(
        self, prompt: Any, response: Any, *, reference: Any = None, timeout: Any = None, priority: Any = 5, **fields: Any
    ) -> Verdict:
        self.asked.append({"prompt": prompt, "response": response, "reference": reference, **fields})
        self.timeouts.append(timeout)
        self.priorities.append(priority)
        self.loops.add(id(asyncio.get_running_loop()))
        self._in_flight += 1
        self.peak = max(self.peak, self._in_flight)
        await asyncio.sleep(0)
        self._in_flight -= 1
        found = self.said(response)
        if isinstance(found, Exception):
            raise found
        return Verdict(found, (Vote(found, text=response),), self._attributes, Usage(total_tokens=7))

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


def made_of(scorer: Any, deadline: float = 5.0, **settings: Any) -> Rewarder:
    """A rewarder with these settings; who judges is the scorer, whatever they say."""
    if not {"judge", "reward_model"} & settings.keys():
        settings["reward_model"] = "rm"
    return Rewarder(scorer, deadline, config=RewardConfig(**settings))


def configured(monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> None:
    """A new file of settings, which the environment names."""
    file = folder / f"reward{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps({**SETTINGS, **changes}), encoding="utf-8")
    monkeypatch.setenv("QREWARD_REWARD", str(file))


def stub_modules(monkeypatch: pytest.MonkeyPatch, modules: dict[str, dict[str, Any]]) -> None:
    """Modules with these contents, and the packages that they are in."""
    for name, contents in modules.items():
        parts = name.split(".")
        for package in (".".join(parts[:end]) for end in range(1, len(parts))):
            if package not in sys.modules:
                monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


def installed(monkeypatch: pytest.MonkeyPatch, said: Callable[[str], float | Exception] = number_or_late) -> FakeScorer:
    """A scorer that all settings lead to."""
    scorer = FakeScorer(said)
    monkeypatch.setattr(REWARDER, "make_scorer", lambda client, who, **_: scorer)
    monkeypatch.setattr(REWARDER, "_MADE", {})
    monkeypatch.delenv("QREWARD_REWARD", raising=False)
    return scorer
