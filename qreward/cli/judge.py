"""``qreward judge calibrate GOLD`` and ``qreward judge report ITEMS``: calibrate a judge with labelled items, and compare judges."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from qreward.cli import add_timeout
from qreward.client import QRewardClient
from qreward.errors import ConfigError
from qreward.integrations.trainers.rewarder import scorer_of
from qreward.integrations.trainers.settings import RewardConfig, load_reward_config
from qreward.integrations.trainers.verdicts import read_verdicts, report_of, summary
from qreward.judge import Judge
from qreward.judge.agreement import AgreementReport, agreement, calibrate
from qreward.judge.calibration import METHODS, Calibration
from qreward.judge.types import Scorer
from qreward.settings.client import config_from_env

OUTPUT = Path("calibration.json")


def add_judge(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=judge)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    words = "fit a calibration to labelled items"
    fitting = actions.add_parser("calibrate", help=words, description=f"{words.capitalize()}.")
    add = fitting.add_argument
    add("gold", metavar="GOLD", help="file with one item with a 'label' in each line (.jsonl)")
    add("--config", required=True, metavar="FILE", help="file with the settings of client and judge, as for trainers")
    add("--output", type=Path, default=OUTPUT, metavar="PATH", help="file for the calibration (default: %(default)s)")
    add("--method", choices=("auto", *METHODS), default="auto", help="how the calibration is fitted (default: %(default)s)")
    scale = "lowest and highest label (default: 0 1)"
    add("--scale", type=float, nargs=2, default=(0.0, 1.0), metavar=("LOW", "HIGH"), help=scale)
    comparing = actions.add_parser(
        "report",
        help="say how far judges agree, and what biases they have; or what the verdicts of a trainer say",
        description="Say how far judges agree, and what biases they have. Without --config, say what the verdicts of a trainer say.",
    )
    add = comparing.add_argument
    items = "file with one item in each line, with a 'response', or with 'first' and 'second'; or the file of the setting 'verdicts'"
    add("items", metavar="FILE", help=items)
    add("--config", action="append", metavar="FILE", help="file with the settings of client and judge; once for each judge")
    add("--step", type=int, metavar="N", help="only the verdicts of this step of the trainer (default: all)")
    add("--last", type=float, metavar="SECONDS", help="only the verdicts of the last seconds of the file (default: all)")
    for each in (fitting, comparing):
        add_timeout(each, 120.0, of="item")
        each.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def judge(args: argparse.Namespace) -> int:
    """Run the action, and return 0. Raises ``ConfigError`` for an invalid file or item, and ``RequestError`` if too many items fail."""
    if args.action == "calibrate":
        folder = args.output.expanduser().parent
        if args.output.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):  # checked before a request is sent
            reason = "it is a directory" if args.output.is_dir() else f"{str(folder)!r} is no directory that can be written to"
            raise ConfigError(f"cannot write the calibration to {str(args.output)!r}: {reason}; name another file with --output")
        calibration = asyncio.run(_calibrated(args))
        calibration.save(args.output)
        print(calibration.model_dump_json(indent=2) if args.json else f"{calibration}\nwritten {args.output}")
    elif args.config is None:
        found = summary(read_verdicts(args.items, step=args.step, last=args.last))
        print(json.dumps(found, indent=2) if args.json else report_of(found))
    elif args.step is not None or args.last is not None:
        raise ConfigError("--step and --last are for the verdicts of a trainer; leave out --config, or these options")
    else:
        report = asyncio.run(_compared(args.items, args.config, args.timeout))
        print(json.dumps(report.as_dict(), indent=2) if args.json else report)
    return 0


async def _calibrated(args: argparse.Namespace) -> Calibration:
    config = load_reward_config(args.config)
    if config.judge is None:
        raise ConfigError(f"{config.place}: a calibration needs a judge; it has {'cascade' if config.cascade else 'reward_model'} instead")
    bare = config.judge.model_copy(update={"calibration": None})  # the settings may name the calibration file that is made here
    async with AsyncExitStack() as stack:
        judge = await _scorer(config.model_copy(update={"judge": bare}), stack)
        assert isinstance(judge, Judge)
        return await calibrate(judge, args.gold, method=args.method, scale=tuple(args.scale), timeout=args.timeout, progress=not args.json)


async def _compared(items: str, configs: Sequence[str], timeout: float) -> AgreementReport:
    """Compare the judges of these files. A judge has the name of its file without folder and ending, or the path if two names are equal."""
    if len(set(configs)) < len(configs):
        raise ConfigError("--config names a file twice; name one file for each judge")
    short = [Path(config).stem for config in configs]
    names = short if len(set(short)) == len(short) else configs
    async with AsyncExitStack() as stack:
        judges = {name: await _scorer(load_reward_config(config), stack) for name, config in zip(names, configs, strict=True)}
        return await agreement(judges, items, timeout=timeout)


async def _scorer(config: RewardConfig, stack: AsyncExitStack) -> Scorer:
    client = await stack.enter_async_context(QRewardClient.from_config(config.client or config_from_env()))
    scorer = scorer_of(config, client)
    stack.push_async_callback(scorer.aclose)
    return scorer
