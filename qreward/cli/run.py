"""``qreward run INPUT... --output PATH``: sends the requests of files, and writes the results. The same command goes on where it stopped.

The work is done by ``qreward.bulk``.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

import msgspec

from qreward.bulk.report import BulkReport
from qreward.bulk.run import BulkRun
from qreward.bulk.start import run_bulk
from qreward.client import QRewardClient
from qreward.errors import ConfigError

_NAMES = ("model", "template", "system", "timeout", "deadline", "max_cost", "max_tokens", "sample", "order", "retry_failed", "resume")
"""Settings that have the name of their option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", nargs="+", metavar="INPUT", help="files, globs in quotes, or - (standard input): .jsonl .csv .tsv .parquet .gz .zst")
    add("--output", required=True, metavar="PATH", help="where the results go: .jsonl, or .parquet")
    add("--config", metavar="FILE", help="the client's settings (default: QREWARD_CONFIG, or OPENAI_BASE_URL and OPENAI_API_KEY)")
    add("--model", metavar="NAME", help="the model of lines that name none")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of lines that do not set it, such as max_tokens=512")
    add("--template", metavar="TEXT", help="makes the prompt of a row; {column} is replaced with its value; @FILE reads it from a file")
    add("--system", metavar="TEXT", help="system message of plain lines and rows; @FILE reads it from a file")
    add("--timeout", type=float, default=600.0, metavar="SECONDS", help="for one line, queueing included (default: %(default)g)")
    add("--deadline", type=float, metavar="SECONDS", help="send nothing more after this time; finish what is in flight")
    add("--max-cost", type=float, metavar="DOLLARS", help="never spend more; what is in flight counts with all of its max_tokens")
    add("--max-tokens", type=int, metavar="TOKENS", help="never use more tokens, prompts included")
    add("--sample", type=int, metavar="N", help="stop after N lines; the next run goes on with the others")
    add("--shard", type=_shard, metavar="I/N", help="only the I-th of every N lines, from 1")
    add("--order", choices=("input", "any"), default="input", help="order of the output (default: %(default)s)")
    add("--retry-failed", action="store_true", help="send lines again that failed in an earlier run")
    add("--resume", choices=("auto", "force"), default="auto", help="force goes on although the input or the settings have changed")
    add("--progress", choices=("bar", "none"), default="bar", help="how the progress is shown (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run; 0 if all lines are done, 1 if some failed, 75 if the same command can go on. Raises ``ConfigError``."""
    settings: dict[str, Any] = {name: getattr(args, name) for name in _NAMES}
    settings |= {name: _text(settings[name]) for name in ("template", "system")}
    settings |= {"params": dict(map(_parameter, args.set)), "shard": args.shard, "progress": args.progress == "bar"}
    report = asyncio.run(_run(args, settings))
    print(report)
    return report.exit_code


async def _run(args: argparse.Namespace, settings: dict[str, Any]) -> BulkReport:
    client = QRewardClient.from_env() if args.config is None else QRewardClient.from_config(args.config)
    async with client:
        return await run_bulk(client, args.input, args.output, settings, on_start=_stop_on_interrupt)


def _stop_on_interrupt(run: BulkRun) -> None:
    """Let the first Ctrl-C finish what is in flight, and the second one stop at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        print("\nfinishing what is in flight; Ctrl-C again stops now", flush=True)
        run.stop("it was interrupted")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, run.stop_now)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be I/N, such as 1/4, not {text!r}")
    return int(index), int(count)


def _parameter(text: str) -> tuple[str, Any]:
    """``name=value``; the value is JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set needs NAME=VALUE, such as max_tokens=512, not {text!r}")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def _text(value: str | None) -> str | None:
    if value is None or not value.startswith("@"):
        return value
    try:
        with open(value[1:], encoding="utf-8") as file:  # noqa: PTH123 - the user's own path
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{value[1:]!r} cannot be read: {error}") from None
