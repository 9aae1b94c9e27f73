"""The page of bulks is true: its options are those of the command, its commands run, and its lines are read."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest

from qreward.bulk import inputs, requests
from qreward.cli import main
from qreward.cli.run import add_run
from qreward.testing import FakeEndpoint, FakeFleet

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "bulk.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_table_of_options_is_that_of_the_parser() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    add_run(parser)
    options = []
    for action in parser._actions:
        if action.option_strings:
            value = "{" + ",".join(action.choices) + "}" if action.choices else action.metavar
            options.append(f"{action.option_strings[0]} {value}" if value else action.option_strings[0])
    assert sorted(re.findall(r"^\| `(--[^`]*)` \|", PAGE, re.MULTILINE)) == sorted(options)


def test_the_lines_of_the_page_are_read_as_requests() -> None:
    batch, plain, output = blocks("json")
    reader = requests.RequestReader(requests.BulkSettings())
    found = [inputs.Line("page:1", 0, line.encode()) for line in (batch + plain).splitlines()]
    for line in found:
        reader.read(line)
    assert [each.custom_id for each in found] == ["r1", "r2", "p1", "p2"]
    assert [each.content.codec.path for each in found] == ["/chat/completions", "/v1/score", "/chat/completions", "/chat/completions"]
    assert json.loads(output)["custom_id"] == "r1"


def right(_messages: object) -> str:
    """The responder: a verdict for any answer, because the rows of the page have no reference."""
    return '{"reason": "It is right.", "score": 1}'


def test_the_commands_of_the_page_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chat = {"model": "judge-7b", "messages": [{"role": "user", "content": "Is 7 prime?"}]}
    rows = [{"custom_id": f"r{number}", "url": "/v1/chat/completions", "body": chat} for number in range(12)]
    Path("requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rows.csv").write_text("question,answer\nIs 7 prime?,yes\nIs 8 prime?,no\n")
    Path("prompt.txt").write_text("Question: {question}")
    (yaml,) = blocks("yaml")
    Path("judge.yaml").write_text(yaml)
    commands = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) == 4
    with FakeFleet([FakeEndpoint(name, responder=right) for name in ("judge-0", "judge-1")]) as fleet:
        endpoints = [{"name": name, "base_url": url, "proxy": ""} for name, url in fleet.urls.items()]
        Path("fleet.json").write_text(json.dumps({"endpoints": endpoints}))
        for command in commands:
            name, *arguments = shlex.split(command)
            assert (name, main([*arguments, "--progress", "none"])) == ("qreward", 0), command
    said = capsys.readouterr().out
    for shown in (
        "lines         12 done (0 before this run), 0 of them failed, 12 sent now",
        "written       results.jsonl",
        "nothing was sent",
    ):
        assert shown in said
        assert shown in PAGE
    dry = next(line for line in said.splitlines() if line.startswith("judge-7b "))
    assert dry in PAGE
    found = [json.loads(line) for line in Path("verdicts.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in found] == [row["id"] for row in found]
    assert len({row["id"] for row in found}) == 2
