"""A real GRPOTrainer, two steps, against a fleet of which a tenth goes wrong: rewards are what the judge says, or None."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "trl_example"
pytestmark = pytest.mark.timeout(600)
PROMPT = "Topic: {topic}\nQuestion: {prompt}\nReference answer: {reference}\nCandidate answer: <<{response}>>\nScore from 0 to 10, as JSON."
NOISE = re.compile(r"Unclosed|was never (awaited|retrieved)|was destroyed|Event loop is closed|ResourceWarning|qreward\.")


def opinion(candidate: str) -> int | None:
    """From 0 to 10 by the words alone; None for about a sixth, of which the judge has no opinion, ever."""
    drawn = blake2b(candidate.strip().encode(), digest_size=4).digest()
    return None if drawn[0] % 6 == 0 else drawn[1] % 11


def judge(messages: list[Any]) -> str:
    text = messages[-1]["content"]
    assert text.startswith("Topic: sums\nQuestion: ")
    found = re.search(r"Candidate answer: <<(.*)>>\nScore", text, re.DOTALL)
    assert found
    score = opinion(found[1])
    return "I would rather not say." if score is None else json.dumps({"score": score})


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    """Two judges: one rejects what is more than 4 at once, both fail or hang with each tenth request."""
    faults = {"error_500": 0.05, "hang": 0.05}
    slow = Latency(base=0.05, tokens=10)
    with FakeFleet(
        [
            FakeEndpoint("a", responder=judge, latency=slow, max_concurrency=4, retry_after="ms", faults=Faults(**faults, seed=1)),
            FakeEndpoint("b", responder=judge, latency=slow, max_concurrency=8, retry_after="ms", faults=Faults(**faults, seed=2)),
        ]
    ) as made:
        yield made


def settings_of(fleet: FakeFleet, folder: Path) -> Path:
    endpoints = [{"base_url": url, "name": name, "proxy": "", "timeouts": {"attempt": 2.0}} for name, url in fleet.urls.items()]
    client = {"endpoints": endpoints, "retry": {"attempts": 6, "base": 0.05}}
    judged = {"model": "judge-7b", "prompt": PROMPT, "params": {"temperature": 0}, "reasks": 0}
    file = folder / "reward.json"
    file.write_text(json.dumps({"client": client, "judge": judged, "deadline": 30.0}), encoding="utf-8")
    return file


def ran(script: Path, *arguments: str, **variables: str) -> str:
    """What a program printed that ended well and said nothing of ours."""
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1"} | variables
    done = subprocess.run([sys.executable, str(script), *arguments], env=quiet, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in (done.stdout + done.stderr).splitlines() if NOISE.search(line)] == []
    return done.stdout


def ran_in_ranks(folder: Path, settings: Path) -> Any:
    """What two ranks trained and logged, of which the second has no value of one function."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(2) as threads:
        ranks = [{**together, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
        runs = [threads.submit(ran, HERE / "training.py", str(folder), str(settings), "ranks", **rank) for rank in ranks]
        for each in runs:
            each.result()
    return json.loads((folder / "told.json").read_text(encoding="utf-8"))


def trained(fleet: FakeFleet, folder: Path, kind: str) -> Any:
    """What the trainer logged."""
    ran(HERE / "training.py", str(folder), str(settings_of(fleet, folder)), kind)
    return json.loads((folder / "told.json").read_text(encoding="utf-8"))


def said(completion: Any) -> str:
    return str(completion if isinstance(completion, str) else completion[-1]["content"])


def expected(told: Any) -> list[float]:
    """By the judge's own rule; NaN is how TRL keeps None."""
    opinions = [opinion(said(completion)) for completion in told["columns"]["completion"]]
    return [math.nan if score is None else score / 10 for score in opinions]


def differing(found: list[float], wanted: list[float], told: Any) -> list[Any]:
    """Where they are not the same, with the completion and the reason that was given."""
    pairs = enumerate(zip(found, wanted, told["columns"]["completion"], told["columns"]["correctness_error"], strict=True))
    return [(at, *each) for at, each in pairs if each[0] != pytest.approx(each[1], abs=1e-4, nan_ok=True)]


def went_wrong(fleet: FakeFleet) -> tuple[int, int]:
    """Rejected, and failed or hung by the faults."""
    seen = [fleet.seen(name) for name in fleet.names]
    return sum(each.rejected for each in seen), sum(each.errors.get(kind, 0) for each in seen for kind in ("error_500", "hang"))


def test_alone_a_failed_completion_has_no_reward_and_moves_nothing(fleet: FakeFleet, tmp_path: Path) -> None:
    told = trained(fleet, tmp_path, "alone")
    wanted = expected(told)
    assert len(wanted) == 32
    failed = [at for at, value in enumerate(wanted) if math.isnan(value)]
    assert 0 < len(failed) < 32
    assert differing(told["columns"]["correctness"], wanted, told) == []
    assert [told["columns"]["advantages"][at] for at in failed] == [0.0] * len(failed)
    assert any(told["columns"]["advantages"])
    reasons = told["columns"]["correctness_error"]
    assert [at for at, reason in enumerate(reasons) if reason] == failed
    assert all(reasons[at].startswith("InvalidResponse: ") for at in failed)
    rejected, faulty = went_wrong(fleet)
    assert faulty > 0
    assert rejected + faulty > 3

    steps = [entry for entry in told["history"] if "correctness/ok" in entry]
    assert len(steps) == 2
    assert sum(entry["correctness/ok"] for entry in steps) / 2 == pytest.approx(1 - len(failed) / 32)
    assert all(entry["correctness/seconds"] > 0 and entry["correctness/tokens"] > 0 for entry in steps)
    assert [name for name in told["threads"] if "qreward" in name.lower()] == ["qreward-config-watcher"]  # all ran in the trainer's loop


def test_two_ranks_train_on_although_one_of_them_has_no_value_of_a_function(fleet: FakeFleet, tmp_path: Path) -> None:
    told = ran_in_ranks(tmp_path, settings_of(fleet, tmp_path))
    rewards, advantages = told["columns"]["combined"], told["columns"]["advantages"]
    assert len(rewards) == 32
    second = [at for at in range(32) if at % 16 >= 8]
    assert all(math.isnan(rewards[at]) and advantages[at] == 0.0 for at in second)
    first = [at for at in range(32) if at % 16 < 8]
    wanted = expected(told)
    assert [rewards[at] for at in first] == pytest.approx([wanted[at] for at in first], abs=1e-4, nan_ok=True)
    steps = [entry for entry in told["history"] if "correctness/ok" in entry]
    assert len(steps) == 2
    assert all(entry["rewards/first_rank_alone/mean"] is None for entry in steps)  # not a number, of one that has none


def test_the_example_trains(tmp_path: Path) -> None:
    ran(HERE / "training.py", str(tmp_path), "", "save")
    given = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "questions.jsonl"), "--output", str(tmp_path / "out")]
    with FakeFleet([FakeEndpoint("judge", models=["judge-*"], responder="judge", api_key="not-secret")]) as fleet:
        variables = {"JUDGE_URL": fleet.urls["judge"], "JUDGE_KEY": "not-secret", "HF_HOME": str(tmp_path / "home")}
        printed = ran(EXAMPLE / "train_grpo.py", *given, "--steps", "2", "--cpu", **variables)
        judged = fleet.seen("judge").answered
    assert printed.count("'rewards/correctness/mean'") == printed.count("'correctness/ok': '1'") == 2
    assert judged > 0
