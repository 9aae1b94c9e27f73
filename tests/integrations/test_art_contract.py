"""ART 0.5 awaits ``after_each`` for each group, and drops a group that is None; ours leaves out what could not be judged."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured
from pydantic import BaseModel
from trainers_tools import ended_quietly, fleet_of, settings_of

from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations.art import score_group

pytestmark = pytest.mark.real_time


class Trajectory(BaseModel):
    """As ART's, in what a function of groups touches."""

    messages_and_choices: list[dict[str, Any]] = []
    tools: list[Any] | None = None
    additional_histories: list[Any] = []
    reward: float = 0.0
    metrics: dict[str, float] = {}
    metadata: dict[str, Any] = {}
    logs: list[str] = []

    def messages(self) -> list[dict[str, Any]]:
        return self.messages_and_choices


class TrajectoryGroup:
    """As ART's: the exceptions among its trajectories become its ``exceptions``."""

    def __init__(self, trajectories: Any, *, metadata: Any = None, metrics: Any = None, logs: Any = None) -> None:
        self.trajectories = [each for each in trajectories if isinstance(each, Trajectory)]
        self.exceptions = [f"{type(each).__name__}: {each}" for each in trajectories if isinstance(each, Exception)]
        self.metadata, self.metrics, self.logs = metadata or {}, metrics or {}, logs or []


def trajectory(answer: str | None, **given: Any) -> Trajectory:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}]
    return Trajectory(messages_and_choices=messages, **given)


def rewards(group: Any) -> list[float]:
    return [each.reward for each in group.trajectories]


def test_contract_it_is_a_coroutine_function_of_one_group_and_changes_nothing_of_it(scorer: FakeScorer) -> None:
    assert inspect.iscoroutinefunction(score_group)
    before = TrajectoryGroup(
        [trajectory("0.25", reward=3.0, metrics={"m": 1.0}, logs=["l"]), trajectory("1")], metadata={"a": 1}, logs=["g"]
    )
    after = asyncio.run(score_group(before))
    assert (rewards(before), rewards(after)) == ([3.0, 0.0], [0.25, 1.0])
    first = after.trajectories[0]
    assert first.metrics.pop("judge_seconds") >= 0
    judged = {"judge_ok": 1.0, "judge_tokens": 7.0, "judge_cost": 0.0, "judge_unreported": 0.0}
    assert first.metrics == {"m": 1.0, "independent_reward": 3.0} | judged
    assert first.logs == ["l", "judge: 0.25"]
    assert before.trajectories[0].metrics == {"m": 1.0}
    assert (after.metadata, after.logs, set(scorer.timeouts)) == ({"a": 1}, ["g"], {300.0})


def test_the_last_answer_is_judged_after_all_that_came_before_with_metadata_and_tools_as_columns(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "?"}, {"role": "user", "content": "Try."}]
    long = Trajectory(messages_and_choices=[*turns, {"role": "assistant", "content": "0.5"}], metadata={"answer": "4"})
    asyncio.run(score_group(TrajectoryGroup([long])))
    prompt = "{answer_form} {prompt} {response} {topic}"
    configured(monkeypatch, tmp_path, columns={"prompt": "task"}, judge={"model": "judge-7b", "prompt": prompt})
    asyncio.run(score_group(TrajectoryGroup([trajectory("1", metadata={"task": "add", "topic": "sums"})])))
    assert [(each["prompt"], each["response"], each["reference"], each.get("topic")) for each in scorer.asked] == [
        (turns, "0.5", "4", None),
        ("add", "1", None, "sums"),
    ]
    with pytest.raises(ConfigError, match="additional_histories"):
        asyncio.run(score_group(TrajectoryGroup([trajectory("1", additional_histories=[1])])))


def test_what_could_not_be_judged_leaves_the_group_and_a_group_without_rewards_is_none(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = TrajectoryGroup([trajectory("1"), trajectory("no number"), trajectory(None), trajectory("0.5")])
    group.exceptions = ["ValueError: a rollout"]
    for chosen in ({}, {"on_failure": "none"}):
        configured(monkeypatch, tmp_path, **chosen)
        after = asyncio.run(score_group(group))
        assert rewards(after) == [1.0, 0.5]
        assert [each.split(":")[0] for each in after.exceptions] == ["ValueError", "RequestTimeout", "BadRequest"]
        assert asyncio.run(score_group(TrajectoryGroup([trajectory("no number")]))) is None
    assert "its trajectory leaves the group" in caplog.text
    configured(monkeypatch, tmp_path, on_failure="raise")
    with pytest.raises(RequestTimeout):
        asyncio.run(score_group(group))
    configured(monkeypatch, tmp_path, on_failure=-1.0)
    assert rewards(asyncio.run(score_group(group))) == [1.0, -1.0, -1.0, 0.5]


PROGRAM = """
import asyncio
from test_art_contract import TrajectoryGroup, rewards, score_group, trajectory
async def main():
    groups = [TrajectoryGroup([trajectory(text, metadata={"answer": "4"}) for text in ("4", "5")]) for _ in range(4)]
    return [rewards(each) for each in await asyncio.gather(*map(score_group, groups))]
print(asyncio.run(main()))
"""


def test_a_program_that_has_scored_groups_ends_quietly(tmp_path: Path) -> None:
    with fleet_of(process=True) as fleet:
        said = ended_quietly(PROGRAM, settings_of(fleet, tmp_path))
    assert said.splitlines() == [str([[1.0, 0.0]] * 4)]
