"""``qreward ps``, ``top`` and ``ctl``: list, watch and steer the running processes of this user."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from http.client import HTTPException
from typing import get_args

from qreward.errors import ConfigError
from qreward.live import processes as view
from qreward.live.channel import LIMITS, Action
from qreward.live.processes import directory, processes, request
from qreward.settings.client import OVERLAY, keep_limits

LEAST = 0.2
"""Minimum number of seconds between two updates of ``top``."""
PATIENCE = 10.0
"""Seconds within which a process must answer an order."""


def add_ps(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=ps)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def ps(args: argparse.Namespace) -> int:
    """Print the processes. Returns 0. Raises ``ConfigError`` if their directory cannot be used."""
    found = list(processes(directory()))
    if args.json:
        print(view.as_json(found))
    else:
        print("\n".join(view.plain(view.listed(found))))
    return 0


def add_top(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=top)
    add = parser.add_argument
    add("--once", action="store_true", help="print the state once, and end")
    add("--json", action="store_true", help="print one JSON document for each update instead of text")
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="seconds between updates, at least 0.2 (default: %(default)g)")


def top(args: argparse.Namespace) -> int:
    """Show what the processes do, once or until Ctrl-C. Returns 0. Raises ``ConfigError`` if their directory cannot be used."""
    folder, terminal = directory(), sys.stdout.isatty()
    redraws = terminal and not (args.once or args.json)
    if redraws:
        sys.stdout.write("\x1b[?1049h\x1b[?7l")  # another screen, without the wrapping of long lines
    try:
        while True:
            found = list(processes(folder))
            lines = [view.as_json(found)] if args.json else list(view.plain(view.lines(found), styled=terminal))
            if redraws:
                height = max(1, shutil.get_terminal_size().lines - 1)
                sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines[:height]) + "\x1b[J")
            else:
                print("\n".join(lines))
            sys.stdout.flush()
            if args.once:
                return 0
            time.sleep(max(LEAST, args.interval))
    finally:
        if redraws:
            sys.stdout.write("\x1b[?7h\x1b[?1049l")
            sys.stdout.flush()


def add_ctl(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=ctl)
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


def ctl(args: argparse.Namespace) -> int:
    """Give an order to a process and print its effects. Returns 0. Raises ``ConfigError`` if it is refused or no process takes it."""
    limits = {name: getattr(args, name) for name in LIMITS if hasattr(args, name)}
    if args.action != "limit" and (limits or args.keep):
        raise ConfigError(f"limits and --keep belong to limit, not to {args.action}")
    reason = args.reason or ""
    order = {"action": args.action, "target": args.target, "limits": limits, "reason": reason, "dry_run": args.dry_run}
    running = [each.pid for each in processes(directory()) if each.state == "running"] if args.pid is None else [args.pid]
    if len(running) != 1:
        raise ConfigError(f"name one of these processes with --pid: {running}" if running else "no process runs that shows itself")
    pid = running[0]
    try:
        effects: list[str] = request(directory() / f"{pid}.sock", "POST", "/ctl", order, patience=PATIENCE)["effects"]
    except (OSError, HTTPException) as error:
        raise ConfigError(f"process {pid} does not answer ({error}); `qreward ps` lists those that do") from None
    if args.keep and not args.dry_run:
        effects.append(f"kept in {keep_limits(args.keep, args.target, limits, reason)}")
    if args.json:
        print(json.dumps({"pid": pid, "dry_run": args.dry_run, "effects": effects}))
    else:
        print("\n".join(f"{pid}: {'would be: ' if args.dry_run else ''}{each}" for each in effects))
    return 0


def _limit(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number or none, not {text!r}") from None
