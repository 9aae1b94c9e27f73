"""The judgements of a trainer in a file: a line for each, without contents unless asked, and a report on one step."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_fakes import SETTINGS, FakeScorer, installed
from test_trl_functions import Trainer

from qreward.cli import main
from qreward.errors import ConfigError, RequestTimeout
from qreward.integrations.trainers import RewardConfig, Rewarder, load_reward_config
from qreward.integrations.trainers.verdicts import read_verdicts, report_of, summary
from qreward.integrations.trl import reward
from qreward.judge.types import CriterionResult, Verdict, Vote
from qreward.results import Usage


class Judging(FakeScorer):
    async def score(self, prompt: Any, response: Any, **_others: Any) -> Verdict:
        if response == "late":
            error = RequestTimeout("no verdict; the answer begins: the secret plan")
            error.usage = Usage(10, 5, cost=0.5, unreported=1)
            raise error
        safe = CriterionResult(0.2 if response == "0.0" else 0.9, 0.0, gate=0.5)
        criteria = {"right": CriterionResult(float(response), 2.0), "safe": safe}
        return Verdict(
            float(response), (Vote(float(response), text="my answer", model="m", criteria=criteria),), usage=Usage(10, 5, 15, cost=0.25)
        )


def rewarder(path: Path, **verdicts: Any) -> Rewarder:
    config = RewardConfig(reward_model="m", verdicts={"path": str(path), **verdicts} if verdicts else path)
    return Rewarder(Judging(), 5.0, config=config)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


ITEMS = [{"prompt": "the secret plan", "response": each, "reference": "secret"} for each in ("0.5", "late", "0.0")]


async def test_each_judgement_is_a_line_and_failures_are_too_without_contents_unless_they_are_wanted(tmp_path: Path) -> None:
    await rewarder(tmp_path / "bare.jsonl").score_many(ITEMS, step=7)
    assert "secret" not in (tmp_path / "bare.jsonl").read_text()
    good, late, unsafe = lines(tmp_path / "bare.jsonl")
    assert (good["step"], good["score"], good["error"], good["tokens"], good["cost"]) == (7, 0.5, None, 15, 0.25)
    assert good["criteria"]["right"] == {"score": 0.5, "weight": 2.0, "gate": None, "passed": True}
    assert good["models"] == ["m"]
    assert (late["score"], late["error"], late["tokens"], late["cost"], late["unreported"]) == (None, "RequestTimeout", 15, 0.5, 1)
    assert unsafe["criteria"]["safe"]["passed"] is False
    assert good["prompt"] == late["prompt"] == unsafe["prompt"]
    assert len({each["response"] for each in (good, late, unsafe)}) == 3
    await rewarder(tmp_path / "whole.jsonl", contents=True).score_many(ITEMS)
    good, late, _ = lines(tmp_path / "whole.jsonl")
    assert good["contents"] == {**ITEMS[0], "answers": ["my answer"], "error": None}
    assert "the answer begins" in late["contents"]["error"]
    assert (good["step"], good["prompt"]) == (None, lines(tmp_path / "bare.jsonl")[0]["prompt"])


async def test_lines_are_appended_with_the_step_that_the_trainer_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    path = tmp_path / "verdicts.jsonl"
    judged = reward(SETTINGS | {"verdicts": str(path)})
    for step in (3, 4):
        given = {"trainer_state": SimpleNamespace(global_step=step), "log_metric": Trainer()._log_metric}
        await judged(["p", "p"], ["0.5", "late"], **given)
    assert [(line["step"], line["score"]) for line in lines(path)] == [(3, 0.5), (3, None), (4, 0.5), (4, None)]
    assert await reward(SETTINGS)(["p"], ["0.5"]) == [0.5]
    assert len(lines(path)) == 4, "nothing is written without the setting"


async def test_a_file_that_cannot_be_written_is_logged_once_and_costs_no_reward(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = rewarder(tmp_path / "none" / "verdicts.jsonl")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [each.score(None) for each in await made.score_many(ITEMS)] == [0.5, None, 0.0]
    (record,) = caplog.records
    assert "cannot be written" in record.getMessage()


async def test_a_line_that_a_full_disk_has_cut_off_damages_no_later_line_and_is_left_out_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, write = rewarder(tmp_path / "v.jsonl"), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:-9]))
        await made.score_many(ITEMS, step=1)
    await rewarder(tmp_path / "v.jsonl").score_many(ITEMS, step=2)
    assert [line["step"] for line in read_verdicts(tmp_path / "v.jsonl")] == [1, 1, 2, 2, 2]
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(": ")[2] for text in said] == ["No space left on device", "1 damaged lines were left out"]


def test_the_path_in_a_settings_file_is_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    for given in ("verdicts.jsonl", {"path": "verdicts.jsonl", "contents": True}):
        file.write_text(json.dumps(SETTINGS | {"verdicts": given}))
        found = load_reward_config(file).verdicts
        assert found is not None
        assert (found.path, found.contents) == (str(tmp_path / "verdicts.jsonl"), isinstance(given, dict))
    for wrong in (3, {"contents": True}, {"path": "x", "content": True}, ""):
        with pytest.raises(ConfigError, match="verdicts"):
            RewardConfig(reward_model="m", verdicts=wrong)  # type: ignore[arg-type]


def test_a_path_in_a_home_that_is_not_known_is_refused_before_anything_is_paid() -> None:
    with pytest.raises(ConfigError, match=r"verdicts\.path: begins with a home directory that is not known"):
        RewardConfig(reward_model="m", verdicts="~nobody-of-this-name/verdicts.jsonl")


async def test_the_report_says_what_a_step_was_worth_and_what_it_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "verdicts.jsonl"
    made = rewarder(path)
    await made.score_many(ITEMS, step=1)
    await made.score_many(
        [{"prompt": prompt, "response": each} for prompt in ("p", "q") for each in ("0.5", "1.0" if prompt == "p" else "0.5")], step=2
    )
    assert main(["judge", "report", str(path), "--step", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdicts"], found["failed"], found["mean"], found["errors"], found["cost"]) == (4, 0, 0.625, {}, 1.0)
    assert found["criteria"]["right"] == {"verdicts": 4, "mean": 0.625, "below_gate": 0}
    assert [row["mean"] for row in found["prompts"]] == [0.5, 0.75], "the worst first"
    assert main(["judge", "report", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "verdicts: 7, prompts: 3, failed: 1 (RequestTimeout: 1)\n" in shown
    assert "tokens: 105, cost: $2, attempts unreported: 1" in shown
    assert "prompts whose responses score the same: 1" in shown
    assert "safe       0.78  1 of 6" in shown
    assert len(read_verdicts(path, last=3600.0)) == 7
    assert report_of(summary([])).startswith("verdicts: 0, prompts: 0, failed: 0\n")


def test_a_step_or_a_file_that_is_not_there_is_an_error_that_says_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, items = tmp_path / "verdicts.jsonl", tmp_path / "items.jsonl"
    path.write_text('{"time": 1, "step": 4, "prompt": "a", "response": "b", "score": 1, "error": null, "tokens": 0, "seconds": 1}\n')
    items.write_text('{"prompt": "p", "response": "r"}\n')
    for arguments, said in (
        ([str(path), "--step", "9"], "has no verdict of step 9; it has the steps 4 to 4"),
        ([str(tmp_path / "no.jsonl")], "cannot be read: No such file"),
        ([str(items)], "line 1: is no verdict of a trainer; to compare judges on items, name them with --config"),
        ([str(items), "--config", "x.json", "--step", "1"], "--step and --last are for the verdicts of a trainer"),
    ):
        assert main(["judge", "report", *arguments]) == 2
        assert said in capsys.readouterr().err
