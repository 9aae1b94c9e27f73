"""Writes ``docs/reference/command-line.md`` from the parser of the command line: ``python docs/site/command_line.py``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from qreward.cli import parser

PAGE = Path(__file__).parents[1] / "reference" / "command-line.md"
INTRODUCTION = """\
# Command line

`qreward COMMAND --help` prints the options of a command. `python -m qreward` works like `qreward`.

The exit status is 0 for success, 1 if the command itself reports a failure, 2 for an invalid argument or configuration, and 130 after
Ctrl-C.
"""


def page() -> str:
    """The page, as Markdown."""
    (commands,) = subcommands(parser())
    table = ["| command | what it does |", "| --- | --- |"]
    table += [f"| [`{each.dest}`](#qreward-{each.dest}) | {cell(each.help or '')} |" for each in commands._choices_actions]
    sections = [text for command in commands.choices.values() for text in section(command, "##")]
    return "\n".join([INTRODUCTION, *table, "", *sections]).rstrip() + "\n"


def section(command: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    """The lines about one command, and about those below it."""
    below = subcommands(command)
    shown = [action for action in command._actions if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)]
    plain = [action for action in shown if action not in below]
    yield from (f"{heading} {command.prog}", "")
    if command.description:
        yield from (command.description, "")
    if not below:
        yield from ("```text", usage(command, plain), "```", "")
    for names, actions in (
        ("argument", [action for action in plain if not action.option_strings]),
        ("option", [action for action in plain if action.option_strings]),
    ):
        if actions:
            yield from (f"| {names} | meaning |", "| --- | --- |", *(row(command, action) for action in actions), "")
    if command.epilog:
        yield from (command.epilog, "")
    for each in below:
        for inner in each.choices.values():
            yield from section(inner, heading + "#")


def subcommands(command: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]


def usage(command: argparse.ArgumentParser, actions: list[argparse.Action]) -> str:
    """The command with what it needs: argparse's own usage depends on the terminal and on the version of Python."""
    needed = [f"{action.option_strings[-1]} {values(action)}" for action in actions if action.option_strings and action.required]
    positional = [values(action) for action in actions if not action.option_strings]
    optional = ["[OPTIONS]"] if any(action.option_strings and not action.required for action in actions) else []
    return " ".join([command.prog, *positional, *needed, *optional])


def values(action: argparse.Action) -> str:
    """What stands for the values of an argument."""
    if action.nargs == 0:
        return ""
    chosen = "{" + ",".join(map(str, action.choices)) + "}" if action.choices is not None else None
    metavar = action.metavar or chosen or (action.dest.upper() if action.option_strings else action.dest)
    if isinstance(metavar, tuple):
        return " ".join(metavar)
    return {"+": f"{metavar} [{metavar} ...]", "*": f"[{metavar} ...]", "?": f"[{metavar}]"}.get(str(action.nargs), metavar)


def row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    names = [f"`{name} {values(action)}`".replace(" `", "`") for name in action.option_strings] or [f"`{values(action)}`"]
    filled = {"prog": command.prog, **{name: value for name, value in vars(action).items() if name != "help"}}
    words = (action.help or "") % filled
    required = " (required)" if action.option_strings and action.required else ""
    return f"| {cell(', '.join(names))} | {cell(words)}{required} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
