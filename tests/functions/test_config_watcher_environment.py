"""Parameters of a function in the environment: how each is written, and what is said of one that is wrong."""

from __future__ import annotations

import pytest

from qreward import ConfigError, ConfigWatcher, Priority, ScheduleConfig


def test_the_environment_is_read_by_the_names_of_the_parameters_in_upper_case(monkeypatch: pytest.MonkeyPatch) -> None:
    for env, prefix in ((True, "QREWARD_SCHEDULE_"), ("JUDGE_", "JUDGE_")):
        config = ScheduleConfig(timeout=30, limit_size=4)
        watcher = ConfigWatcher(config, env=env)  # type: ignore[arg-type]
        assert not watcher.poll_once()
        texts = {"TIMEOUT": "none", "RETRY_TIMES": "3", "HEDGED_REQUEST_TIME": "p95", "DEBUG": "True", "PRIORITY": "high"}
        for name, text in texts.items():
            monkeypatch.setenv(prefix + name, text)
        assert watcher.poll_once()
        assert config == ScheduleConfig(limit_size=4, retry_times=3, hedged_request_time="p95", debug=True, priority=Priority.HIGH)
        assert not watcher.poll_once()
        for name in texts:
            monkeypatch.setenv(prefix + name, "")  # empty is not set
        assert watcher.poll_once()
        assert config == ScheduleConfig(timeout=30, limit_size=4)
        monkeypatch.setenv("QREWARD_SCHEDULE_TIMEOUT", "5")  # which the other prefix does not read
    monkeypatch.delenv("QREWARD_SCHEDULE_TIMEOUT")


WRONG = [
    ("TIMEOUT", "soon", "TIMEOUT: 'soon' is not a number of seconds"),
    ("LIMIT_WINDOW", "none", "LIMIT_WINDOW: must be a number of seconds, not null"),
    ("KEY_FUNC", "len", "KEY_FUNC: can be set in code only, not in the environment"),
    ("DEFAULT_RESULT", "0", "DEFAULT_RESULT: can be set in code only, not in the environment"),
    ("TIMEUOT", "5", "TIMEUOT: is not a setting; did you mean QREWARD_SCHEDULE_TIMEOUT?"),
    ("timeout", "5", "timeout: is not a setting; did you mean QREWARD_SCHEDULE_TIMEOUT?"),
    ("XYZ", "5", "XYZ: is not a setting; variables that begin with QREWARD_SCHEDULE_ must name settings"),
]


def test_a_wrong_variable_is_reported_by_its_name_once_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("QREWARD_SCHEDULE_RETRY_MAX_INTERVAL", "9")
    faults = []
    for variable, text, said in WRONG:
        config, errors = ScheduleConfig(), list[Exception]()
        watcher = ConfigWatcher(config, env=True, on_error=errors.append)
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setenv(f"QREWARD_SCHEDULE_{variable}", text)
            assert [watcher.poll_once(), watcher.poll_once()] == [False, False], variable
        assert config == ScheduleConfig(), variable
        if [type(error) for error in errors] != [ConfigError] or not str(errors[0]).startswith(f"QREWARD_SCHEDULE_{said}"):
            faults.append((variable, text, errors))
        assert caplog.messages == [f"{error}; nothing was changed" for error in errors]
    assert faults == []


def test_two_variables_are_taken_over_and_refused_together_although_neither_goes_with_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, errors = ScheduleConfig(), list[Exception]()
    watcher = ConfigWatcher(config, env=True, on_error=errors.append)
    monkeypatch.setenv("QREWARD_SCHEDULE_ADAPTIVE_LIMIT_MIN", "600")
    monkeypatch.setenv("QREWARD_SCHEDULE_ADAPTIVE_LIMIT_MAX", "650")
    assert watcher.poll_once()
    assert (config.adaptive_limit_min, config.adaptive_limit_max) == (600, 650)
    monkeypatch.setenv("QREWARD_SCHEDULE_ADAPTIVE_LIMIT_MAX", "15")
    assert not watcher.poll_once()
    assert [str(error) for error in errors] == [
        "environment: adaptive_limit_min is larger than adaptive_limit_max; set both at once if both are to change"
    ]
