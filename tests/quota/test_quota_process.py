"""The real thing in real time: a client's own thread, files, threads that end, and forks."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from quota_tools import FakeWire, Processes, call

from qreward import Endpoint, QRewardClient
from qreward.quota import renewal
from qreward.quota.file_ledger import VARIABLE, key_of


def helpers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "qreward-sharing"]


def files(place: Path) -> list[Path]:
    return list(place.iterdir())


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "shares"))
    return tmp_path / "shares"


def new_client(**limits: Any) -> QRewardClient:
    return QRewardClient([Processes.endpoint(**limits)], backend_factory=lambda: FakeWire(seconds=0.001))


def test_a_thread_begins_with_the_first_call_and_ends_with_the_client(place: Path) -> None:
    async def use() -> None:
        async with new_client(rpm=6000) as client:
            assert not helpers()
            await call(client, 1)
            assert len(helpers()) == 1
            assert len(files(place)) == 2

    asyncio.run(use())
    assert not helpers()
    assert len(files(place)) == 1


def test_a_thread_that_sleeps_until_the_next_call_ends_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "IDLE", 0.0)

    async def use() -> None:
        async with new_client(rpm=6000) as client:
            await call(client, 1)
            async with asyncio.timeout(30):
                while client.stats()["a"].state.sharing != "idle":  # type: ignore[union-attr]  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len(helpers()) == 1

    asyncio.run(use())
    assert not helpers()


def test_a_client_that_shares_nothing_has_no_thread_after_a_change_either() -> None:
    async def use() -> None:
        async with new_client(shared="none", rpm=6000) as client:
            await call(client, 1)
            client.add_endpoint(Processes.endpoint("b", shared="none"))
            await call(client, 2)
            assert not helpers()

    asyncio.run(use())


def test_an_error_in_the_thread_is_logged_and_does_not_end_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    turn, broken = renewal.Sharing.turn, [ZeroDivisionError("once")]

    def turned(sharing: renewal.Sharing) -> float | None:
        if broken:
            raise broken.pop()
        return turn(sharing)

    monkeypatch.setattr(renewal.Sharing, "turn", turned)
    monkeypatch.setattr(renewal, "RENEW", 0.01)

    async def use() -> None:
        async with new_client(rpm=6000) as client:
            await call(client, 1)

    asyncio.run(use())
    assert (broken, "sharing of limits failed with ZeroDivisionError: once" in caplog.text) == ([], True)


def test_a_client_that_is_forgotten_takes_its_thread_along() -> None:
    client = new_client(rpm=6000)
    asyncio.run(call(client, 1))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "qreward-sharing"]
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_a_member_of_its_own() -> None:
    script = Path(__file__).with_name("fork_quota_script.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "well ['MainThread', 'asyncio_0']\n"), done.stderr


def test_the_name_of_a_key_tells_keys_and_addresses_apart_and_shows_neither() -> None:
    names = [
        key_of(Endpoint("http://a.example/v1", api_key="secret-1")),
        key_of(Endpoint("http://a.example/v1", api_key="secret-2")),
        key_of(Endpoint("http://b.example/v1", api_key="secret-1")),
        key_of(Endpoint("http://a.example/v1")),
        *(key_of(Endpoint("http://a.example/v1", headers={name: "secret-3"})) for name in ("X-Api-Key", "Api-Key", "Authorization")),
    ]
    assert [names.index(name) for name in names] == [0, 1, 2, 3, 4, 4, 4]
    assert all(len(name) == 32 and "secret" not in name for name in names)
    assert key_of(Endpoint("http://a.example/v1/", api_key="secret-1", name="n", models=["m"])) == names[0]
