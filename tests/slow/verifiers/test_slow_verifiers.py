"""verifiers' real judges over a fleet of which a tenth goes wrong: one client, right verdicts, records as usual, and errors that raise."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from slow_tools import narrow_and_wide, peaks, went_wrong
from trainers_tools import settings_of
from verifiers.v1.trace import TraceTask

from qreward.integrations.trainers.rewarder import close_all
from qreward.integrations.verifiers import (
    FleetJudge,
    FleetJudgeConfig,
    FleetReferenceJudge,
    FleetReferenceJudgeConfig,
    FleetRubricJudge,
    FleetRubricJudgeConfig,
)
from qreward.testing import FakeFleet, Faults

# the framework's own warnings are not ours
pytestmark = [pytest.mark.timeout(300), pytest.mark.real_time, pytest.mark.filterwarnings("default")]
CALLS = 32
PAGE = Path(__file__).parents[3] / "docs" / "trainers" / "verifiers.md"
QUESTION = re.compile(r"Question: (\d+) \+ (\d+)")
RESPONSE = re.compile(r"Response: (\d+)")


def verdict(messages: list[Any]) -> str:
    """yes or no in words, or JSON, as it was asked for; ``maybe`` of a response of 1000 or more."""
    text = str(messages[-1]["content"])
    if '"verdicts"' in text or "criteria" in text.lower():
        return json.dumps({"verdicts": [{"name": name, "reason": "so", "verdict": "yes"} for name in ("right", "short")]})
    question, response = QUESTION.search(text), RESPONSE.search(text)
    if question is None or response is None:
        return "yes"
    if int(response[1]) >= 1000:
        return "maybe"
    return "yes" if int(question[1]) + int(question[2]) == int(response[1]) else "no"


class CorrectnessJudge(FleetJudge[bool]):
    """As verifiers' own documentation writes one."""

    prompt = "Question: {question}\nAnswer: {answer}\nResponse: {response}\nCorrect? yes/no"

    def parse(self, response: Any) -> bool:
        return {"yes": True, "no": False}[response.text.strip().lower()]


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with narrow_and_wide(0.5, verdict) as made:
        yield made
    close_all()


@pytest.fixture
def client_file(fleet: FakeFleet, tmp_path: Path) -> Path:
    """Of the client alone."""
    settings = json.loads(settings_of(fleet, tmp_path).read_text(encoding="utf-8"))
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(settings["client"]), encoding="utf-8")
    return file


class Trace:
    """The part of ``vf.Trace`` that judges use, by its own code."""

    def __init__(self, reply: str = "42") -> None:
        self.info: dict[str, Any] = {}
        self.extra_usage: list[Any] = []
        self.last_reply = self.transcript = reply

    record_judge_call = vf.Trace.record_judge_call

    def record_metric(self, name: str, value: float) -> None:
        self.info[name] = value


async def evaluated(judge: Any, calls: int = CALLS, traces: list[Any] | None = None) -> list[Any]:
    async def one(at: int) -> Any:
        fields = {"question": f"{at} + {at}", "answer": 2 * at, "response": 2 * at + at % 2}
        return (await judge.evaluate(trace=traces[at] if traces else None, **fields)).parsed

    return list(await asyncio.gather(*(one(at) for at in range(calls))))


async def test_thirty_two_calls_share_one_client_and_have_right_verdicts_and_records(fleet: FakeFleet, client_file: Path) -> None:
    judge = CorrectnessJudge(FleetJudgeConfig(model="judge-7b", fleet=client_file, deadline=30))
    traces = [Trace() for _ in range(CALLS)]
    begun = time.monotonic()
    found = await evaluated(judge, traces=traces)
    print(f"{CALLS} calls in {time.monotonic() - begun:.2f} s, {peaks(fleet)} in flight, {went_wrong(fleet)} went wrong")
    assert found == [at % 2 == 0 for at in range(CALLS)]
    assert sum(peaks(fleet)) >= CALLS - 8
    for at, trace in enumerate(traces):
        (record,) = trace.info["judge_calls"]
        assert record["name"] == "correctness"
        assert record["request"]["model"] == "judge-7b"
        assert f"Question: {at} + {at}\n" in record["request"]["messages"][0]["content"]
        assert record["response"]["parsed"] is (at % 2 == 0)
        assert trace.extra_usage[0].prompt_tokens > 0
    assert CorrectnessJudge(judge.config).client is judge.client


async def test_the_same_judge_of_verifiers_own_makes_the_same_records(fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "k")
    for name in fleet.names:
        fleet.set(name, faults=Faults())
    given = {"base_url": fleet.urls["wide"], "api_key_var": "FAKE_KEY", "model": "judge-7b", "sampling": {"temperature": 0, "top_k": 3}}

    class Own(vf.Judge[bool]):  # type: ignore[misc]
        prompt, parse, reward_name = CorrectnessJudge.prompt, CorrectnessJudge.parse, "correctness"

    records = []
    for judge in (Own(vf.JudgeConfig(**given)), CorrectnessJudge(FleetJudgeConfig(**given))):
        traces = [Trace() for _ in range(2)]
        await evaluated(judge, calls=2, traces=traces)
        records.append([(trace.info, trace.extra_usage) for trace in traces])
    assert records[0] == records[1]


class Data(vf.TaskData):  # type: ignore[misc]
    """Data of a task as plug-ins see it."""

    answer: str = "84"


TASK = Data(idx=0, prompt="42 + 42")


async def test_the_built_in_judges_ask_the_fleet(fleet: FakeFleet, client_file: Path, tmp_path: Path) -> None:
    reference = FleetReferenceJudge(FleetReferenceJudgeConfig(model="judge-7b", fleet=client_file))
    assert await reference.score(TASK, Trace("84")) == 1.0
    criteria = tmp_path / "criteria.json"
    criteria.write_text(json.dumps([{"name": name, "text": f"It is {name}."} for name in ("right", "short")]), encoding="utf-8")
    rubric = FleetRubricJudge(FleetRubricJudgeConfig(model="judge-7b", fleet=client_file, path=criteria))
    assert rubric.reward_name == "rubric"
    trace = Trace("84")
    assert await rubric.score(TASK, trace) == 1.0
    assert (trace.info["rubric/right"], trace.info["rubric/short"]) == (1.0, 1.0)
    assert sum(fleet.seen(name).answered for name in fleet.names) >= 2


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """A task of verifiers without rewards of its own."""


async def test_what_a_scorer_answered_is_recorded_on_the_trace_of_a_task(
    fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in fleet.names:
        fleet.set(name, responder="judge", faults=Faults())
    (tmp_path / "grade.py").write_text(PLUGINS["grade.py"], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    judge = {"id": "grade", "settings": str(settings_of(fleet, tmp_path)), "weight": 2.0}
    judged = Sum(TASK, vf.TaskConfig(judges=[judge]))
    trace = vf.Trace(task=TraceTask(type="Sum", data=judged.data), agent=vf.AgentInfo(config=vf.AgentConfig()))
    trace.root_reply = "84"
    await judged.score(trace)
    assert trace.rewards["grade"].value == 2.0
    (call,) = trace.info["judge_calls"]
    assert call["request"] == {"model": "judge-7b", "prompt": "42 + 42", "response": "84", "reference": "84"}
    assert call["response"]["parsed"] == 1.0
    for name in fleet.names:
        fleet.set(name, responder=lambda messages: "I cannot say")
    with pytest.raises(vf.TaskError, match=r"InvalidResponse: .*I cannot say"):
        await judged.score(trace)
    assert trace.rewards == {"grade": None}
    paid = json.loads(trace.model_dump_json())["extra_usage"]
    assert [usage["completion_tokens"] > 0 for usage in paid] == [True, True]


PLUGINS = {
    "sums.py": """
import verifiers.v1 as vf

class Sum(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass

class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        return [Sum(vf.TaskData(idx=0, prompt="2 + 2?"), self.config.task)]

__all__ = ["Sums"]
""",
    "fleet_reference.py": """
from qreward.integrations.verifiers import FleetReferenceJudge

__all__ = ["FleetReferenceJudge"]
""",
    "grade.py": """
from qreward.integrations.verifiers import RewardJudge

__all__ = ["RewardJudge"]
""",
}


def test_the_command_line_plugs_judges_in_and_refuses_settings_before_a_rollout(fleet: FakeFleet, tmp_path: Path) -> None:
    for name, text in PLUGINS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    settings = settings_of(fleet, tmp_path)
    refused = tmp_path / "none.json"
    refused.write_text(json.dumps({**json.loads(settings.read_text()), "on_failure": "none"}), encoding="utf-8")
    fleet_judge = {"id": "fleet_reference", "model": "judge-7b", "fleet": "fleet.yaml"}
    written = evaluated_dry(tmp_path, [fleet_judge, {"id": "grade", "settings": str(settings)}])
    assert written.returncode == 0, written.stdout + written.stderr
    (config,) = tmp_path.rglob("eval.json")
    found = json.loads(config.read_text())["env"]["taskset"]["task"]["judges"]
    assert [(judge["id"], judge.get("fleet"), judge.get("settings")) for judge in found] == [
        ("fleet_reference", "fleet.yaml", None),
        ("grade", None, str(settings)),
    ]
    denied = evaluated_dry(tmp_path, [{"id": "grade", "settings": str(refused)}])
    assert denied.returncode != 0
    assert "verifiers, which has no missing reward" in re.sub(r"[\s│]+", " ", denied.stdout + denied.stderr)


def evaluated_dry(folder: Path, judges: list[dict[str, str]]) -> subprocess.CompletedProcess[str]:
    """``vf-eval`` up to the first rollout, with the option that our page names."""
    (option,) = set(re.findall(r"`(--\S*task\.judges)`", PAGE.read_text(encoding="utf-8")))
    command = [str(Path(sys.executable).with_name("vf-eval")), "sums", option, json.dumps(judges), "--dry-run"]
    given = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=120, check=False)
