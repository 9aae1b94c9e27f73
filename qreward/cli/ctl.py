"""``qreward ctl ACTION [TARGET]``: gives an order to a running process of this user."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, get_args

from qreward.errors import ConfigError
from qreward.live.channel import LIMITS, Action
from qreward.live.processes import directory, processes, request
from qreward.settings.client import OVERLAY, keep_limits

PATIENCE = 10.0
"""Seconds within which a process must answer an order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "action",
        choices=get_args(Action),
        help="pause: send nothing new; resume; drain: leave the work of an endpoint to others; restore it; limit: change its limits; "
        "cancel a batch",
    )
    add("target", nargs="?", metavar="TARGET", help="name of an endpoint, or number of a batch (pause, resume: all endpoints without it)")
    add("--pid", type=int, metavar="N", help="number of the process (default: the only one that runs)")
    for name in LIMITS:
        add(f"--{name.replace('_', '-')}", type=_limit, default=argparse.SUPPRESS, metavar="LIMIT", help=f"for limit: new {name}, or none")
    add("--keep", metavar="FILE", help=f"for limit: also write the limit to FILE{OVERLAY}, which is read whenever FILE is read")
    add("--reason", metavar="TEXT", help="recorded, and shown where it is said why requests wait")
    add("--dry-run", action="store_true", help="only say what would happen")
    add("--json", action="store_true", help="print one JSON document instead of text")


def run(args: argparse.Namespace) -> int:
    """Give the order and print its effects. Returns 0. Raises ``ConfigError`` if the order is refused or no process takes it."""
    limits = {name: getattr(args, name) for name in LIMITS if hasattr(args, name)}
    if args.action != "limit" and (limits or args.keep):
        raise ConfigError(f"limits and --keep belong to limit, not to {args.action}")
    reason = args.reason or ""
    order = {"action": args.action, "target": args.target, "limits": limits, "reason": reason, "dry_run": args.dry_run}
    pid = _only_process() if args.pid is None else args.pid
    effects = _sent(directory() / f"{pid}.sock", pid, order)
    if args.keep and not args.dry_run:
        effects.append(f"kept in {keep_limits(args.keep, args.target, limits, reason)}")
    said = {"pid": pid, "dry_run": args.dry_run, "effects": effects}
    print(json.dumps(said) if args.json else "\n".join(f"{pid}: {'would be: ' if args.dry_run else ''}{each}" for each in effects))
    return 0


def _sent(path: Path, pid: int, order: Mapping[str, Any]) -> list[str]:
    try:
        effects: list[str] = request(path, "POST", "/ctl", order, patience=PATIENCE)["effects"]
    except (OSError, HTTPException) as error:
        raise ConfigError(f"process {pid} does not answer ({error}); `qreward ps` lists those that do") from None
    return effects


def _only_process() -> int:
    running = [each.pid for each in processes(directory()) if each.state == "running"]
    if len(running) != 1:
        raise ConfigError(f"name one of these processes with --pid: {running}" if running else "no process runs that shows itself")
    return running[0]


def _limit(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number or none, not {text!r}") from None
