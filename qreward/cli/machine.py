"""What ``qreward check --report`` says beside the state of the endpoints: versions, extras, and where the settings come from."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from qreward.integrations.trainers.settings import VARIABLE
from qreward.settings.base import variables_in
from qreward.settings.client import ClientConfig, usual_file

SETTINGS = ("QREWARD_CONFIG", VARIABLE, "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")
"""Variables that name settings. They are always listed. Other variables that begin with ``QREWARD_`` are listed only if they are set."""
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
NOT_FOR_USERS = frozenset({"dev", "docs"})
"""Extras for developers of this package."""
SPARE_FILES = 64
"""Number of open files that a process is assumed to need in addition to its connections."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*[\"']([^\"']+)[\"'])?")


def machine_report() -> dict[str, Any]:
    """Return what is known without any settings: versions, extras, the machine and the environment."""
    return {
        "versions": {"qreward": metadata.version("qreward"), "python": platform.python_version(), **_packages(None)},
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "open_files": open_files()},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "extras": {name: _packages(name) for name in _extras()},
        "environment": {name: bool(os.environ.get(name)) for name in _names(SETTINGS)},
        "proxies": {name: any(os.environ.get(each) for each in (name, name.lower())) for name in PROXIES},
    }


def _names(always: tuple[str, ...]) -> list[str]:
    return [*always, *sorted(name for name in os.environ if name.startswith("QREWARD_") and name not in always)]


def _extras() -> list[str]:
    return sorted(set(metadata.metadata("qreward").get_all("Provides-Extra") or ()) - NOT_FOR_USERS)


def _packages(extra: str | None) -> dict[str, str | None]:
    """Return the packages that an extra needs, each with its version."""
    found = [match.groups() for line in metadata.requires("qreward") or () if (match := _REQUIREMENT.match(line))]
    return {name: _version(name) for name, needed_by in found if needed_by == extra}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def variables_of(file: Path) -> dict[str, bool]:
    try:
        lines = file.expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError):  # reading the settings fails too, and its error is reported
        return {}
    names = variables_in("\n".join(line for line in lines if not line.lstrip().startswith("#")))
    return {name: bool(os.environ.get(name)) for name in names}


def open_files() -> dict[str, int] | None:
    """Return the limit of open files and connections of the process, and the highest limit that the process may set."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else {"limit": soft, "most": soft if hard == resource.RLIM_INFINITY else hard}


def few_files(config: ClientConfig | None, files: Mapping[str, int] | None) -> Iterator[str]:
    """Yield a problem if the settings allow more requests in flight than the process may open connections."""
    at_once = 0 if config is None else sum(each.limits.max_concurrency or 0 for each in config.endpoints)
    if files is not None and at_once + SPARE_FILES > files["limit"]:
        yield (
            f"the settings allow {at_once} concurrent requests, but the process may open only {files['limit']} files; "
            f"raise the limit with `ulimit -n {at_once + SPARE_FILES}`, or lower max_concurrency"
        )


def report_lines(found: Mapping[str, Any]) -> Iterator[str]:
    versions, machine, files = dict(found["versions"]), found["machine"], found["machine"]["open_files"]
    yield f"qreward {versions.pop('qreward')}, Python {versions.pop('python')}, {machine['system']}, {machine['cpus']} CPUs"
    yield from _row("packages", [", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())])
    yield from _row("extras", [_extra(name, packages) for name, packages in found["extras"].items()])
    yield from _row("settings", _source(found["settings"], len(found["endpoints"])))
    yield from _row("environment", [_are_set(found["environment"])])
    through = f"; used for {', '.join(found['through_proxy'])}" if found["through_proxy"] else ""
    yield from _row("proxies", [_are_set(found["proxies"]) + through])
    yield from _row("open files", ["no limit" if files is None else f"{files['limit']}, can be raised to {files['most']}"])
    yield from _row("clock", [found["time"]])


def _row(title: str, lines: list[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"{'' if number else title:13}{line}"


def _extra(name: str, packages: Mapping[str, str | None]) -> str:
    if None in packages.values():
        return f"{name}: not installed; pip install 'qreward[{name}]'"
    return f"{name}: {', '.join(f'{package} {version}' for package, version in packages.items())}"


def _source(settings: Mapping[str, Any], endpoints: int) -> list[str]:
    if settings["source"] is None:
        if (usual := usual_file()) is not None:
            return [f"none in use; {usual} is in the working directory; use it with --config {usual}, or set QREWARD_CONFIG={usual}"]
        return ["none found; `qreward init` writes a file; name it with --config or in QREWARD_CONFIG"]
    place = f"{settings['file']}, from {settings['source']}" if settings["file"] else f"one endpoint, from {settings['source']}"
    state = "cannot be used" if settings["error"] else f"{endpoints} endpoint{'' if endpoints == 1 else 's'}"
    return [f"{place}: {state}", *([_are_set(settings["variables"])] if settings["variables"] else [])]


def _are_set(variables: Mapping[str, bool]) -> str:
    return ", ".join(f"{name} {'set' if is_set else 'not set'}" for name, is_set in variables.items())
