"""``qreward check [CONFIG]``: checks each endpoint of a configuration, and reports its state and how to fix its problems.

Sends only GET requests, unless ``--call`` adds one small model request per endpoint. API keys are sent as in normal requests, and are
never shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from qreward.cli import diagnose
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import SCORERS, load_reward_config
from qreward.settings.client import ClientConfig, config_from_env, read_config
from qreward.settings.files import read_settings
from qreward.settings.policies import Endpoint

FROM_ENVIRONMENT = "QREWARD_CONFIG, or OPENAI_BASE_URL and OPENAI_API_KEY"
MODELS_SHOWN = 3
CALL_AT_LEAST = 30.0
"""Minimum timeout of the request of ``--call`` in seconds; a larger ``--timeout`` applies. A model is slower than a status route."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help=f"configuration file, or the settings file of a trainer (.yaml, .json or .toml; default: {FROM_ENVIRONMENT})",
    )
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="SECONDS", help="limit for each endpoint in seconds (default: %(default)g)"
    )
    parser.add_argument(
        "--call", action="store_true", help="also send one small request to each endpoint, with a limit of 30 seconds or more"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Check all endpoints and print the result; 0 if there are no problems, else 1. Raises ``ConfigError`` for an invalid file."""
    if not 0 < args.timeout < float("inf"):
        raise ConfigError(f"--timeout must be more than 0 seconds, not {args.timeout:g}")
    config = configuration(args.config)
    checked = asyncio.run(check_all(config, args.timeout, calls=args.call))
    print(json.dumps({"endpoints": checked}, indent=2) if args.json else report(checked))
    return 1 if any(each["problems"] for each in checked) else 0


def configuration(file: str | None) -> ClientConfig:
    """The settings in a file, or those that the environment names if it is None. Raises ``ConfigError``.

    A settings file of a trainer or a judge is checked, and its client's settings are returned.
    """
    file = file or os.environ.get("QREWARD_CONFIG")
    if file is None:
        return config_from_env()
    if file.startswith(("http://", "https://")):
        raise ConfigError("CONFIG is a file, not a URL; `qreward init --endpoint URL` writes one")
    content, _ = read_settings(file, empty="it must hold at least 'endpoints'")
    if content.keys() & {"client", *SCORERS}:
        return load_reward_config(file).client or config_from_env()
    return read_config(file)[0]


async def check_all(config: ClientConfig, seconds: float, *, calls: bool) -> list[dict[str, Any]]:
    """Check all endpoints concurrently, each with a timeout of ``seconds``; a request of ``--call`` has its own timeout."""
    return await asyncio.gather(*(check(endpoint, config, seconds, calls=calls) for endpoint in config.endpoints))


async def check(endpoint: Endpoint, config: ClientConfig, seconds: float, *, calls: bool) -> dict[str, Any]:
    """The result for one endpoint, as written by ``--json``. Durations are in seconds; None means unknown."""
    found = await diagnose.examine(endpoint, seconds)
    load, days, called, failed = found.load, found.days, None, None
    uncalled = []
    if calls and found.reachable:
        model = diagnose.model_to_call(endpoint, config, load.models)
        if model is None:
            uncalled.append("it was not called, as no name of a model is known; name one in models, without a wildcard")
        else:
            failed = await diagnose.call(endpoint, model, max(seconds, CALL_AT_LEAST))
            called = "answered" if failed is None else "failed"
    answered = called == "answered"
    return {
        "name": endpoint.name,
        "url": endpoint.base_url,
        "kind": endpoint.kind,
        "seems": found.seems if found.seems != endpoint.kind else None,
        "reachable": found.reachable,
        "ready": load.ready,
        "latency": None if found.seconds is None else round(found.seconds, 4),
        "models": list(load.models),
        "patterns": diagnose.patterns_of(endpoint, config),
        "limits": {name: value for name, value in msgspec.structs.asdict(load.limits).items() if value is not None},
        "running": load.running,
        "waiting": load.waiting,
        "tls": None if found.tls is None else found.tls.version,
        "certificate_days": None if days is None else round(days, 1),
        "verify": endpoint.verify,
        "auth": diagnose.auth_of(endpoint, found),
        "called": called,
        "problems": list(diagnose.problems(endpoint, config, found, failed, answered=answered)),
        "notes": [*diagnose.notes(endpoint, config, found, answered=answered), *uncalled],
    }


def report(checked: Sequence[dict[str, Any]]) -> str:
    rows = [_HEAD, *map(_row, checked)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    findings = [
        f"{each['name']}: {text}" for each in checked for text in (*each["problems"], *(f"(note) {note}" for note in each["notes"]))
    ]
    wrong = sum(bool(each["problems"]) for each in checked)
    verdict = "all is well" if not wrong else f"{wrong} of {len(checked)} cannot serve as configured"
    return "\n".join([*lines, "", *findings, *([""] if findings else []), verdict])


_HEAD = ("endpoint", "url", "kind", "state", "latency", "models", "server limits", "queue", "TLS", "key")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    models, latency, ready = each["models"], each["latency"], each["ready"]
    more = f" +{len(models) - MODELS_SHOWN}" if len(models) > MODELS_SHOWN else ""
    queue = [f"{each[name]:g} {name}" for name in ("running", "waiting") if each[name] is not None]
    state = "unreachable" if not each["reachable"] else "not ready" if ready is False else "ready" if ready else "reachable"
    return (
        each["name"],
        each["url"],
        each["kind"] + (f" (seems {each['seems']})" if each["seems"] else ""),
        state + (f", {each['called']}" if each["called"] else ""),
        "-" if latency is None else f"{latency * 1000:.0f} ms",
        ", ".join(models[:MODELS_SHOWN]) + more or "-",
        " ".join(f"{name}={value}" for name, value in each["limits"].items()) or "-",
        ", ".join(queue) or "-",
        _tls(each),
        each["auth"],
    )


def _tls(each: dict[str, Any]) -> str:
    if not each["url"].startswith("https"):
        return "none"
    verify, days = each["verify"], each["certificate_days"]
    verified = "not verified" if verify is False else "verified" if verify is True else "own CAs"
    return ", ".join([*([each["tls"]] if each["tls"] else []), *([] if days is None else [f"{days:.0f} days"]), verified])
