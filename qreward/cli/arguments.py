"""Arguments that several commands have."""

from __future__ import annotations

import argparse
from math import inf


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
