"""``qreward judge``: a calibration from labelled items, a report on judges, and errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint

from qreward.cli import main
from qreward.judge import Calibration
from qreward.testing import FakeFleet, SyntheticJudge

KEY = "sk-right-key-1234567"
QUESTION = "The candidate answer is a good answer to the task."


def item(number: int, **more: Any) -> dict[str, Any]:
    """An item that a synthetic judge knows the truth of."""
    return {"prompt": f"task {number}", "response": f"answer {number}\ntruth={number % 2}", **more}


class Command:
    """Runs the command with settings for a fleet, and reads what it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], fleet: FakeFleet) -> None:
        self.folder, self._capsys, self.fleet = folder, capsys, fleet

    def settings(self, name: str, endpoint: str = "biased", **judge: Any) -> str:
        described = {"model": "judge-7b", "verdict": "yes_no", "method": "decide", **judge}
        client = {"endpoints": [{"base_url": self.fleet.urls[endpoint], "name": endpoint, "proxy": "", "api_key": KEY}]}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"client": client, "judge": described}))
        return str(path)

    def items(self, items: list[Any], name: str = "gold.jsonl") -> str:
        path = self.folder / name
        path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in items))
        return str(path)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        status = main(["judge", *arguments])
        said = self._capsys.readouterr()
        assert KEY not in said.out + said.err
        return status, said.out, said.err


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    judges = {"biased": SyntheticJudge(noise=0.5, temperature=0.4, bias=1.0), "plain": SyntheticJudge(noise=0.5, seed=1)}
    with FakeFleet([ModelEndpoint(name, dialect="openai", synthetic_judge=judge, api_key=KEY) for name, judge in judges.items()]) as fleet:
        yield Command(tmp_path, capsys, fleet)


def gold() -> list[dict[str, Any]]:
    return [item(number, label=bool(number % 2)) for number in range(120)]


def test_a_calibration_is_written_and_the_settings_may_name_it(command: Command) -> None:
    output = command.folder / "c.json"
    config = command.settings("judge", calibration=str(output))
    status, out, err = command("calibrate", command.items(gold()), "--config", config, "--output", str(output))
    assert (status, out.splitlines()[-1]) == (0, f"written {output}"), err
    calibration = Calibration.load(output)
    assert calibration.labels == 120
    assert out.splitlines()[0] == f"{calibration.method}, 120 labels"
    assert calibration.after.log_loss < calibration.before.log_loss
    status, out, _ = command("report", command.items([item(number) for number in range(10)]), "--config", config, "--json")
    assert status == 0
    (report,) = json.loads(out)["judges"]
    assert (report["name"], report["items"], report["unreadable"]) == ("judge", 10, 0.0)
    seen = command.fleet.seen("biased")
    assert seen.errors == {}
    assert command("calibrate", command.items(gold()), "--config", config, "--output", str(output), "--json")[:2] == (
        0,
        f"{calibration.model_dump_json(indent=2)}\n",
    )


def test_the_report_compares_judges_by_the_names_of_their_files(command: Command) -> None:
    pairs = [{"prompt": "t", "first": f"a {number}\ntruth=1", "second": f"b {number}\ntruth=0"} for number in range(4)]
    items = command.items([*(item(number) for number in range(20)), *pairs])
    configs = ["--config", command.settings("one"), "--config", command.settings("two", "plain")]
    status, out, err = command("report", items, *configs)
    assert status == 0, err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["judge", "one", "two"]
    assert lines[-1].startswith("Krippendorff's alpha of all judges: 0.")
    found = json.loads(command("report", items, *configs, "--json")[1])
    assert [each["name"] for each in found["judges"]] == ["one", "two"]
    assert [each["items"] for each in found["judges"]] == [24, 24]
    assert found["judges"][0]["order_changes"] is not None
    assert 0 < found["alpha"] < 1


def test_what_is_wrong_is_said_before_anything_is_sent(command: Command) -> None:
    config, items = command.settings("judge"), command.items(gold())
    few, bad = command.items(gold()[:20], "few.jsonl"), command.items([*gold(), '{"prompt": '], "bad.jsonl")
    unlabelled = command.items([*gold(), item(1)], "unlabelled.jsonl")
    stars = command.items([item(number, label=1 + number % 5) for number in range(120)], "stars.jsonl")
    reward_model = command.folder / "rm.json"
    reward_model.write_text(json.dumps({"client": json.loads(Path(config).read_text())["client"], "reward_model": "rm-7b"}))
    elsewhere = command.settings("elsewhere", model="judge-7b", rubric={"right": {"instruction": "x"}}, verdict="score")
    table: list[tuple[list[str], str]] = [
        (["calibrate", few, "--config", config], "a calibration needs at least 50 labels, better 300; there are 20"),
        (["calibrate", bad, "--config", config], f"{bad}, line 121: is not valid JSON: "),
        (
            ["calibrate", unlabelled, "--config", config],
            f"{unlabelled}, line 121: has no 'label'; give true, false or a number from 0 to 1",
        ),
        (["calibrate", stars, "--config", config], f"{stars}, line 2: the label 2 is not from 0 to 1; set scale"),
        (["calibrate", items, "--config", "gone.yaml"], "gone.yaml: cannot be read"),
        (["calibrate", items, "--config", str(reward_model)], f"{reward_model}: a calibration needs a judge"),
        (["calibrate", items, "--config", elsewhere], f"{elsewhere}: judge.rubric"),
        (["calibrate", items, "--config", config, "--output", str(command.folder)], "it is a directory; name another file with --output"),
        (["calibrate", items, "--config", config, "--output", "gone/c.json"], "'gone' is no directory that can be written to"),
        (["calibrate", items, "--config", config, "--scale", "5", "1"], "scale must be (lowest, highest)"),
        (["report", items, "--config", config, "--config", config], "--config names a file twice"),
        (["report", command.items([{"prompt": "t"}], "none.jsonl"), "--config", config], "none.jsonl, line 1: must have either 'response'"),
        (["report", items, "--config", command.settings("c", calibration="gone.json")], "gone.json: cannot be read"),
    ]
    found = [(command(*arguments), words) for arguments, words in table]
    assert [(said, words) for (status, out, said), words in found if status != 2 or out or words not in said] == []
    assert command.fleet.seen("biased").requests == 0


def test_labels_on_another_scale_are_read_with_it(command: Command) -> None:
    stars = command.items([item(number, label=1 + 4 * (number % 2)) for number in range(120)])
    output = command.folder / "c.json"
    arguments = ["--config", command.settings("judge"), "--output", str(output), "--scale", "1", "5", "--method", "isotonic"]
    status, _, err = command("calibrate", stars, *arguments)
    assert status == 0, err
    assert Calibration.load(output).method == "isotonic"


def test_a_file_is_judged_by_a_cascade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = {"method": "decide", "verdict": "yes_no"}
    stages = {"quick": {"model": "judge-7b", **judge}, "good": {"model": "judge-70b", **judge}}
    fakes = [ModelEndpoint(model, models=[model], dialect="vllm") for model in ("judge-7b", "judge-70b")]
    with FakeFleet(fakes) as fleet:
        client = {"endpoints": [{"base_url": url, "name": name, "models": [name], "proxy": ""} for name, url in fleet.urls.items()]}
        settings, source, output = tmp_path / "reward.json", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        settings.write_text(json.dumps({"client": client, "cascade": {"stages": stages, "min_confidence": 0.75}}))
        source.write_text("".join(json.dumps({"prompt": "q", "response": f"a truth={truth}"}) + "\n" for truth in (0.95, 0.6)))
        status = main(["run", str(source), "--output", str(output), "--judge", str(settings), "--progress", "none"])
    assert status == 0, capsys.readouterr()
    assert [json.loads(line)["verdict"]["decided_by"] for line in output.read_text().splitlines()] == ["quick", "good"]
