"""The parser of the command line: what its help says, and what it costs to call one command."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from qreward import __version__, cli

UNITS = {"SECONDS": "seconds", "DOLLARS": "US dollars", "TOKENS": "tokens"}
"""Metavariable -> the unit that its help names."""


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from commands(inner)


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    kinds = (argparse._HelpAction, argparse._SubParsersAction)
    return (action for action in parser._actions if not isinstance(action, kinds))


def test_every_argument_has_a_help_text_with_its_unit_and_default() -> None:
    seen = 0
    for command in commands(cli.parser()):
        for action in arguments(command):
            place, words = f"{command.prog} {action.metavar or action.dest}", action.help or ""
            seen += 1
            assert len(words.split()) >= 3, place
            assert not words.endswith("."), place
            assert "docs/" not in words, f"{place}: a page moves"
            assert UNITS.get(str(action.metavar), "") in words, place
            if action.type in (int, float):
                assert action.metavar in {"N", ("LOW", "HIGH")} | UNITS.keys(), place
            if action.default not in (None, False, [], argparse.SUPPRESS) and not action.required:
                assert "(default: " in words, place
        assert command.format_help()
    assert seen > 60


def test_the_parser_of_one_command_imports_no_other() -> None:
    code = "import sys; from qreward.cli import parser; parser('check'); print(*(m for m in sys.modules if m.startswith('qreward.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["qreward.cli.check"]


def test_version_names_qreward_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"qreward {__version__} (Python {platform.python_version()})\n")


def test_an_unknown_command_is_refused_with_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for given, hint in (("chek", "did you mean 'check'?"), ("zzz", "the commands are 'demo', 'init', ")):
        with pytest.raises(SystemExit) as end:
            cli.main([given, "reward.toml"])
        assert end.value.code == 2
        assert f"qreward: error: unknown command {given!r}; {hint}" in capsys.readouterr().err


def test_an_unknown_option_is_refused_with_the_usage_of_its_command_and_the_closest_option(capsys: pytest.CaptureFixture[str]) -> None:
    for given, hint in (("--modle", "did you mean '--model'?"), ("--modle=m", "did you mean '--model'?"), ("--zzz", "the options are")):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["run", "in.jsonl", "--output", "out.jsonl", given])
        said = capsys.readouterr().err
        assert said.startswith("usage: qreward run "), given
        assert f"qreward run: error: unknown option {given.partition('=')[0]!r}; {hint}" in said, given
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", "in.jsonl", "--output", "out.jsonl", "-"])
    assert "unrecognized arguments: -\n" in capsys.readouterr().err, "standard input is no option"


def test_without_a_command_the_help_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([])
    said = capsys.readouterr().out
    assert [verb for verb in cli.VERBS if f"\n    {verb}" not in said] == []


def test_an_error_names_its_page_on_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "nowhere.toml"]) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert first == "qreward check: nowhere.toml: cannot be read: No such file or directory"
    assert last == "qreward check: see documentation page reference/errors#configerror"
