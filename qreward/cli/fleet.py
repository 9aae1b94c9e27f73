"""``qreward fleet SPEC``: runs a fleet of fake judges until Ctrl-C or SIGTERM.

Standard output is for machines: one line of JSON when the fleet is ready, and one when it has ended. Standard error is for people.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from qreward.cli import text_table
from qreward.errors import ConfigError
from qreward.testing import FakeFleet, Seen
from qreward.testing.server import fast_loop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SPEC", help="a .yaml, .json or .toml file with the endpoints: see qreward.testing.FakeEndpoint")


def run(args: argparse.Namespace) -> int:
    """Run the fleet until a signal arrives. Raises ``ConfigError`` for an invalid spec or a port that is taken."""
    fleet = FakeFleet(args.spec)
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        try:
            runner.run(_serve(fleet))
        except ConfigError as error:
            raise ConfigError(f"{args.spec}: {error}") from None
    seen = [fleet.seen(name) for name in fleet.names]
    _print(json.dumps({"seen": msgspec.to_builtins(seen)}), _SEEN, [[_cell(getattr(each, field)) for field in _SEEN] for each in seen])
    return 0


async def _serve(fleet: FakeFleet) -> None:
    try:
        await fleet.__aenter__()
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None
    try:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop.set)
        _announce(fleet)
        await stop.wait()
    finally:
        await fleet.__aexit__(None, None, None)


def _announce(fleet: FakeFleet) -> None:
    ready = [{"name": each.name, "base_url": each.base_url, "models": each.models} for each in fleet.endpoints]
    rows = [[each.name, each.base_url, " ".join(each.models)] for each in fleet.endpoints]
    _print(json.dumps({"endpoints": ready}), ("name", "base_url", "models"), rows)
    print("Ctrl-C ends it.", file=sys.stderr, flush=True)


_SEEN: tuple[str, ...] = tuple(name for name in Seen.__struct_fields__ if name not in ("first_request", "last_request"))


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{kind}:{count}" for kind, count in sorted(value.items())) or "-"
    return str(value)


def _print(line: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a line for machines to standard output, and a table for people to standard error."""
    print(line, flush=True)
    for row in text_table([[name.replace("_", " ") for name in head], *rows]):
        print(row, file=sys.stderr)
