"""The command line: ``qreward VERB ...``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from math import inf
from typing import Any

from qreward import __version__
from qreward.errors import QRewardError, did_you_mean

CLOSED_PIPE = 141
"""Exit status if the reader of standard output has closed the pipe. A shell reports this status for SIGPIPE."""
VERBS = {
    "demo": ("demo", "judge a batch on fake judges, one of which dies half-way"),
    "init": ("init", "write a commented configuration, and the settings of a judge"),
    "run": ("run", "send the requests of files and write the results; the same command continues where it stopped"),
    "check": ("check", "check each endpoint of a configuration, and say what to change if it cannot serve"),
    "route": ("check", "say which endpoints serve a model, and why"),
    "ps": ("live", "list the running programs of this user that show themselves"),
    "top": ("live", "show what the running programs of this user do, and why requests wait"),
    "ctl": ("live", "pause, resume, drain, limit or cancel work of a running program"),
    "serve": ("serve", "serve a scoring function as a reward server, until SIGTERM or Ctrl-C"),
    "judge": ("judge", "calibrate a judge with labelled items, or compare judges"),
    "fleet": ("demo", "run fake LLM judges on this machine, until Ctrl-C"),
}
"""Verb -> the module with its function ``add_<verb>``, which adds the arguments of the verb and sets ``run``, and the help text."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status: 0 for success, 1 for a failure that the verb reports, 2 for a wrong argument or setting,
    130 if it was interrupted, 141 if the reader of standard output has closed the pipe. Raises ``SystemExit`` as argparse does."""
    given = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if given[0] == COMPLETION and importlib.util.find_spec("shtab") is None:
        parser().error("shell completion needs shtab: pip install 'qreward[completion]'")
    made = parser(None if given[0] == COMPLETION else given[0])
    if given[0] not in VERBS and not given[0].startswith("-"):
        made.error(f"unknown command {given[0]!r}; {did_you_mean(given[0], VERBS, otherwise='the commands are')}")
    args = made.parse_args(given)
    try:
        status = int(args.run(args))
        if sys.stdout is not None:  # it is None if it was closed before
            sys.stdout.flush()  # raises ``BrokenPipeError`` if the pipe is closed
    except BrokenPipeError:  # the reader, such as `head`, has ended; Python must not flush the rest at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except QRewardError as error:
        for line in (*str(error).splitlines(), f"see {error.help_url}"):
            print(f"qreward {args.verb}: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # connections are closed and servers stopped at this point
        print(f"\nqreward {args.verb}: stopped", file=sys.stderr)
        return 130
    return status


COMPLETION = "--print-completion"
FILES = frozenset({"CONFIG", "FILE", "GOLD", "INPUT", "ITEMS", "PATH", "SPEC"})
"""The metavars of arguments that are file names."""


def _mark_files(parser: argparse.ArgumentParser, how: object) -> None:
    """Mark the arguments that are file names. shtab reads the mark from the attribute ``complete``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark_files(inner, how)
        elif action.metavar in FILES:
            action.complete = how  # type: ignore[attr-defined]


class CommandParser(argparse.ArgumentParser):
    """Reports an unknown option with the usage of its verb and the closest option."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        for name in (each.partition("=")[0] for each in unknown):
            if name.startswith("-") and name != "-":
                self.error(f"unknown option {name!r}; {did_you_mean(name, self._option_string_actions, otherwise='the options are')}")
        return found, unknown


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser, also for the reference page and the completion. ``only`` is the verb whose arguments are added; None adds all."""
    made = CommandParser(prog="qreward", description="One async client over many LLM-judge and GPU reward endpoints.")
    version = f"qreward {__version__} (Python {platform.python_version()})"
    made.add_argument("--version", action="version", version=version, help="print the versions of qreward and Python")
    verbs = made.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (module, purpose) in VERBS.items():
        found = verbs.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if only in (None, name):
            getattr(importlib.import_module(f"qreward.cli.{module}"), f"add_{name}")(found)
    if (only or "-")[0] != "-" or importlib.util.find_spec("shtab") is None:
        return made
    import shtab  # noqa: PLC0415 - an extra

    shtab.add_argument_to(made, [COMPLETION], help="print a script that completes commands, options and files in this shell")
    _mark_files(made, shtab.FILE)
    return made


# arguments of several verbs


def add_timeout(parser: argparse.ArgumentParser, default: float, of: str) -> None:
    """Add ``--timeout SECONDS``. ``of`` names what the limit applies to, such as ``endpoint`` or ``item``."""
    text = f"limit for each {of} in seconds (default: %(default)g)"
    parser.add_argument("--timeout", type=_positive_seconds, default=default, metavar="SECONDS", help=text)


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}") from None
    if not 0 < seconds < inf:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, and finite, not {seconds:g}")
    return seconds
