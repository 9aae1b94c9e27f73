"""``qreward top``: shows what all processes of this user do, once or until Ctrl-C."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from qreward.live import processes as view
from qreward.live.processes import directory, processes

LEAST = 0.2
"""Minimum number of seconds between two updates."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--once", action="store_true", help="print the state once, and end")
    add("--json", action="store_true", help="print one JSON document for each update instead of text")
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="seconds between updates, at least 0.2 (default: %(default)g)")


def run(args: argparse.Namespace) -> int:
    """Show the processes. Returns 0. Raises ``ConfigError`` if their directory cannot be used."""
    folder, terminal = directory(), sys.stdout.isatty()
    redraws = terminal and not (args.once or args.json)
    if redraws:
        sys.stdout.write("\x1b[?1049h\x1b[?7l")  # another screen, without the wrapping of long lines
    try:
        while True:
            found = list(processes(folder))
            lines = [view.as_json(found)] if args.json else list(view.plain(view.blocks(found), styled=terminal))
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
