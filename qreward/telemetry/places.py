"""Where an endpoint is: its name, and the address and port of its server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from qreward.core.source import Source
from qreward.telemetry import names

MOST = 4096
"""Places that are remembered; beyond it they are found anew."""

_PORTS = {"http": 80, "https": 443}


class Place:
    """One endpoint at one address.

    Attributes:
        server: ``server.address`` and ``server.port``, where they are known.
        attributes: these, and ``qreward.endpoint``, which is in ``endpoint`` alone.
    """

    __slots__ = ("attributes", "endpoint", "name", "server")

    def __init__(self, name: str, server: dict[str, Any]) -> None:
        self.name = name
        self.server = server
        self.endpoint = {names.ENDPOINT: name}
        self.attributes = {names.ENDPOINT: name, **server}


_known: dict[tuple[str, object], Place] = {}


def place_of(source: Source) -> Place:
    """Where a source is. Found once for each endpoint."""
    url = getattr(source.handle, "base_url", None)
    place = _known.get((source.name, url))
    if place is None:
        if len(_known) >= MOST:
            _known.clear()
        place = _known[source.name, url] = Place(source.name, _server(url) if isinstance(url, str) else {})
    return place


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if not parts.hostname:
        return {}
    port = parts.port or _PORTS.get(parts.scheme)
    return {names.SERVER_ADDRESS: parts.hostname} | ({} if port is None else {names.SERVER_PORT: port})
