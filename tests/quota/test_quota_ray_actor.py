"""The ledger of a cluster, against a Ray that is played: made by whoever comes first, and made again when it is gone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from quota_child import KEY, asked

from qreward import Endpoint, Limits
from qreward.integrations.ray import limit_actor
from qreward.integrations.ray.limit_actor import LedgerActor, RayLedgerTransport
from qreward.quota.ledger import LEASE
from qreward.quota.renewal import make_transport


class RayActorError(Exception):
    """As Ray calls it."""


class Actor:
    """A handle, and what is behind it."""

    def __init__(self, ledger: LedgerActor) -> None:
        self.ledger = ledger
        self.dead = self.mute = False

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            if self.dead:
                future.set_exception(RayActorError("it died"))
            elif not self.mute:
                future.set_result(getattr(self.ledger, name)(*arguments))
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)


class FakeRay:
    """What the transport uses of Ray."""

    def __init__(self) -> None:
        self.now = 100.0
        self.connected = True
        self.actors: dict[tuple[str, str], Actor] = {}
        self.options: list[dict[str, Any]] = []

    def is_initialized(self) -> bool:
        return self.connected

    def remote(self, kind: Callable[..., LedgerActor]) -> Any:
        def options(**chosen: Any) -> Any:
            self.options.append(chosen)

            def make() -> Actor:
                return self.actors.setdefault((chosen["namespace"], chosen["name"]), Actor(kind(lambda: self.now)))

            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=options)

    def kill(self) -> None:
        for actor in self.actors.values():
            actor.dead = True
        self.actors.clear()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    played = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", played)  # type: ignore[arg-type]
    monkeypatch.setattr(limit_actor, "REPLY_TIMEOUT", 0.01)
    return played


def hold(transport: RayLedgerTransport, member: str, now: float = 0.0) -> float:
    share = transport.renew(member, asked(hold=now))
    assert share.permits is not None
    return share.permits.hold


def test_processes_meet_at_one_actor_that_waits_a_lease_before_it_gives_anything(ray: FakeRay) -> None:
    one, other = RayLedgerTransport(KEY), RayLedgerTransport(KEY)
    assert (hold(one, "a"), hold(other, "b")) == (0, 0)
    ray.now += LEASE
    assert (hold(one, "a"), hold(other, "b")) == (4, 4)
    assert list(ray.actors) == [("qreward", f"share-{KEY}")]
    options = {"name": f"share-{KEY}", "namespace": "qreward", "get_if_exists": True, "num_cpus": 0, "max_restarts": 0}
    assert ray.options == [options] * 2
    one.leave("a", asked())
    assert hold(other, "b", 4) == 8


def test_an_actor_that_died_is_an_error_once_and_made_again_with_the_next_renewal(ray: FakeRay) -> None:
    transport = RayLedgerTransport(KEY)
    hold(transport, "a")
    ray.now += LEASE
    assert hold(transport, "a") == 8
    ray.kill()
    with pytest.raises(ConnectionError, match="the ledger actor died"):
        hold(transport, "a", 8)
    share = transport.renew("a", asked(hold=8))
    assert share.permits is not None
    assert share.permits.hold == 8, "it goes on with what it says that it holds"
    ray.now += 1.0
    assert hold(RayLedgerTransport(KEY), "new") == 0


def test_an_actor_that_says_nothing_is_not_waited_for(ray: FakeRay) -> None:
    transport = RayLedgerTransport(KEY)
    hold(transport, "a")
    (actor,) = ray.actors.values()
    actor.mute = True
    with pytest.raises(TimeoutError, match="did not answer"):
        hold(transport, "a")
    actor.mute = False
    hold(transport, "a")


def test_a_process_without_a_cluster_says_what_to_do(ray: FakeRay) -> None:
    ray.connected = False
    with pytest.raises(ConnectionError, match=r"call ray.init\(\) first"):
        hold(RayLedgerTransport(KEY), "a")
    RayLedgerTransport(KEY).leave("a", asked())


def test_the_transport_of_ray_is_made_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    transport = make_transport(Endpoint("http://a.example/v1", limits=Limits(rpm=60, shared="ray")))
    assert isinstance(transport, RayLedgerTransport)
    with pytest.raises(ConnectionError, match="not connected to Ray"):
        transport.renew("a", asked())
    transport.close()
