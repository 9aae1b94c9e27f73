"""Who speaks: the instrumentation scope that all spans, metrics and events of ours carry. And whether anybody listens."""

from __future__ import annotations

from functools import cache
from importlib import metadata

SCOPE = "qreward"

LOOK = 0.05
"""Seconds between two looks whether a provider has been set meanwhile, while there are calls."""


@cache
def version() -> str:
    """The version of this library."""
    try:
        return metadata.version(SCOPE)
    except metadata.PackageNotFoundError:  # run from a folder
        return ""


def does_something(provider: object) -> bool:
    """Whether a provider is more than one of the API's own, which do nothing, or nothing yet."""
    return not type(provider).__module__.startswith(_SILENT)


_SILENT = ("opentelemetry.metrics", "opentelemetry.trace")
