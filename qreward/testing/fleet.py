"""``FakeFleet``: real HTTP servers on loopback that behave like LLM judges, with the latency, limits and faults of their settings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from qreward.errors import ConfigError
from qreward.settings.policies import Endpoint
from qreward.spelling import did_you_mean
from qreward.testing.endpoint import Seen
from qreward.testing.hosts import InLoop, InProcess, InThread
from qreward.testing.server import HOST
from qreward.testing.spec import FakeEndpoint, FleetSpec, read_spec

Host = InLoop | InThread | InProcess
H = TypeVar("H", InLoop, InThread)


class FakeFleet:
    """Runs a fleet of fake judges on 127.0.0.1.

    ``async with`` runs the fleet in the running event loop. ``with`` runs the fleet in a background thread. With ``process=True``, both
    statements run the fleet in a child process, which leaves the CPU time of the caller's process to the code under test.

    Args:
        endpoints: a list of :class:`FakeEndpoint`, a mapping, or the path of a ``.json``, ``.yaml`` or ``.toml`` file.
        process: whether the fleet runs in a child process (on uvloop, if uvloop is installed).

    Raises:
        ConfigError: a setting is invalid. When the fleet starts, ``ConfigError`` is also raised for a responder that cannot be imported,
            and, with ``process=True``, for a responder that is not a string.
        OSError: a configured port is in use when the fleet starts. With ``process=True``, the error is a ``RuntimeError``.

    Example:
        >>> with FakeFleet([FakeEndpoint("a"), FakeEndpoint("b", models=["judge-*"])]) as fleet:
        ...     [endpoint.models for endpoint in fleet.endpoints], fleet.seen("a").requests
        ([('*',), ('judge-*',)], 0)
    """

    def __init__(
        self, endpoints: Iterable[FakeEndpoint | Mapping[str, Any]] | Mapping[str, Any] | str | Path, process: bool = False
    ) -> None:
        self._specs = {endpoint.name: endpoint for endpoint in read_spec(endpoints).endpoints}
        self._process = process
        self._host: Host | None = None
        self._ports: dict[str, int] = {}
        self._last_seen: dict[str, Seen] = {}

    async def __aenter__(self) -> FakeFleet:
        host = self._new_host(InLoop)
        await (host.start() if isinstance(host, InLoop) else asyncio.to_thread(host.start))
        return self._started(host)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        host = self._ending()
        await (host.stop() if isinstance(host, InLoop) else asyncio.to_thread(host.stop))

    def __enter__(self) -> FakeFleet:
        host = self._new_host(InThread)
        host.start()
        return self._started(host)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        host = self._ending()
        assert not isinstance(host, InLoop)
        host.stop()

    @property
    def names(self) -> list[str]:
        """The names of the endpoints, in the order of the settings."""
        return list(self._specs)

    @property
    def urls(self) -> dict[str, str]:
        """Name of an endpoint -> base URL, such as ``http://127.0.0.1:40001/v1``."""
        self._running()
        return {name: f"http://{HOST}:{port}/v1" for name, port in self._ports.items()}

    @property
    def endpoints(self) -> list[Endpoint]:
        """The endpoints as settings for a ``QRewardClient``."""
        return [
            Endpoint(url, name=name, models=spec.models, api_key=spec.api_key, kind=spec.kind, proxy="")
            for (name, url), spec in zip(self.urls.items(), self._specs.values(), strict=True)
        ]

    def seen(self, name: str) -> Seen:
        """Return the statistics of an endpoint. After the fleet has stopped, return the last statistics.

        Raises:
            ConfigError: the name is unknown.
        """
        name = self._named(name).name
        known: dict[str, Seen] = self._last_seen if self._host is None and self._last_seen else self._running().call("seen")
        return known[name]

    def reset(self) -> None:
        """Start over with the present settings: set the statistics to zero, refill the rate limits, and restart the phases and faults.

        A killed endpoint stays killed.
        """
        self._running().call("reset")

    def set(self, name: str, **changes: Any) -> None:
        """Change settings of an endpoint while it runs. Requests that are being served keep the old settings.

        A change of ``rpm``, ``tpm`` or ``burst`` refills the buckets of both rate limits. The times of changed
        ``phases`` count from the start of the fleet, or from the last :meth:`reset`. ``name`` and ``port`` cannot be changed.

        Raises:
            ConfigError: the name is unknown, or a setting is invalid.
        """
        if fixed := {"port"} & set(changes):
            raise ConfigError(f"{', '.join(fixed)} of endpoint {name!r} cannot be changed while it runs")
        before = self._named(name)
        kept = {field: getattr(before, field) for field in type(before).model_fields}
        changed = type(before)(**{**kept, **changes})
        self._running().call("configure", changed)
        self._specs[name] = changed

    def kill(self, name: str) -> None:
        """Stop an endpoint: abort all connections, and do not listen until :meth:`revive` is called."""
        self._running().call("kill", self._named(name).name, True)

    def revive(self, name: str) -> None:
        """Make a killed endpoint listen again on the same port, unless a ``dead`` phase is active."""
        self._running().call("kill", self._named(name).name, False)

    def _named(self, name: str) -> FakeEndpoint:
        if name not in self._specs:
            raise ConfigError(f"there is no endpoint {name!r}; {did_you_mean(name, self._specs, otherwise='the endpoints are')}")
        return self._specs[name]

    def _new_host(self, kind: type[H]) -> H | InProcess:
        if self._host is not None:
            raise RuntimeError("the fleet is running already; make another FakeFleet for a second one")
        spec = FleetSpec(endpoints=tuple(self._specs.values()))
        return InProcess(spec) if self._process else kind(spec)

    def _started(self, host: Host) -> FakeFleet:
        self._host, self._ports = host, host.call("ports")
        return self

    def _ending(self) -> Host:
        host, self._host = self._running(), None
        with contextlib.suppress(RuntimeError):  # a child process that has died cannot report its statistics
            self._last_seen = host.call("seen")
        return host

    def _running(self) -> Host:
        if self._host is None:
            raise RuntimeError("the fleet is not running; start it with 'with' or 'async with'")
        return self._host
