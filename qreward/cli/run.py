"""``qreward run INPUT... --output PATH``: sends the requests of files, and writes the results."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import msgspec

from qreward.bulk.run import BulkRun, dry_run, run_bulk
from qreward.client import QRewardClient
from qreward.errors import ConfigError
from qreward.integrations.trainers.rewarder import scorer_of
from qreward.integrations.trainers.settings import RewardConfig, load_reward_config
from qreward.live.channel import show_if_wanted
from qreward.runtime import runtime_of

_NAMES = (
    "model", "template", "system", "deadline", "max_cost", "max_tokens", "sample", "shard", "retry_failed", "resume", "provider_batches",
)  # fmt: skip
"""Settings whose option on the command line has the name of the setting, such as ``--max-cost`` for ``max_cost``."""


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("input", nargs="+", metavar="INPUT", help="files, globs in quotes, or - (standard input): .jsonl .csv .tsv .parquet, or with .gz")
    add("--output", required=True, metavar="PATH", help="file for the results (.jsonl or .jsonl.gz)")
    add("--config", metavar="FILE", help="configuration file (default: QREWARD_CONFIG, or OPENAI_BASE_URL and OPENAI_API_KEY)")
    add("--model", metavar="NAME", help="model of lines that name none (default: each line must name one)")
    parameter = "parameter for lines that do not set it, such as max_tokens=512; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=parameter)
    add("--template", metavar="TEXT", help="prompt of a row, in which {column} is replaced with its value; @FILE reads it from a file")
    add("--system", metavar="TEXT", help="system message of plain lines and rows; @FILE reads it from a file")
    scorer = parser.add_mutually_exclusive_group()
    scorer.add_argument("--judge", metavar="FILE", help="judge each line as an item, with the judge of this trainer's settings file")
    scorer.add_argument("--score", metavar="MODEL", help="score each line as an item with this reward model")
    limit = "limit for one line in seconds, from when an endpoint takes it (default: 600, or the deadline of --judge)"
    add("--timeout", type=float, metavar="SECONDS", help=limit)
    deadline = "seconds after which no more requests are sent; those in flight are finished (default: none)"
    add("--deadline", type=float, metavar="SECONDS", help=deadline)
    cost = "maximum US dollars of all runs with this output; in flight, max_tokens count (default: no limit)"
    add("--max-cost", type=float, metavar="DOLLARS", help=cost)
    tokens = "maximum number of tokens, prompts included, of all runs with this output (default: no limit)"
    add("--max-tokens", type=int, metavar="TOKENS", help=tokens)
    add("--sample", type=int, metavar="N", help="stop after N lines; the next run continues with the others (default: all lines)")
    add("--shard", type=_shard, metavar="I/N", help="only every N-th line, beginning with line I, such as 1/4 (default: all lines)")
    add("--retry-failed", action="store_true", help="send again the lines that failed in an earlier run")
    changed = "force continues although the names of the input or the settings have changed; auto refuses that (default: %(default)s)"
    add("--resume", choices=("auto", "force"), default="auto", help=changed)
    batches = "whether endpoints of kind openai_batch are used (default: %(default)s)"
    add("--provider-batches", choices=("auto", "never"), default="auto", help=batches)
    add("--trace", metavar="FILE", help="write the attempts as Chrome trace JSON, for https://ui.perfetto.dev")
    add("--dry-run", action="store_true", help="read the input, send nothing, and print what would be sent")
    shown = "how the progress is shown on standard error (default: %(default)s)"
    add("--progress", choices=("bar", "plain", "json", "none"), default="bar", help=shown)


def run(args: argparse.Namespace) -> int:
    """Return 0 if all lines succeeded, 1 if some failed, 75 if the same command can continue the run; a dry run 0, or 2 with bad lines."""
    settings: dict[str, Any] = {name: getattr(args, name) for name in _NAMES}
    settings |= {name: _text(settings[name]) for name in ("template", "system")}
    settings["params"] = dict(map(_parameter, args.set))
    scorer, timeout = None if args.score is None else RewardConfig(reward_model=args.score), args.timeout
    if args.judge is not None:
        scorer = load_reward_config(args.judge)
        if scorer.rank is not None:
            raise ConfigError(f"{scorer.place}: rank: the lines of a run are no groups; leave out rank, or use Judge.batch_rank")
    if scorer is not None:
        settings |= {"columns": scorer.columns, "priority": scorer.priority}
        timeout = scorer.deadline if timeout is None else timeout
    if timeout is not None:  # otherwise the default of the settings
        settings["timeout"] = timeout
    show = partial(print, file=sys.stderr, flush=True)
    shown: dict[str, Any] = {"bar": True, "plain": "plain", "json": lambda seen: show(msgspec.json.encode(seen).decode()), "none": False}
    settings["progress"] = shown[args.progress]
    return asyncio.run(_run(args, settings, scorer))


async def _run(args: argparse.Namespace, settings: dict[str, Any], config: RewardConfig | None) -> int:
    found = args.config or (None if config is None else config.client)
    client = QRewardClient.from_env() if found is None else QRewardClient.from_config(found)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        scorer: Any = None
        if config is not None:
            scorer = scorer_of(config, client)
            stack.push_async_callback(scorer.aclose)
        if args.dry_run:
            plan = dry_run(client, args.input, settings, scorer=scorer)
            print(plan)
            return 2 if plan.bad else 0
        show_if_wanted(runtime_of(client), default=True)
        if args.trace is not None:
            stack.enter_context(client.trace(args.trace))
        try:
            report = await run_bulk(client, args.input, args.output, settings, scorer=scorer, on_start=_stop_on_interrupt)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)
    print(report)
    return report.exit_code


def _stop_on_interrupt(run: BulkRun) -> None:
    """Set what Ctrl-C does. The first Ctrl-C stops the run after the requests in flight are finished. The second stops the run at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        run.stop("it was interrupted")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, run.stop_now)
        with suppress(OSError):  # Ctrl-C has also ended the reader of a pipe
            print("\nfinishing the requests in flight; press Ctrl-C again to stop now", file=sys.stderr, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be I/N, such as 1/4, not {text!r}")
    return int(index), int(count)


def _parameter(text: str) -> tuple[str, Any]:
    """Return the name and the value in ``name=value``. A value that is not JSON is a string."""
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
