"""ms-swift 4.6 makes a reward function of its registry, and awaits it by ``asyncio.run`` for each batch, as is done here."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import FakeScorer, configured
from trainers_tools import ended_quietly, fleet_of, settings_of

from qreward.errors import ConfigError, RequestTimeout, ServerError
from qreward.integrations.ms_swift import QRewardORM
from qreward.testing import FakeFleet, Faults

pytestmark = pytest.mark.real_time


def conversation(at: int, answer: str | None) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{at} + {at}?"}, {"role": "assistant", "content": answer}]


def batch(functions: list[Any], answers: list[Any], **columns: Any) -> list[list[Any]]:
    """As ``swift/rl_core/grpo_algorithm.py`` calls asynchronous functions."""
    messages = [conversation(at, answer) for at, answer in enumerate(answers)]
    given = {"trainer_state": object(), "messages": messages, "request_id": ["r"] * len(answers), **columns}

    async def run() -> list[list[Any]]:
        return list(await asyncio.gather(*(function([each[-1]["content"] for each in messages], **given) for function in functions)))

    return asyncio.run(run())


def test_contract_it_is_made_with_the_trainers_arguments_or_without_and_is_asynchronous(scorer: FakeScorer) -> None:
    for made in (QRewardORM(args=object()), QRewardORM()):
        assert inspect.iscoroutinefunction(type(made).__call__)


def test_contract_each_batch_has_a_loop_of_its_own_and_the_requests_have_one_that_lasts(scorer: FakeScorer) -> None:
    function = QRewardORM()
    assert [batch([function], ["0.1", "0.9", "0.5"]) for _ in range(3)] == [[[0.1, 0.9, 0.5]]] * 3
    assert (function.metrics["judge_ok"], function.metrics["judge_tokens"], function.metrics["judge_cost"]) == (1.0, 7.0, 0.0)
    assert len(scorer.loops) == 1
    assert set(scorer.timeouts) == {300.0}


def test_the_prompt_is_what_came_before_and_columns_of_the_data_set_are_fields(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batch([QRewardORM()], ["0.5"], solution=["0"])
    configured(monkeypatch, tmp_path, columns={"prompt": "question", "reference": "extra.truth"})
    batch([QRewardORM()], ["0.5"], question=["what?"], extra=[{"truth": "1"}])
    assert [(each["prompt"], each["response"], each["reference"]) for each in scorer.asked] == [
        ([{"role": "user", "content": "0 + 0?"}], "0.5", "0"),
        ("what?", "0.5", "1"),
    ]
    configured(monkeypatch, tmp_path, columns={"prompt": "questoin"})
    with pytest.raises(ConfigError, match="did you mean 'question'"):
        batch([QRewardORM()], ["0.5"], question=["what?"])


def test_a_failed_judge_is_an_error_or_the_number_that_was_chosen_and_none_which_ms_swift_counts_as_zero_is_refused(
    scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for answers in (["1", "no number"], ["1", None]):
        with pytest.raises(Exception, match=r"no answer in time|no response"):
            batch([QRewardORM()], answers)
    configured(monkeypatch, tmp_path, on_failure=-1.0)
    assert batch([QRewardORM()], ["1", "no number", None]) == [[1.0, -1.0, -1.0]]
    configured(monkeypatch, tmp_path, on_failure="none")
    with pytest.raises(ConfigError, match=r"on_failure: none is not possible with ms-swift, which counts a reward of None as 0\.0"):
        QRewardORM()


def test_two_functions_have_settings_of_their_own_and_run_at_once(scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(QRewardORM):
        settings = {"client": {"endpoints": [{"base_url": "http://127.0.0.1:9/v1"}]}, "reward_model": "rm", "deadline": 7}  # noqa: RUF012

    assert batch([QRewardORM(), Patient()], ["0.5", "1"]) == [[0.5, 1.0], [0.5, 1.0]]
    assert sorted({each or 0.0 for each in scorer.timeouts}) == [7.0, 300.0]


def test_the_file_of_verdicts_has_the_trainers_step(scorer: FakeScorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured(monkeypatch, tmp_path, verdicts=str(tmp_path / "verdicts.jsonl"))
    batch([QRewardORM()], ["0.5"], trainer_state=SimpleNamespace(global_step=7))
    assert json.loads((tmp_path / "verdicts.jsonl").read_text())["step"] == 7


def test_an_interrupted_batch_ends_its_requests_and_the_next_batch_is_scored(
    fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QREWARD_REWARD", str(settings_of(fleet, tmp_path, attempt=None)))
    fleet.set("judge-0", faults=Faults(hang=1.0))
    function = QRewardORM()

    async def interrupted() -> None:
        async with asyncio.timeout(0.3):
            await function(["0"], messages=[conversation(0, "0")], solution=["0"])

    with pytest.raises(TimeoutError):
        asyncio.run(interrupted())
    fleet.set("judge-0", faults=Faults())
    assert batch([function], ["0", "1"], solution=["0", "2"]) == [[1.0, 0.0]]


def test_the_error_of_a_fleet_that_is_dead_reaches_the_trainer(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QREWARD_REWARD", str(settings_of(fleet, tmp_path, deadline=1.0)))
    fleet.set("judge-0", faults=Faults(error_500=1.0))
    with pytest.raises((RequestTimeout, ServerError)):  # by chance, all attempts fail before the deadline
        batch([QRewardORM()], ["0", "1"], solution=["0", "2"])


PROGRAM = """
from test_ms_swift_contract import QRewardORM, batch
function = QRewardORM()
for _ in range(3):
    print(batch([function, QRewardORM()], ["0", "1", "4"], solution=["0", "2", "4"]))
"""


def test_a_trainer_that_has_run_batches_in_loops_of_their_own_ends_quietly(tmp_path: Path) -> None:
    with fleet_of(process=True) as fleet:
        said = ended_quietly(PROGRAM, settings_of(fleet, tmp_path))
    assert said.splitlines() == ["[[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]"] * 3
