"""Where settings stand and what becomes of them: a file, a callback; for a function and for a client."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qreward import ConfigError, ConfigWatcher, Endpoint, Priority, QRewardClient, ScheduleConfig, SyncQRewardClient, schedule
from qreward.settings.client import ClientConfig

SECRET = "sk-hush-7f3a"


class Bench:
    """A configuration, a file that is watched for it, and what was said."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture, name: str = "s.json", **in_code: Any) -> None:
        self.path = folder / name
        self.config = ScheduleConfig(**in_code)
        self.errors: list[Exception] = []
        self.watcher = ConfigWatcher(self.config, file=self.path, on_error=self.errors.append)
        self._caplog = caplog

    def write(self, text: str, **settings: Any) -> Bench:
        self.path.write_text(text or json.dumps(settings))
        return self

    def say(self, **settings: Any) -> Bench:
        return self.write("", **settings)

    def look(self) -> bool:
        return self.watcher.poll_once()

    def warnings(self) -> list[str]:
        """What was said since the last time."""
        said = [record.getMessage() for record in self._caplog.records if record.levelno == logging.WARNING]
        self._caplog.clear()
        assert said == [f"{error}; nothing was changed" for error in self.errors]
        self.errors.clear()
        place = re.compile(rf"^{re.escape(str(self.path))}(, line \d+)?: ")
        return [place.sub("", text).removesuffix("; nothing was changed") for text in said]


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., Bench]:
    caplog.set_level(logging.INFO, "qreward.schedule")
    return lambda *args, **in_code: Bench(tmp_path, caplog, *args, **in_code)


# a file


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("s.json", ['{"timeout": 5, "priority": "high"}', '{"timeout": null}']),
        ("s.yaml", ["timeout: 5\npriority: high", "timeout: null"]),
        ("s.toml", ['timeout = 5\npriority = "high"', "timeout = 7"]),
    ],
)
def test_what_a_file_says_is_taken_over_and_so_is_each_change(name: str, texts: list[str], bench: Any) -> None:
    b = bench(name)
    assert b.write(texts[0]).look()
    assert (b.config.timeout, b.config.priority) == (5.0, Priority.HIGH)
    assert b.write(texts[1]).look()
    assert (b.config.timeout, b.config.priority) == (7.0 if name.endswith("toml") else None, Priority.NORMAL)
    assert b.warnings() == []


def test_a_file_that_is_as_it_was_changes_nothing(bench: Any) -> None:
    b = bench().say(timeout=5)
    assert [b.look(), b.look()] == [True, False]
    b.config.update(timeout=9)  # by the program, in spite of the file
    assert not b.look()
    assert b.config.timeout == 9.0


def test_a_second_change_is_noticed_although_it_bears_the_time_and_the_size_of_the_first(bench: Any) -> None:
    b = bench().say(timeout=5)
    assert b.look()
    stat = b.path.stat()
    b.say(timeout=6)
    os.utime(b.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = b.path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    assert b.look()
    assert b.config.timeout == 6.0


def test_a_file_that_is_written_again_with_what_it_held_changes_nothing(bench: Any) -> None:
    b = bench().say(timeout=5)
    assert b.look()
    b.config.update(timeout=9)
    os.utime(b.say(timeout=5).path, (1_000_000_000, 1_000_000_000))
    assert not b.look()
    assert b.config.timeout == 9.0


def test_a_file_that_is_replaced_by_another_of_its_time_and_size_is_noticed(bench: Any, tmp_path: Path) -> None:
    b = bench().say(timeout=5)
    os.utime(b.path, (1_000_000_000, 1_000_000_000))
    assert b.look()
    other = tmp_path / "new"
    other.write_text(json.dumps({"timeout": 6}))
    os.utime(other, (1_000_000_000, 1_000_000_000))
    other.replace(b.path)
    assert b.look()
    assert b.config.timeout == 6.0


def test_a_setting_that_is_removed_goes_back_to_what_the_code_said(bench: Any) -> None:
    b = bench(timeout=30, retry_times=2)
    b.say(timeout=5, retry_times=7, limit_size=3).look()
    assert b.say(retry_times=8).look()
    assert b.config == ScheduleConfig(timeout=30, retry_times=8)
    assert b.say().look()
    assert b.config == ScheduleConfig(timeout=30, retry_times=2)


def test_a_setting_that_the_file_never_said_is_left_to_the_program(bench: Any) -> None:
    b = bench(retry_times=2)
    b.say(timeout=5).look()
    b.config.update(retry_times=4, limit_size=9)
    b.say().look()
    assert b.config == ScheduleConfig(retry_times=4, limit_size=9)
    b.config.update(timeout=6)  # which the file did say, but no more
    b.say(limit_window=2).look()
    assert b.config == ScheduleConfig(retry_times=4, limit_size=9, timeout=6, limit_window=2)


BROKEN: list[tuple[str, str, str]] = [
    ("half written JSON", '{"timeout": 5, "retr', "is not valid JSON: Unterminated string"),
    ("truncated to nothing", "", "is empty; write {} if nothing is to be set"),
    ("blank", " \n", "is empty"),
    ("no mapping", "[5]", "must be a mapping of settings, not a list"),
    ("unknown setting", '{"timeuot": 5}', "unknown setting 'timeuot'; did you mean 'timeout'?"),
    ("wrong value", '{"timeout": 0}', "timeout: 0 does not switch it off; use None to switch it off"),
    ("one wrong among right ones", '{"retry_times": 3, "timeout": -1}', "timeout: must be more than 0 seconds, not -1"),
    ("what code alone can set", '{"key_func": "len"}', "key_func: must be a plain function"),
    ("another pool", '{"pool": "others"}', "pool: cannot be changed while the function is in use; set it in code"),
    ("a variable that is not set", '{"pool": "${NO_SUCH}"}', "pool: the environment variable NO_SUCH is not set"),
    ("a name twice", '{"timeout": 5, "timeout": 6}', "the name 'timeout' is there twice"),
]


@pytest.mark.parametrize(("text", "said"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_file_that_is_wrong_changes_nothing_and_is_told_once(text: str, said: str, bench: Any) -> None:
    b = bench(timeout=30)
    b.say(timeout=5).look()
    b.path.write_text(text)
    assert [b.look(), b.look(), b.look()] == [False] * 3
    assert b.config == ScheduleConfig(timeout=5)
    (told,) = b.warnings()
    assert told.startswith(said)
    assert b.say(timeout=6).look()
    assert b.config == ScheduleConfig(timeout=6)
    b.path.write_text(text)
    b.look()
    assert len(b.warnings()) == 1, "it is a new trouble"


def test_what_was_said_before_an_error_is_still_taken_back_after_it(bench: Any) -> None:
    b = bench(timeout=30)
    b.say(timeout=5).look()
    b.write("{").look()
    b.say().look()
    assert b.config.timeout == 30.0


def test_a_file_that_is_missing_or_goes_away_changes_nothing_and_is_told_once(bench: Any) -> None:
    b = bench(timeout=30)
    assert [b.look(), b.look()] == [False, False]
    assert b.warnings() == ["cannot be read: No such file or directory"]
    assert b.say(timeout=5).look()
    b.path.unlink()
    assert [b.look(), b.look()] == [False, False]
    assert b.warnings() == ["cannot be read: No such file or directory"]
    assert b.config.timeout == 5.0
    assert not b.say(timeout=5).look()
    assert b.say(timeout=6).look()
    assert b.warnings() == []


def test_a_folder_in_the_place_of_the_file_is_told(bench: Any) -> None:
    b = bench()
    b.path.mkdir()
    assert [b.look(), b.look()] == [False, False]
    assert b.warnings() == ["cannot be read: Is a directory"]


def test_a_file_is_found_again_when_the_program_changes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ScheduleConfig()
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text('{"timeout": 5}')
    watcher = ConfigWatcher(config, file="s.json")
    monkeypatch.chdir("/")
    assert watcher.poll_once()


def test_no_value_of_a_file_is_shown_in_a_log(bench: Any) -> None:
    b = bench()
    for text in (f'{{"timeout": "{SECRET}"}}', f'{{"timeout": 5 "{SECRET}"', f'"{SECRET}"', f'{{"timeout": 5, "pool": "{SECRET}"}}'):
        b.write(text).look()
        (told,) = b.warnings()
        assert SECRET not in told


def test_a_change_is_logged_by_the_names_of_what_changed(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    b = bench().say(timeout=5, retry_times=1, limit_window=1)
    b.look()
    assert caplog.messages == [f"{b.path}: changed retry_times, timeout"]


def test_an_on_error_that_raises_is_logged_and_hinders_nothing(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = ScheduleConfig()
    told: list[Any] = [{"timeout": 0}, {"timeout": 5}]
    watcher = ConfigWatcher(config, callback=lambda: told.pop(0), on_error=lambda _: 1 / 0)
    assert [watcher.poll_once(), watcher.poll_once()] == [False, True]
    assert "on_error of a ConfigWatcher raised" in caplog.messages


# a callback


def test_a_callback_gives_what_is_to_be_or_none_for_no_change(caplog: pytest.LogCaptureFixture) -> None:
    config = ScheduleConfig(timeout=30)
    answers: list[Any] = [None, {"timeout": 5, "exception_types": (OSError,)}, None, {"timeout": 5, "exception_types": (OSError,)}, {}]
    watcher = ConfigWatcher(config, callback=lambda: answers.pop(0))
    assert [watcher.poll_once() for _ in range(5)] == [False, True, False, False, True]
    assert config == ScheduleConfig(timeout=30)
    assert caplog.messages == []


def test_a_callback_may_change_and_give_one_mapping_again_and_again() -> None:
    config, settings = ScheduleConfig(), {"timeout": 5}
    watcher = ConfigWatcher(config, callback=lambda: settings)
    watcher.poll_once()
    settings["timeout"] = 6
    assert watcher.poll_once()
    assert config.timeout == 6.0


@pytest.mark.parametrize("given", [[("timeout", 5)], 5, "timeout", {5: 5}])
def test_a_callback_that_gives_no_mapping_is_told_once(given: Any) -> None:
    errors: list[Exception] = []
    watcher = ConfigWatcher(ScheduleConfig(), callback=lambda: given, on_error=errors.append)
    assert [watcher.poll_once(), watcher.poll_once()] == [False, False]
    (error,) = errors
    assert str(error).startswith("callback: must return a mapping of settings, or None for no change, not a ")


def test_a_callback_that_gives_wrong_settings_is_told_once() -> None:
    errors: list[Exception] = []
    answers: list[Any] = [{"timeout": 0}, {"timeout": 0}, {"timeout": -1}, {"timeout": 5}, {"timeout": 0}]
    watcher = ConfigWatcher(ScheduleConfig(), callback=lambda: answers.pop(0), on_error=errors.append)
    assert [watcher.poll_once() for _ in range(5)] == [False, False, False, True, False]
    assert [str(error)[:20] for error in errors] == ["callback: timeout: 0", "callback: timeout: m", "callback: timeout: 0"]


def test_a_callback_that_raises_is_told_once_without_its_words_which_may_be_secret(caplog: pytest.LogCaptureFixture) -> None:
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
    broken[0] = True
    watcher.poll_once()
    assert len(errors) == 2


# whom, and what with


class Judge:
    @schedule(retry_times=2)
    def score(self, answer: str) -> float:
        return float(len(answer))


@schedule
async def score(answer: str) -> float:
    return float(len(answer))


@pytest.mark.parametrize("function", [score, Judge.score, Judge().score], ids=["function", "method", "bound method"])
def test_a_decorated_function_is_watched_by_its_config(function: Any) -> None:
    before = function.config.timeout
    answers: list[Any] = [{"timeout": 5}, {}]
    watcher = ConfigWatcher(function, callback=lambda: answers.pop(0))
    assert watcher.poll_once()
    assert function.config.timeout == 5.0
    assert watcher.poll_once()
    assert function.config.timeout == before


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
    assert str(error).startswith(f"{tmp_path / 'q.json'}, line 1: endpoints: more than one is called 'a'")


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
        "callback: endpoints: must hold at least one endpoint",
        "callback: must return a mapping of settings, or None for no change, not a list",
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "exactly one of file, env and callback; none was given"),
        ({"file": "s.json", "env": True}, "exactly one of file, env and callback; file and env was given"),
        ({"file": "s.json", "callback": dict}, "exactly one of file, env and callback; file and callback was given"),
        ({"file": 3}, "file must be a path"),
        ({"env": 3}, "env must be True or a prefix"),
        ({"callback": 3}, "callback must be a plain function"),
        ({"file": "s.json", "poll_interval": 0}, "poll_interval must be a positive number of seconds"),
        ({"file": "s.json", "poll_interval": None}, "poll_interval must be a positive number of seconds"),
        ({"file": "s.json", "on_error": 3}, "on_error must be a plain function"),
    ],
)
def test_a_watcher_that_makes_no_sense_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConfigWatcher(ScheduleConfig(), **settings)


@pytest.mark.parametrize(
    "target", [None, print, SimpleNamespace(config={}), ScheduleConfig, ClientConfig(endpoints=(Endpoint("http://a"),))]
)
def test_a_target_that_cannot_be_changed_is_refused(target: Any) -> None:
    with pytest.raises(ConfigError, match="ConfigWatcher takes a ScheduleConfig, a function with @schedule or a client"):
        ConfigWatcher(target, callback=dict)


def test_the_environment_is_not_for_clients() -> None:
    with pytest.raises(ConfigError, match="env= works for functions only; for a client use file= or callback="):
        ConfigWatcher(QRewardClient(["http://a/v1"]), env=True)
