"""``qreward check CONFIG``: checks each endpoint of a configuration, and reports its state and how to fix its problems.

Sends only GET requests, unless ``--call`` adds one small model request per endpoint. API keys are sent as in normal requests, and are
never shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from qreward.cli import diagnose
from qreward.cli.diagnose import Examined, call, examine
from qreward.errors import ConfigError
from qreward.settings.client import ClientConfig, read_config
from qreward.settings.policies import Endpoint

MODELS_SHOWN = 3
CALL_AT_LEAST = 30.0
"""Minimum timeout of the request of ``--call`` in seconds; a larger ``--timeout`` applies. A model is slower than a status route."""


class Checked(msgspec.Struct):
    """The result for one endpoint, as written by ``--json``. Durations are in seconds; None means unknown."""

    name: str
    url: str
    kind: str
    seems: str | None
    reachable: bool
    ready: bool | None
    latency: float | None
    models: list[str]
    patterns: list[str]
    limits: dict[str, int]
    running: float | None
    waiting: float | None
    tls: str | None
    certificate_days: float | None
    verify: bool | str
    auth: str
    called: str | None
    problems: list[str]
    notes: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``qreward check``."""
    parser.add_argument("config", metavar="CONFIG", help="a .yaml, .json or .toml file: see docs/configuration.md")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="for each endpoint (default: %(default)g)")
    parser.add_argument("--call", action="store_true", help="also send one tiny request to each endpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Check all endpoints and print the result; 0 if there are no problems, else 1. Raises ``ConfigError`` for an invalid file."""
    if not 0 < args.timeout < float("inf"):
        raise ConfigError(f"--timeout must be more than 0 seconds, not {args.timeout:g}")
    config, _ = read_config(args.config)
    checked = asyncio.run(check_all(config, args.timeout, calls=args.call))
    print(json.dumps({"endpoints": msgspec.to_builtins(checked)}, indent=2) if args.json else report(checked))
    return 1 if any(each.problems for each in checked) else 0


async def check_all(config: ClientConfig, seconds: float, *, calls: bool = False) -> list[Checked]:
    """Check all endpoints concurrently, each with a timeout of ``seconds``; a request of ``--call`` has its own timeout."""
    return await asyncio.gather(*(check(endpoint, config, seconds, calls=calls) for endpoint in config.endpoints))


async def check(endpoint: Endpoint, config: ClientConfig, seconds: float, *, calls: bool = False) -> Checked:
    """Check one endpoint."""
    found = await examine(endpoint, seconds)
    model = diagnose.model_to_ask(endpoint, config, found.load.models)
    if not (calls and found.reachable and model is not None):
        checked = _summed_up(endpoint, config, found)
        if calls and found.reachable:
            checked.notes.append("it was not called, as no name of a model is known; name one in models, without a wildcard")
        return checked
    failed = await call(endpoint, model, max(seconds, CALL_AT_LEAST))
    return _summed_up(endpoint, config, found, "answered" if failed is None else "failed", failed)


def _summed_up(endpoint: Endpoint, config: ClientConfig, found: Examined, called: str | None = None, failed: str | None = None) -> Checked:
    load, days = found.load, None if found.tls is None else found.tls.days(datetime.now(UTC))
    limits = {name: value for name, value in msgspec.structs.asdict(load.limits).items() if value is not None}
    return Checked(
        name=endpoint.name,
        url=endpoint.base_url,
        kind=endpoint.kind,
        seems=found.seems if found.seems != endpoint.kind else None,
        reachable=found.reachable,
        ready=load.ready,
        latency=None if found.seconds is None else round(found.seconds, 4),
        models=list(load.models),
        patterns=diagnose.patterns_of(endpoint, config),
        limits=limits,
        running=load.running,
        waiting=load.waiting,
        tls=None if found.tls is None else found.tls.version,
        certificate_days=None if days is None else round(days, 1),
        verify=endpoint.verify,
        auth=diagnose.auth_of(endpoint, found),
        called=called,
        problems=list(diagnose.problems(endpoint, config, found, failed, answered=called == "answered")),
        notes=list(diagnose.notes(endpoint, config, found)),
    )


def report(checked: Sequence[Checked]) -> str:
    """The table of endpoints, followed by problems, notes, and the overall result."""
    lines = _table([_HEAD, *map(_row, checked)])
    said = [f"{each.name}: {word}{text}" for each in checked for word, texts in _kinds(each) for text in texts]
    wrong = sum(bool(each.problems) for each in checked)
    verdict = "all is well" if not wrong else f"{wrong} of {len(checked)} cannot serve as configured"
    return "\n".join([*lines, "", *said, *([""] if said else []), verdict])


_HEAD = ("endpoint", "url", "kind", "state", "latency", "models", "server limits", "queue", "TLS", "key")


def _kinds(each: Checked) -> tuple[tuple[str, list[str]], ...]:
    return ("", each.problems), ("(note) ", each.notes)


def _row(each: Checked) -> tuple[str, ...]:
    state = "unreachable" if not each.reachable else "not ready" if each.ready is False else "ready" if each.ready else "reachable"
    return (
        each.name,
        each.url,
        each.kind + (f" (seems {each.seems})" if each.seems else ""),
        state + (f", {each.called}" if each.called else ""),
        "-" if each.latency is None else f"{each.latency * 1000:.0f} ms",
        _models(each.models),
        " ".join(f"{name}={value}" for name, value in each.limits.items()) or "-",
        _queue(each),
        _tls(each),
        each.auth,
    )


def _models(names: Sequence[str]) -> str:
    more = f" +{len(names) - MODELS_SHOWN}" if len(names) > MODELS_SHOWN else ""
    return ", ".join(names[:MODELS_SHOWN]) + more if names else "-"


def _queue(each: Checked) -> str:
    told = [f"{value:g} {word}" for value, word in ((each.running, "running"), (each.waiting, "waiting")) if value is not None]
    return ", ".join(told) or "-"


def _tls(each: Checked) -> str:
    if not each.url.startswith("https"):
        return "none"
    verify = "not verified" if each.verify is False else "verified" if each.verify is True else "own CAs"
    days = [] if each.certificate_days is None else [f"{each.certificate_days:.0f} days"]
    return ", ".join([*([each.tls] if each.tls else []), *days, verify])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
