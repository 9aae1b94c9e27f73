"""``qreward fleet SPEC``: runs a fleet of fake judges until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

import msgspec

from qreward.errors import ConfigError
from qreward.testing import FakeFleet
from qreward.testing.fleet import fast_loop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec", metavar="SPEC", help="file with the endpoints (.yaml, .json or .toml), as qreward.testing.FakeEndpoint describes them"
    )


def run(args: argparse.Namespace) -> int:
    """Run the fleet until a signal arrives. Raises ``ConfigError`` for an invalid spec or a port that is taken."""
    fleet = FakeFleet(args.spec)
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        try:
            runner.run(_serve(fleet))
        except ConfigError as error:
            raise ConfigError(f"{args.spec}: {error}") from None
    print(json.dumps({"seen": msgspec.to_builtins([fleet.seen(name) for name in fleet.names])}))
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
        ready = [{"name": each.name, "base_url": each.base_url, "models": each.models} for each in fleet.endpoints]
        print(json.dumps({"endpoints": ready}), flush=True)
        print("Ctrl-C ends it.", file=sys.stderr, flush=True)
        await stop.wait()
    finally:
        await fleet.__aexit__(None, None, None)
