"""verl's real reward code against a fleet of which a tenth goes wrong: judged scores, the same keys always, one limit for all workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_tools import went_wrong

from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(900)
SAMPLES = 48
SHARED = 6
"""Requests in flight that each endpoint may be sent, by all workers together."""
KEYS = ["score", "judge_ok", "judge_error", "judge_seconds", "judge_tokens", "judge_cost", "judge_unreported"]
PROMPT = "Question: {prompt}\nReference answer: {reference}\nCandidate answer: <<{response}>>\nScore from 0 to 10, as JSON."
FUNCTION = ["reward.custom_reward_function.path=pkg://qreward.integrations.verl", "reward.custom_reward_function.name=compute_score"]
MANAGER = ["reward.reward_manager.source=importlib", "reward.reward_manager.name=QRewardManager"]
MANAGER += ["reward.reward_manager.module.path=pkg://qreward.integrations.verl"]
KWARGS = "reward.custom_reward_function.reward_kwargs"
OLD = ["custom_reward_function.path=pkg://qreward.integrations.verl", "custom_reward_function.name=compute_score"]
NOISE = re.compile(r"Unclosed|was never (awaited|retrieved)|was destroyed|Event loop is closed|ResourceWarning|qreward\.|KeyError")


def opinion(number: int) -> int | None:
    """From 0 to 10; None for each seventh, of which the judge has no opinion, ever."""
    return None if number % 7 == 3 else number % 11


def judge(messages: list[Any]) -> str:
    wanted = r"Question: (?:User: )?Which number is (\d+)\?\nReference answer: (\d+)\nCandidate answer: <<answer (\d+)>>\nScore"
    found = re.match(wanted, messages[-1]["content"])
    assert found
    asked, reference, candidate = map(int, found.groups())
    assert asked == reference == candidate
    score = opinion(candidate)
    return "I would rather not say." if score is None else json.dumps({"score": score})


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    """Two judges that fail or hang with each tenth request; the second rejects, with 429, what is more than 4 at once."""
    latency = Latency(base=0.1, tokens=10)
    faults = {"error_500": 0.05, "hang": 0.05}
    with FakeFleet(
        [
            FakeEndpoint("a", responder=judge, latency=latency, faults=Faults(**faults, seed=1)),
            FakeEndpoint("b", responder=judge, latency=latency, faults=Faults(**faults, seed=2), max_concurrency=4),
        ]
    ) as made:
        yield made


def settings_of(fleet: FakeFleet, folder: Path, **more: Any) -> Path:
    limits = {"max_concurrency": SHARED, "shared": "local"}
    endpoints = [
        {"base_url": url, "name": name, "proxy": "", "timeouts": {"attempt": 2.0}, "limits": limits} for name, url in fleet.urls.items()
    ]
    client = {"endpoints": endpoints, "retry": {"attempts": 6, "base": 0.05}}
    judged = {"model": "judge-7b", "prompt": PROMPT, "params": {"temperature": 0}, "reasks": 0}
    file = folder / "reward.json"
    file.write_text(json.dumps({"client": client, "judge": judged, "deadline": 60.0, **more}), encoding="utf-8")
    return file


def told(folder: Path, kind: str, *overrides: str, **variables: str) -> Any:
    """What verl made of the samples, of a run that ended well and said nothing of ours."""
    command = [sys.executable, str(HERE / "rewarding.py"), str(folder), kind, *overrides]
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""} | variables
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line for line in (done.stdout + done.stderr).splitlines() if NOISE.search(line)] == []
    return json.loads((folder / "told.json").read_text(encoding="utf-8"))


def check(results: list[dict[str, Any]], failure: float) -> None:
    """The judge's scores in their order, and the failure's number for those that it has none for; the same keys everywhere."""
    opinions = [opinion(number) for number in range(SAMPLES)]
    assert [result["score"] for result in results] == [failure if score is None else score / 10 for score in opinions]
    assert [result["judge_ok"] for result in results] == [float(score is not None) for score in opinions]
    reasons = [result["judge_error"].partition(":")[0] for result in results]
    assert reasons == ["InvalidResponse" if score is None else "" for score in opinions]
    assert all(list(result) == KEYS for result in results)
    assert all(result["judge_tokens"] > 0 for result in results)  # an answer that could not be read was paid for, too


@pytest.mark.parametrize("which", ["function", "manager", "old keys"])
def test_the_loaded_manager_gives_the_judges_scores_and_the_chosen_number_for_failures(
    fleet: FakeFleet, tmp_path: Path, which: str
) -> None:
    file = settings_of(fleet, tmp_path, on_failure=-1.0)
    given = {
        "function": [*FUNCTION, f"+{KWARGS}.config={file}"],
        "manager": [*MANAGER, f"+{KWARGS}.config={file}"],
        "old keys": [*OLD, f"+custom_reward_function.reward_kwargs.config={file}"],
    }[which]
    results = told(tmp_path, "alone", *given)
    assert [result["reward_score"] for result in results] == [result["reward_extra_info"]["score"] for result in results]
    check([result["reward_extra_info"] for result in results], -1.0)
    assert went_wrong(fleet) > 0


@pytest.mark.parametrize("which", ["function", "manager"])
def test_two_workers_mix_failures_and_scores_within_one_limit(fleet: FakeFleet, tmp_path: Path, which: str) -> None:
    given = [
        *(FUNCTION if which == "function" else MANAGER),
        f"+{KWARGS}.config={settings_of(fleet, tmp_path)}",
        f"+{KWARGS}.on_failure=-1.0",
    ]
    found = told(tmp_path, "workers", *given)
    assert found["keys"] == KEYS
    check([dict(zip(KEYS, row, strict=True)) for row in zip(*(found["extra"][key] for key in KEYS), strict=True)], -1.0)
    check([result["reward_extra_info"] for result in found["streamed"]], -1.0)
    assert found["at_the_last_token"] == pytest.approx(found["extra"]["score"])
    assert found["in_all"] == pytest.approx(found["extra"]["score"])
    assert went_wrong(fleet) > 0
    assert 1 < fleet.seen("a").peak_in_flight <= SHARED
    assert fleet.seen("b").rejected > 0
