"""The client of a trainer takes over changes of the settings file while it is used."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from shared_tools import PATIENCE
from trainers_tools import REWARDER

from qreward import ConfigError
from qreward.integrations import trl
from qreward.integrations.trainers import RewardConfig
from qreward.integrations.trainers.rewarder import close_all, rewarder, shared_client
from qreward.runtime import runtime_of


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    close_all()
    yield
    close_all()


def write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content))


def fleet(*hosts: str) -> dict[str, Any]:
    return {"endpoints": [{"base_url": f"http://{host}/v1", "models": ["judge-*"]} for host in hosts]}


def look() -> bool:
    (shared,) = REWARDER._CLIENTS
    assert shared.watcher is not None
    assert shared.watcher.running
    return shared.watcher.poll_once()


def names() -> list[str]:
    (shared,) = REWARDER._CLIENTS
    return list(shared.client.stats())


def test_a_trainer_takes_over_the_endpoints_of_its_changed_file(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    write(file, {"client": fleet("a"), "judge": {"model": "judge-7b"}})
    made = rewarder(str(file), deadline=60)
    write(file, {"client": fleet("b", "c"), "judge": {"model": "judge-7b"}})
    assert (look(), look(), names()) == (True, False, ["b", "c"])
    assert rewarder(str(file), deadline=60) is made
    rewarder(str(file), deadline=30)  # another adapter with the changed file shares the client
    assert names() == ["b", "c"]


def test_a_file_beside_the_settings_and_the_file_of_the_environment_are_watched_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, servers = tmp_path / "reward.json", tmp_path / "servers.json"
    monkeypatch.setenv("QREWARD_CONFIG", str(servers))
    for client in ("servers.json", None):
        write(servers, fleet("a"))
        write(file, {"judge": {"model": "judge-7b"}} | ({"client": client} if client else {}))
        rewarder(str(file), deadline=60)
        write(servers, fleet("a", "b"))
        assert (look(), names()) == (True, ["a", "b"])
        close_all()


def test_a_fault_in_the_file_is_logged_once_and_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "reward.json"
    write(file, {"client": fleet("a"), "judge": {"model": "judge-7b"}})
    rewarder(str(file), deadline=60)
    write(file, {"client": fleet("b"), "judge": {"modle": "judge-7b"}})
    with caplog.at_level(logging.WARNING, "qreward.schedule"):
        assert (look(), look(), names()) == (False, False, ["a"])
    (record,) = caplog.records
    assert f"{file}: judge: unknown setting 'modle'; did you mean 'model'?" in record.getMessage()
    assert record.getMessage().endswith("nothing was changed")


def test_a_client_that_several_places_name_changes_when_all_of_them_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    judge = {"judge": {"model": "judge-7b"}}
    for file in files:
        write(file, {"client": fleet("x"), **judge})
        rewarder(str(file), deadline=60)
    with caplog.at_level(logging.WARNING, "qreward.schedule"):
        for file, changed, ends in zip(files, (False, True), ("x", "y"), strict=True):
            write(file, {"client": fleet("y"), **judge})
            assert (look(), look(), names()) == (changed, False, [ends])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{files[0]} and {files[1]} share a client, and its settings differ there now")
    in_code = rewarder({"client": fleet("x"), **judge}, deadline=60)
    assert list(vars(in_code.scorer)["_client"].stats()) == ["x"], "not the client that was made with these settings and has others now"
    close_all()
    for source in (str(files[0]), {"client": fleet("y"), **judge}):
        rewarder(source, deadline=60)
    write(files[0], {"client": fleet("z"), **judge})
    assert (look(), names()) == (False, ["y"]), "settings in code do not change"


def test_settings_in_code_that_name_the_file_of_their_client_take_over_its_changes(tmp_path: Path) -> None:
    servers, file, judge = tmp_path / "servers.json", tmp_path / "reward.json", {"model": "judge-7b"}
    in_code: dict[str, Any] = {"client": str(servers), "judge": judge}
    write(file, {"client": "servers.json", "judge": judge})
    for make in (
        lambda: [rewarder(source, deadline=60) for source in (str(file), in_code)],
        lambda: rewarder(RewardConfig(**in_code), deadline=60),
        lambda: trl.reward(in_code, columns={"reference": "answer"}),
    ):
        write(servers, fleet("a"))
        make()
        write(servers, fleet("a", "b"))
        assert (look(), names()) == (True, ["a", "b"])
        close_all()


def test_a_known_rewarder_is_there_while_another_one_is_made() -> None:
    settings = {"client": fleet("a"), "judge": {"model": "judge-7b"}}
    made = rewarder(settings, deadline=60)
    with ThreadPoolExecutor(1) as thread, REWARDER._LOCK:  # as a thread that makes one holds it
        assert thread.submit(rewarder, settings, deadline=60).result(PATIENCE) is made


def test_settings_that_come_from_no_file_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QREWARD_CONFIG", raising=False)
    rewarder({"client": fleet("a"), "judge": {"model": "judge-7b"}}, deadline=60)
    (shared,) = REWARDER._CLIENTS
    assert shared.watcher is None
    with pytest.raises(ConfigError):
        shared_client()


def test_the_watcher_ends_with_its_client(tmp_path: Path) -> None:
    file = tmp_path / "reward.json"
    write(file, {"client": fleet("a"), "reward_model": "judge-7b"})
    rewarder(str(file), deadline=60)
    (shared,) = REWARDER._CLIENTS
    close_all()
    assert shared.watcher is not None
    assert not shared.watcher.running
    assert runtime_of(shared.client).closed
