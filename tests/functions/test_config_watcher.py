"""Where settings stand and what becomes of them: a file, a callback; for a function and for a client."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qreward import ConfigError, ConfigWatcher, Endpoint, Priority, QRewardClient, ScheduleConfig, SyncQRewardClient, schedule
from qreward.settings.client import ClientConfig

SECRET = "sk-hush-7f3a"


class Watched:
    """A configuration, a file that is watched for it, and what was said."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture, name: str = "s.json", **in_code: Any) -> None:
        self.path = folder / name
        self.config = ScheduleConfig(**in_code)
        self.errors: list[Exception] = []
        self.watcher = ConfigWatcher(self.config, file=self.path, on_error=self.errors.append)
        self._caplog = caplog

    def write(self, text: str, **settings: Any) -> Watched:
        self.path.write_text(text or json.dumps(settings))
        return self

    def say(self, **settings: Any) -> Watched:
        return self.write("", **settings)

    def look(self) -> bool:
        return self.watcher.poll_once()

    def warnings(self) -> list[str]:
        """What was said since the last time."""
        said = [record.getMessage() for record in self._caplog.records if record.levelno == logging.WARNING]
        self._caplog.clear()
        assert said == [f"{error}; nothing was changed" for error in self.errors]
        self.errors.clear()
        place = re.compile(rf"^{re.escape(str(self.path))}: ")
        return [place.sub("", text).removesuffix("; nothing was changed") for text in said]


@pytest.fixture
def watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., Watched]:
    caplog.set_level(logging.INFO, "qreward.schedule")
    return lambda *args, **in_code: Watched(tmp_path, caplog, *args, **in_code)


def test_a_file_that_holds_what_it_held_changes_nothing(watched: Any) -> None:
    b = watched().say(timeout=5)
    assert [b.look(), b.look()] == [True, False]
    b.config.update(timeout=9)  # by the program, in spite of the file
    assert not b.look()
    os.utime(b.say(timeout=5).path, (1_000_000_000, 1_000_000_000))
    assert not b.look(), "written again"
    assert b.config.timeout == 9.0
    os.utime(b.say(timeout=6).path, (1_000_000_000, 1_000_000_000))
    assert b.look(), "other settings, although the time and the size of the file are the same"


def test_a_setting_that_is_removed_goes_back_to_what_the_code_said_and_one_that_was_never_there_stays(
    watched: Any,
) -> None:
    b = watched("s.yaml", timeout=30, retry_times=2)
    assert b.write("timeout: 5\nretry_times: 7\npriority: high").look()
    assert b.config == ScheduleConfig(timeout=5, retry_times=7, priority=Priority.HIGH)
    b.config.update(limit_size=9)
    assert b.write("retry_times: 8").look()
    assert b.config == ScheduleConfig(timeout=30, retry_times=8, limit_size=9)
    b.config.update(timeout=6)  # which the file did say, but no more
    assert b.write("limit_window: 2").look()
    assert b.config == ScheduleConfig(timeout=6, retry_times=2, limit_size=9, limit_window=2)
    assert b.warnings() == []


def test_a_file_that_is_wrong_changes_nothing_and_is_reported_once(watched: Any) -> None:
    broken = {
        '{"timeout": 5, "retr': "is not valid JSON: Unterminated string",
        "": "is empty; write {} if nothing is to be set",
        '{"retry_times": 3, "timeout": -1}': "timeout: must be more than 0, not -1",
        '{"pool": "others"}': "pool: cannot be changed while the function is in use; set it in code",
    }
    for number, (text, said) in enumerate(broken.items()):
        b = watched(f"{number}.json", timeout=30)
        b.say(timeout=5).look()
        b.path.write_text(text)
        assert [b.look(), b.look(), b.look()] == [False] * 3, text
        assert b.config == ScheduleConfig(timeout=5), text
        (reported,) = b.warnings()
        assert reported.startswith(said), text
        assert b.say().look(), text
        assert b.config == ScheduleConfig(timeout=30), "what it said before the error is taken back"
        b.path.write_text(text)
        b.look()
        assert len(b.warnings()) == 1, f"{text}: it is a new trouble"


def test_a_file_that_cannot_be_read_changes_nothing_and_is_reported_once(watched: Any) -> None:
    b = watched(timeout=30)
    assert [b.look(), b.look()] == [False, False]
    assert b.warnings() == ["cannot be read: No such file or directory"]
    assert b.say(timeout=5).look()
    b.path.unlink()
    assert [b.look(), b.look()] == [False, False]
    assert b.warnings() == ["cannot be read: No such file or directory"]
    b.path.mkdir()
    assert [b.look(), b.look()] == [False, False]
    assert b.warnings() == ["cannot be read: Is a directory"]
    b.path.rmdir()
    assert b.config.timeout == 5.0
    assert not b.say(timeout=5).look()
    assert b.say(timeout=6).look()
    assert b.warnings() == []


def test_a_file_is_found_again_when_the_program_changes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ScheduleConfig()
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text('{"timeout": 5}')
    watcher = ConfigWatcher(config, file="s.json")
    monkeypatch.chdir("/")
    assert watcher.poll_once()


def test_an_on_error_that_raises_is_logged_and_hinders_nothing(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [{"timeout": 0}, {"timeout": 5}]
    watcher = ConfigWatcher(ScheduleConfig(), callback=partial(answers.pop, 0), on_error=lambda _: 1 / 0)
    assert [watcher.poll_once(), watcher.poll_once()] == [False, True]
    assert "on_error of a ConfigWatcher raised" in caplog.messages


def test_an_on_error_that_is_an_empty_list_with_a_call_is_called() -> None:
    class Errors(list[Exception]):
        def __call__(self, error: Exception) -> None:
            self.append(error)

    errors = Errors()
    ConfigWatcher(ScheduleConfig(), callback=lambda: {"timeout": 0}, on_error=errors).poll_once()
    assert len(errors) == 1


def test_a_callback_gives_what_is_to_be_or_none_for_no_change(caplog: pytest.LogCaptureFixture) -> None:
    config = ScheduleConfig(timeout=30)
    answers: list[Any] = [None, {"timeout": 5, "exception_types": (OSError,)}, None, {"timeout": 5, "exception_types": (OSError,)}, {}]
    watcher = ConfigWatcher(config, callback=lambda: answers.pop(0))
    assert [watcher.poll_once() for _ in range(5)] == [False, True, False, False, True]
    assert config == ScheduleConfig(timeout=30)
    assert caplog.messages == []
    settings = {"timeout": 5}
    watcher = ConfigWatcher(config, callback=lambda: settings)
    watcher.poll_once()
    settings["timeout"] = 6
    assert watcher.poll_once(), "the same mapping with another value"


def test_a_callback_that_gives_no_mapping_or_wrong_settings_is_reported_once() -> None:
    no_mapping = "must return a mapping of settings, or None for no change, not a "
    for first, said in (([("timeout", 5)], no_mapping), ({5: 5}, no_mapping), ({"timeout": -1}, "timeout: must be more than 0")):
        errors: list[Exception] = []
        config = ScheduleConfig()
        answers: list[Any] = [first, first, {"timeout": 5}, {"timeout": 0}]
        watcher = ConfigWatcher(config, callback=partial(answers.pop, 0), on_error=errors.append)
        assert [watcher.poll_once() for _ in range(4)] == [False, False, True, False], first
        assert config.timeout == 5.0
        assert [str(error).startswith(f"callback: {each}") for error, each in zip(errors, (said, "timeout: 0"), strict=True)] == [True] * 2


def test_a_callback_that_raises_is_reported_once_without_its_words_which_may_be_secret(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = []
    broken = [True]

    def ask() -> dict[str, Any]:
        if broken[0]:
            raise OSError(f"no answer from https://me:{SECRET}@settings")
        return {"timeout": 5}

    watcher = ConfigWatcher(ScheduleConfig(), callback=ask, on_error=errors.append)
    assert [watcher.poll_once(), watcher.poll_once()] == [False, False]
    assert caplog.messages == ["callback: raised OSError; nothing was changed"]
    assert SECRET not in caplog.text
    assert [type(error.__cause__) for error in errors] == [OSError]
    broken[0] = False
    assert watcher.poll_once()


class Judge:
    @schedule(retry_times=2)
    def score(self, answer: str) -> float:
        return float(len(answer))


@schedule
async def score(answer: str) -> float:
    return float(len(answer))


def test_a_decorated_function_is_watched_by_its_config() -> None:
    for function in (score, Judge.score, Judge().score):
        before = function.config.timeout
        watcher = ConfigWatcher(function, callback=partial([{"timeout": 5}, {}].pop, 0))
        assert (watcher.poll_once(), function.config.timeout) == (True, 5.0)
        assert (watcher.poll_once(), function.config.timeout) == (True, before)


def fleet_file(path: Path, *names: str, **settings: Any) -> Path:
    endpoints = [{"base_url": f"http://{name}:8000/v1", "name": name, "api_key": "${JUDGE_KEY}"} for name in names]
    path.write_text(json.dumps({"endpoints": endpoints, **settings}))
    return path


@pytest.mark.parametrize("kind", [QRewardClient, SyncQRewardClient])
def test_a_client_is_watched_by_its_whole_configuration(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    errors: list[Exception] = []
    client = kind.from_config(fleet_file(tmp_path / "q.json", "a", "b", timeout=5))
    watcher = ConfigWatcher(client, file=tmp_path / "q.json", on_error=errors.append)
    assert not watcher.poll_once()  # it is what the client was made from
    fleet_file(tmp_path / "q.json", "a", "c", retry={"attempts": 9})
    assert watcher.poll_once()
    assert list(client.stats()) == ["a", "c"]
    assert (client.config.retry.attempts, client.config.timeout) == (9, 600.0)
    fleet_file(tmp_path / "q.json", "a", "a")
    assert not watcher.poll_once()
    assert list(client.stats()) == ["a", "c"]
    (error,) = errors
    assert str(error).startswith(f"{tmp_path / 'q.json'}: endpoints: more than one is called 'a'")


def test_the_warnings_on_the_file_of_a_client_come_again_only_if_the_file_or_its_overlay_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, overlay = tmp_path / "q.json", tmp_path / "q.json.overlay.json"
    file.write_text(json.dumps({"endpoints": [{"base_url": "http://a/v1", "name": "a", "weight": 2}]}))
    watcher = ConfigWatcher(QRewardClient(["http://b/v1"]), file=file)
    said = []
    for written in (None, None, overlay, None, file, None):
        caplog.clear()
        if written is not None:
            written.write_text('{"limits": {"a": {"rpm": 600}}}' if written is overlay else f"{file.read_text()} ")
        watcher.poll_once()
        said.append(sum("weight has no effect" in record.getMessage() for record in caplog.records))
    assert said == [1, 0, 1, 0, 1, 0]


def test_settings_that_could_not_be_applied_are_tried_again_until_the_source_says_otherwise(tmp_path: Path) -> None:
    errors: list[Exception] = []
    addresses = tmp_path / "judges"
    plain, listed = ({"endpoints": [{"base_url": url, "name": "a"}]} for url in ("http://a/v1", f"list:{addresses}"))
    client = QRewardClient.from_config(plain)
    answers: list[Any] = [plain, listed, None, None, listed, plain, None, listed]
    watcher = ConfigWatcher(client, callback=lambda: answers.pop(0), on_error=errors.append)
    assert [watcher.poll_once() for _ in range(3)] == [False] * 3
    addresses.write_text("http://b:1/v1")
    assert watcher.poll_once()
    assert list(client.stats()) == ["b:1"]
    assert not watcher.poll_once()
    assert watcher.poll_once()
    addresses.unlink()
    assert not watcher.poll_once()
    assert not watcher.poll_once()
    assert ["No such file" in str(error) for error in errors] == [True, True]
    assert list(client.stats()) == ["a"]


def test_a_client_may_be_given_mappings_or_configurations_by_a_callback() -> None:
    errors: list[Exception] = []
    client = QRewardClient(["http://a/v1"])
    b = {"base_url": "http://b/v1", "name": "b"}
    config = ClientConfig(endpoints=(Endpoint("http://c/v1"),))
    answers: list[Any] = [{"endpoints": [b]}, {"endpoints": [dict(b)]}, config, {"endpoints": []}, {"endpoints": []}, [b]]
    watcher = ConfigWatcher(client, callback=lambda: answers.pop(0), on_error=errors.append)
    assert [watcher.poll_once() for _ in range(6)] == [True, False, True, False, False, False]
    assert list(client.stats()) == ["c"]
    assert [str(error) for error in errors] == [
        "callback: endpoints: must contain at least one endpoint",
        "callback: must return a mapping of settings, or None for no change, not a list",
    ]


def test_a_watcher_that_makes_no_sense_is_refused() -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({}, "exactly one of file and callback"),
        ({"file": "s.json", "callback": dict}, "exactly one of file and callback"),
        ({"file": 3}, "file must be a path"),
        ({"callback": 3}, "callback must be a plain function"),
        ({"file": "s.json", "poll_interval": 0}, "poll_interval must be a positive number of seconds"),
        ({"file": "s.json", "on_error": 3}, "on_error must be a plain function"),
    ]
    for settings, said in table:
        with pytest.raises(ConfigError, match=said):
            ConfigWatcher(ScheduleConfig(), **settings)
    for target in (None, print, SimpleNamespace(config={}), ScheduleConfig, ClientConfig(endpoints=(Endpoint("http://a"),))):
        with pytest.raises(ConfigError, match="ConfigWatcher takes a ScheduleConfig, a function with @schedule or a client"):
            ConfigWatcher(target, callback=dict)
