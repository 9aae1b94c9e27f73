"""``qreward check [CONFIG]``: checks each endpoint of a configuration, and reports its state and how to fix its problems."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from qreward.cli.arguments import add_timeout
from qreward.cli.diagnose import ScorerModel, endpoints_by_pattern, examine
from qreward.engine.fleet import resolved
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import (
    SCORERS,
    VARIABLE,
    RewardConfig,
    name_source_in_errors,
    read_reward_settings,
    reward_config_of,
)
from qreward.integrations.trainers.settings import check as check_reward_config
from qreward.settings.client import CONFIG_VARIABLE, ClientConfig, config_from_env, config_of, read_config
from qreward.transport.redaction import Secrets

FROM_ENVIRONMENT = "QREWARD_CONFIG, or OPENAI_BASE_URL and OPENAI_API_KEY"
ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
MODELS_SHOWN = 3
SPARE_FILES = 64
"""Number of open files that a process is assumed to need in addition to its connections."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?!.*extra == [\"'](dev|docs)[\"'])")


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
        "--report", action="store_true", help="also print versions, where the settings come from, and the limit of open files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def run(args: argparse.Namespace) -> int:
    """Check all endpoints and print the result. Returns 0 if there are no problems, else 1.

    Raises ``ConfigError`` for an invalid file; with ``--report``, an invalid file is one of the problems.
    """
    found: dict[str, Any] = {"problems": []}
    try:
        config, asked = configuration(args.config)
    except ConfigError as error:
        if not args.report:
            raise
        config, asked = None, ()
        found["problems"] = [str(error)] if args.config or any(map(os.environ.get, (CONFIG_VARIABLE, *ADDRESSES))) else []
    if args.report:
        about = machine(args.config)
        found = {**about, "problems": [*found["problems"], *_few_files(config, about["open_files"])]}
    checked = [] if config is None else asyncio.run(check_all(config, args.timeout, calls=args.call, asked=asked))
    if args.json:
        print(json.dumps((found if args.report else {}) | {"endpoints": checked}, indent=2))
    else:
        lines = [*_about(found), ""] if args.report else []
        print("\n".join([*lines, *([report(checked)] if checked else []), *found["problems"]]))
    return 1 if found["problems"] or any(each["problems"] for each in checked) else 0


def machine(file: str | None) -> dict[str, Any]:
    """Return what ``--report`` adds: versions, the variables that are set, where the settings come from, and the limit of open files."""
    names = {match[1] for line in metadata.requires("qreward") or () if (match := _REQUIREMENT.match(line))}
    found: dict[str, str | None] = {"qreward": metadata.version("qreward"), "python": platform.python_version()}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    used = file or os.environ.get(CONFIG_VARIABLE)
    others = sorted(name for name in os.environ if name.startswith("QREWARD_"))
    variables = dict.fromkeys((CONFIG_VARIABLE, VARIABLE, *ADDRESSES, *PROXIES, *others))
    return {
        "versions": found,
        "system": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "settings": Secrets().hide(used) if used else next((name for name in ADDRESSES if os.environ.get(name)), None),
        "environment": {name: any(os.environ.get(each) for each in (name, name.lower())) for name in variables},
        "open_files": _open_files(),
    }


def _open_files() -> int | None:
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _few_files(config: ClientConfig | None, limit: int | None) -> Iterator[str]:
    at_once = 0 if config is None else sum(each.limits.max_concurrency or 0 for each in config.endpoints)
    if limit is not None and at_once + SPARE_FILES > limit:
        yield (
            f"the settings allow {at_once} concurrent requests, but the process may open only {limit} files; "
            f"raise the limit with `ulimit -n {at_once + SPARE_FILES}`, or lower max_concurrency"
        )


def _about(found: Mapping[str, Any]) -> Iterator[str]:
    versions = dict(found["versions"])
    yield f"qreward {versions.pop('qreward')}, Python {versions.pop('python')}, {found['system']}"
    yield f"packages     {', '.join(f'{name} {version}' for name, version in versions.items() if version is not None)}"
    yield f"no packages  {', '.join(name for name, version in versions.items() if version is None) or 'missing'}"
    yield f"settings     {found['settings'] or 'none found; `qreward init` writes a file; name it with --config or in QREWARD_CONFIG'}"
    are_set = (f"{name} {'set' if is_set else 'not set'}" for name, is_set in found["environment"].items())
    yield f"environment  {', '.join(are_set)}"
    yield f"open files   {'no limit' if found['open_files'] is None else found['open_files']}"


def configuration(file: str | None) -> tuple[ClientConfig, tuple[ScorerModel, ...]]:
    """Return the settings in a file, and the models of its scorers. If ``file`` is None, return what ``QRewardClient.from_env`` uses."""
    if file is None:  # ``from_env`` is not called, because it logs warnings; this command prints them as notes
        named = os.environ.get(CONFIG_VARIABLE)
        return (read_config(named)[0] if named else config_from_env()), ()
    if file.startswith(("http://", "https://")):
        raise ConfigError("CONFIG is a file, not a URL; `qreward init --endpoint URL` writes one")
    content, place = read_reward_settings(file, empty="it must contain at least 'endpoints'")
    if content.keys() & {"client", *SCORERS}:
        return _of_a_scorer(reward_config_of(content, place))
    return config_of(content, place), ()


def _of_a_scorer(found: RewardConfig) -> tuple[ClientConfig, tuple[ScorerModel, ...]]:
    config = found.client or config_from_env()
    with name_source_in_errors(found):
        check_reward_config(found, endpoints_by_pattern(config).items())
    asked = (
        ScorerModel(*((setting, stage, True) if isinstance(stage, str) else (f"{setting}.model", model, False)))
        for setting, stage in found.stages.items()
        for model in ((stage,) if isinstance(stage, str) else stage.model)
    )
    return config, tuple(asked)


async def check_all(config: ClientConfig, seconds: float, *, calls: bool, asked: Sequence[ScorerModel] = ()) -> list[dict[str, Any]]:
    """Check all endpoints concurrently, each with a timeout of ``seconds``. The requests that ``--call`` adds have their own timeout."""
    config = resolved(config)
    return await asyncio.gather(*(examine(endpoint, config, seconds, calls=calls, asked=asked) for endpoint in config.endpoints))


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
