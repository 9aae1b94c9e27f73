"""Endpoints that come and go: an entry of the configuration that stands for a list of addresses, which is read again and again."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

from qreward.engine.instrumentation import LOG
from qreward.errors import ConfigError
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint, Route

TIMEOUT = 10.0
"""Seconds after which an attempt to read a list from a URL is given up."""
MOST_BYTES = 1_000_000
"""Size of the longest list that is read."""


def look_up(base_url: str) -> list[str]:
    parts, place = urlsplit(base_url), base_url.removeprefix("list:")
    if parts.scheme == "dns":
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
        hosts = sorted({str(address[0]) for *_, address in found})
        return [f"http://{f'[{host}]' if ':' in host else host}:{parts.port}{parts.path}" for host in hosts]
    if "://" in place:
        with urllib.request.urlopen(place, timeout=TIMEOUT) as reply:  # noqa: S310 - the scheme was checked
            content = reply.read(MOST_BYTES + 1)
    else:
        with Path(place).expanduser().open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"the list is longer than {MOST_BYTES} bytes")
    text = content.decode().strip()
    lines = json.loads(text) if text.startswith("[") else [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


@dataclass(slots=True)
class _List:
    """An entry of the configuration, its addresses, and why they could not be read the last time."""

    entry: Endpoint
    endpoints: tuple[Endpoint, ...]
    due: float
    fault: str = ""


class AddressLists:
    """The lists of addresses of one client. A thread reads each list again every ``refresh`` seconds, as long as the client lives.

    ``on_change`` returns the function to call in the thread after a list has changed, or None if the client is gone.
    """

    def __init__(self, on_change: Callable[[], Callable[[], object] | None], clock: Callable[[], float] = monotonic) -> None:
        self._on_change, self._clock = on_change, clock
        self._lists: dict[str, _List] = {}
        self.start_again()

    def start_again(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        self._stopping.set()

    def resolved(self, entries: Iterable[Endpoint], routes: Iterable[Route]) -> tuple[list[Endpoint], list[Route]]:
        """Return endpoints and routes in which an entry with a list is replaced by its addresses. Raises ``ConfigError``."""
        members = {entry.name: self.members(entry) for entry in entries}
        self._lists = {name: known for name, known in self._lists.items() if name in members}
        return [each for endpoints in members.values() for each in endpoints], [_over(route, members) for route in routes]

    def follow(self) -> None:
        if self._lists and self._thread is None:
            self._thread = threading.Thread(target=self._follow, args=[self._stopping], name="qreward-addresses", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Read the lists that are due. After a failure, the last list is kept, and a warning is logged once."""
        for name, known in list(self._lists.items()):
            if self._clock() < known.due or (changed := self._on_change()) is None:
                continue
            known.due, fault = self._clock() + known.entry.refresh, ""
            try:
                endpoints = _read(known.entry, known.endpoints)
                if endpoints != known.endpoints and self._lists.get(name) is known:
                    self._lists[name] = _List(known.entry, endpoints, known.due)
                    changed()
            except ConfigError as error:
                self._lists[name], fault = known, str(error)
            if fault and fault != known.fault:
                LOG.warning("%s; its last %d addresses are kept", fault, len(known.endpoints))
            known.fault = fault

    def members(self, entry: Endpoint) -> tuple[Endpoint, ...]:
        """Return the endpoints for which an entry stands. Raises ``ConfigError`` if it is a new list that cannot be read."""
        if not entry.is_list:
            return (entry,)
        known = self._lists.get(entry.name)
        if known is None or known.entry.base_url != entry.base_url:
            known = _List(entry, _read(entry), self._clock() + entry.refresh)
        elif known.entry is not entry:
            known = _List(entry, tuple(_at(each.base_url, entry) for each in known.endpoints), self._clock() + entry.refresh)
        self._lists[entry.name] = known
        return known.endpoints

    def _follow(self, stopping: threading.Event) -> None:
        while self._on_change() is not None:
            due = min((known.due for known in self._lists.values()), default=self._clock() + 1)
            if stopping.wait(max(0.01, due - self._clock())):
                return
            self.check()


def resolved(config: ClientConfig) -> ClientConfig:
    """Return a configuration in which each entry with a list is replaced by its addresses. Raises ``ConfigError``."""
    endpoints, routes = AddressLists(lambda: None).resolved(config.endpoints, config.routes)
    return config.model_copy(update={"endpoints": tuple(endpoints), "routes": tuple(routes)})


def _over(route: Route, members: Mapping[str, Sequence[Endpoint]]) -> Route:
    chosen = {each.name: name for name in route.endpoints for each in members[name]}
    weights = {each: route.weights[name] for each, name in chosen.items() if name in route.weights}
    return route.model_copy(update={"endpoints": tuple(chosen), "weights": weights})


def _read(entry: Endpoint, before: Iterable[Endpoint] = ()) -> tuple[Endpoint, ...]:
    """Return the endpoints of a list. An endpoint that was there before is the same object. Raises ``ConfigError``."""
    known = {each.base_url: each for each in before}
    try:
        found = [Endpoint.from_content({"base_url": address}) for address in look_up(entry.base_url)]
        fault = "it holds another list; write the addresses of servers" if any(each.is_list for each in found) else "it is empty"
    except (OSError, ValueError, ConfigError) as error:
        found, fault = [], str(error)
    if not found or any(each.is_list for each in found):
        raise ConfigError(f"endpoint {entry.name!r}: its list of addresses cannot be used: {fault}")
    return tuple(known.get(url) or _at(url, entry) for url in dict.fromkeys(each.base_url for each in found))


def _at(address: str, entry: Endpoint) -> Endpoint:
    return entry.model_copy(update={"base_url": address, "name": urlsplit(address).netloc})
