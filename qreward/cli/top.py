"""``qreward top``: shows what all processes of this user do, once or until a key ends it."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from qreward.live import view
from qreward.live.directory import Process, directory, processes

Look = Callable[[], Iterator[Process]]
LEAST = 0.2
"""Minimum number of seconds between two updates."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--once", action="store_true", help="print the state once, and end")
    add("--json", action="store_true", help="print one JSON document for each update instead of text")
    add("--interval", type=float, default=1.0, metavar="SECONDS", help="seconds between updates, at least 0.2 (default: %(default)g)")
    add("--sort", choices=view.SORTS, default=view.SORTS[0], help="order of the endpoints (default: %(default)s)")
    parser.epilog = "Keys: s sorts by the next column, e shows only endpoints with errors or without room, q ends."


def run(args: argparse.Namespace) -> int:
    """Show the processes. Returns 0. Raises ``ConfigError`` if their directory cannot be used."""
    folder, shown = directory(), view.Shown(sort=args.sort)
    look = partial(processes, folder)
    if args.json or args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print_on(args, look, shown)
    else:
        _redraw(args, look, shown)
    return 0


def _print_on(args: argparse.Namespace, look: Look, shown: view.Shown) -> None:
    while True:
        found = list(look())
        if args.json:
            print(view.as_json(found), flush=True)
        else:
            print("\n".join(view.plain(view.blocks(found, shown), styled=sys.stdout.isatty())), flush=True)
        if args.once:
            return
        time.sleep(max(LEAST, args.interval))


def _redraw(args: argparse.Namespace, look: Look, shown: view.Shown) -> None:
    key = ""
    with _keys() as read:
        sys.stdout.write("\x1b[?1049h\x1b[?7l")  # another screen, without the wrapping of long lines
        try:
            while shown.take(key):
                height = max(1, shutil.get_terminal_size().lines - 1)
                lines = list(view.plain(view.blocks(list(look()), shown), styled=True))[:height]
                sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + "\x1b[J")
                sys.stdout.flush()
                key = read(max(LEAST, args.interval))
        finally:
            sys.stdout.write("\x1b[?7h\x1b[?1049l")
            sys.stdout.flush()


@contextmanager
def _keys() -> Iterator[Any]:
    """Read single keys from the terminal. Yields a function that waits some seconds for a key, and returns it or ``""``."""
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield lambda seconds: os.read(0, 1).decode(errors="ignore") if select.select([0], [], [], seconds)[0] else ""
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
