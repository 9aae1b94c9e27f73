"""``qreward ps``: lists the processes of this user that show themselves."""

from __future__ import annotations

import argparse

from qreward.live import processes as view
from qreward.live.processes import directory, processes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def run(args: argparse.Namespace) -> int:
    """Print the processes. Returns 0. Raises ``ConfigError`` if their directory cannot be used."""
    found = list(processes(directory()))
    if args.json:
        print(view.as_json(found))
    else:
        print("\n".join(view.plain([view.listed(found)])) if found else view.NONE)
    return 0
