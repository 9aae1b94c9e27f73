"""``qreward check [CONFIG]``: checks each endpoint of a configuration, and reports its state and how to fix its problems."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qreward.cli import diagnose, machine
from qreward.cli.arguments import add_timeout
from qreward.engine.addresses import resolved
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import SCORERS, RewardConfig, name_source_in_errors, read_reward_settings, reward_config_of
from qreward.integrations.trainers.settings import check as check_reward_config
from qreward.settings.client import CONFIG_VARIABLE, ClientConfig, config_from_env, config_of, read_config
from qreward.settings.policies import Endpoint
from qreward.transport.connection_settings import configured_proxy
from qreward.transport.redaction import Secrets

FROM_ENVIRONMENT = "QREWARD_CONFIG, or OPENAI_BASE_URL and OPENAI_API_KEY"
MODELS_SHOWN = 3
USABLE = ("ready", "reachable")
"""States of an endpoint that refused no request."""
CALL_AT_LEAST = 30.0
"""Minimum timeout in seconds of the request that ``--call`` adds, because a model is slower than a status route. If ``--timeout`` is
larger, ``--timeout`` applies."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help=f"configuration file, or the settings file of a trainer (.yaml, .json or .toml; default: {FROM_ENVIRONMENT})",
    )
    add_timeout(parser, 5.0, of="endpoint")
    parser.add_argument(
        "--call",
        action="store_true",
        help="also send one small request to each endpoint, or one for each model that scores if CONFIG is a trainer's file; each has a "
        "limit of 30 seconds or more",
    )
    parser.add_argument(
        "--report", action="store_true", help="also print versions, extras, where the settings come from, and the limits of this machine"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def run(args: argparse.Namespace) -> int:
    """Check all endpoints and print the result. Returns 0 if there are no problems, else 1.

    Raises ``ConfigError`` for an invalid file; with ``--report``, an invalid file is one of the problems.
    """
    if args.report:
        found = examined(args.config, args.timeout, calls=args.call)
        print(json.dumps(found, indent=2) if args.json else "\n".join(_whole_report(found)))
        return 1 if found["problems"] or any(each["problems"] for each in found["endpoints"]) else 0
    config, asked = configuration(args.config)
    checked = asyncio.run(check_all(config, args.timeout, calls=args.call, asked=asked))
    print(json.dumps({"endpoints": checked}, indent=2) if args.json else report(checked))
    return 1 if any(each["problems"] for each in checked) else 0


def examined(file: str | None, seconds: float, *, calls: bool = False) -> dict[str, Any]:
    """Return the report in the form that ``--report --json`` prints. Its ``problems`` are those that belong to no endpoint."""
    settings, config, asked = _settings(file)
    endpoints = [] if config is None else asyncio.run(check_all(config, seconds, calls=calls, asked=asked))
    found = machine.machine_report()
    few = machine.few_files(config, found["machine"]["open_files"])
    return {
        **found,
        "settings": settings,
        "through_proxy": [] if config is None else [each.name for each in config.endpoints if configured_proxy(each)],
        "endpoints": endpoints,
        "problems": [*([settings["error"]] if settings["error"] else []), *few],
    }


def _settings(file: str | None) -> tuple[dict[str, Any], ClientConfig | None, tuple[diagnose.ScorerModel, ...]]:
    """Return the part of the report about the settings, the configuration, and the models of its scorers."""
    named = file or os.environ.get(CONFIG_VARIABLE)
    variable = next((name for name in machine.SETTINGS[2:] if os.environ.get(name)), None)
    found: dict[str, Any] = {
        "source": "CONFIG" if file else CONFIG_VARIABLE if named else variable,
        "file": named and Secrets().hide(named),
        "variables": {} if named is None else machine.variables_of(Path(named)),
        "error": None,
    }
    try:
        config, asked = configuration(file) if named or variable else (None, ())
    except ConfigError as error:
        return found | {"error": str(error)}, None, ()
    return found, config, asked


def _whole_report(found: Mapping[str, Any]) -> Iterator[str]:
    yield from machine.report_lines(found)
    if found["endpoints"]:
        yield from ("", report(found["endpoints"]))
    for problem in found["problems"]:
        yield from ("", problem)


def configuration(file: str | None) -> tuple[ClientConfig, tuple[diagnose.ScorerModel, ...]]:
    """Return the settings in a file, and the models of its scorers. If ``file`` is None, return what ``QRewardClient.from_env`` uses."""
    if file is None:  # ``from_env`` is not called, because it logs warnings; this command prints them as notes
        named = os.environ.get(CONFIG_VARIABLE)
        return (read_config(named)[0] if named else config_from_env()), ()
    if file.startswith(("http://", "https://")):
        raise ConfigError("CONFIG is a file, not a URL; `qreward init --endpoint URL` writes one")
    content, place = read_reward_settings(file, empty="it must contain at least 'endpoints'")
    if content.keys() & {"client", *SCORERS}:
        return _of_a_scorer(reward_config_of(content, place))
    if setting := _setting_of_fakes(content):
        what = f"this is a file for `qreward fleet`: its endpoints have {setting!r}, and none has base_url"
        raise ConfigError(f"{place}: {what}; write the addresses that `qreward fleet` prints into a configuration, and check that")
    return config_of(content, place), ()


def _of_a_scorer(found: RewardConfig) -> tuple[ClientConfig, tuple[diagnose.ScorerModel, ...]]:
    config = found.client or config_from_env()
    with name_source_in_errors(found):
        check_reward_config(found, diagnose.endpoints_by_pattern(config).items())
    asked = (
        diagnose.ScorerModel(*((setting, stage, True) if isinstance(stage, str) else (f"{setting}.model", model, False)))
        for setting, stage in found.stages.items()
        for model in ((stage,) if isinstance(stage, str) else stage.model)
    )
    return config, tuple(asked)


def _setting_of_fakes(content: Mapping[str, Any]) -> str | None:
    endpoints = content.get("endpoints")
    if not isinstance(endpoints, list) or not all(isinstance(each, dict) and "base_url" not in each for each in endpoints):
        return None
    from qreward.testing import FakeEndpoint  # noqa: PLC0415 - only for this error

    only_fakes = FakeEndpoint.model_fields.keys() - Endpoint.model_fields.keys()
    return next((name for each in endpoints for name in each if name in only_fakes), None)


async def check_all(
    config: ClientConfig, seconds: float, *, calls: bool, asked: Sequence[diagnose.ScorerModel] = ()
) -> list[dict[str, Any]]:
    """Check all endpoints concurrently, each with a timeout of ``seconds``. The requests that ``--call`` adds have their own timeout."""
    config = resolved(config)
    return await asyncio.gather(*(check(endpoint, config, seconds, calls=calls, asked=asked) for endpoint in config.endpoints))


async def check(
    endpoint: Endpoint, config: ClientConfig, seconds: float, *, calls: bool, asked: Sequence[diagnose.ScorerModel] = ()
) -> dict[str, Any]:
    """Check one endpoint, and return the result in the form that ``--json`` prints. Durations are in seconds; None means unknown."""
    here = diagnose.asked_of(endpoint, config, asked)
    found = await diagnose.examine(endpoint, seconds)
    load, called = found.load, diagnose.NOT_CALLED
    uncalled = []
    if calls and found.reachable:
        model = diagnose.model_to_call(endpoint, config, load.models)
        calling: list[tuple[str, str | None]] = [(each.model, "scores" if each.scores else "chat") for each in here]
        calling = calling or ([] if model is None else [(model, None)])
        longest = max(seconds, CALL_AT_LEAST)
        if not calling:
            uncalled.append("no model was called, because no model name is known; add a name without a wildcard to models")
        else:
            sent = (diagnose.call(endpoint, name, longest, what) for name, what in calling)
            error = next(filter(None, await asyncio.gather(*sent)), None)
            called = diagnose.Called(answered=error is None, error=error, models=tuple(name for name, _ in calling))
            if calling[0][1] is None and called.status in diagnose.NO_SUCH_API:
                for what in ("embeddings", "scores"):
                    if await diagnose.call(endpoint, calling[0][0], longest, what) is None:
                        called = msgspec.structs.replace(called, answered=True, error=None, instead=what)
                        break
    state = diagnose.state_of(endpoint, found, called)
    return {
        "name": endpoint.name,
        "url": endpoint.base_url,
        "kind": endpoint.kind,
        "seems": found.seems if found.seems != endpoint.kind else None,
        "reachable": found.reachable,
        "state": state,
        "ready": load.ready if state.startswith(USABLE) or not found.reachable else False,
        "latency": None if found.seconds is None else round(found.seconds, 4),
        "models": list(load.models),
        "patterns": diagnose.patterns_of(endpoint, config),
        "limits": {
            name: value
            for name, value in {**msgspec.structs.asdict(load.limits), "max_model_len": found.context}.items()
            if value is not None
        },
        "running": load.running,
        "waiting": load.waiting,
        "verify": endpoint.verify,
        "auth": diagnose.auth_of(endpoint, found, called),
        "called": "answered" if called.answered else "failed" if called.error is not None else None,
        "problems": list(diagnose.problems(endpoint, config, found, called, asked=here)),
        "notes": [*diagnose.notes(endpoint, config, found, called, asked=here), *uncalled],
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


_HEAD = ("endpoint", "url", "kind", "state", "latency", "models", "server limits", "queue", "key")


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    models, latency = each["models"], each["latency"]
    more = f" +{len(models) - MODELS_SHOWN}" if len(models) > MODELS_SHOWN else ""
    queue = [f"{each[name]:g} {name}" for name in ("running", "waiting") if each[name] is not None]
    return (
        each["name"],
        each["url"],
        each["kind"] + (f" (seems {each['seems']})" if each["seems"] else ""),
        each["state"],
        "-" if latency is None else f"{latency * 1000:.0f} ms",
        ", ".join(models[:MODELS_SHOWN]) + more or "-",
        " ".join(f"{name}={value}" for name, value in each["limits"].items()) or "-",
        ", ".join(queue) or "-",
        each["auth"],
    )
