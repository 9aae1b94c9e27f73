"""The parameters of a function: what each takes and refuses, that a refusal says what to write, and that no secret is shown."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from qreward import ConfigError, Priority
from qreward.callables import NOT_GIVEN
from qreward.functions.config import ScheduleConfig

SECRET = "sk-hush-7f3a"
NAMES = set(ScheduleConfig.model_fields)


class Exporter:
    def export(self, metrics: object) -> None: ...

    def __repr__(self) -> str:
        return f"Exporter(key={SECRET})"


def length(*args: object) -> int:
    return len(args)


async def awaited(*_: object) -> bool:
    return True


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        pytest.fail(f"{settings} was taken: {ScheduleConfig(**settings)}")
    return str(caught.value)


RIGHT: list[tuple[str, Any, Any]] = [
    ("timeout", "2.5", 2.5),
    ("retry_interval", 0, 0.0),
    ("exception_types", (OSError, asyncio.TimeoutError), (OSError, TimeoutError)),
    ("exception_types", length, length),
    ("limit_size", 1, 1),
    ("hedged_request_time", "1.5", 1.5),
    ("hedged_request_time", "p99.99", "p99.99"),
    ("hedged_request_proportion", 1, 1.0),
    ("adaptive_error_threshold", 1.0, 1.0),
    ("default_result", None, None),
    ("priority", 0, Priority.HIGH),
    ("priority", 7, 7),
    ("priority", "low", Priority.LOW),
    ("telemetry_exporter", None, None),
]
ZERO = "0 does not switch it off; use None to switch it off"
WRONG: list[tuple[str, Any, str]] = [
    *((name, 0, ZERO) for name in ("timeout", "limit_size", "max_concurrency", "circuit_breaker_threshold", "adaptive_latency_threshold")),
    *(("hedged_request_time", zero, ZERO) for zero in (0, 0.0, False, "0")),
    *((name, inf, "finite") for name in ("timeout", "limit_window", "circuit_breaker_recovery", "adaptive_latency_threshold")),
    *((name, 1.5, "") for name in ("limit_size", "max_concurrency", "circuit_breaker_threshold", "adaptive_limit_max")),
    *((name, 0, "must be at least 1, not 0") for name in ("hedged_request_max_times", "speed_up_max_multiply", "adaptive_limit_min")),
    ("retry_times", None, "must be a valid integer, not None"),
    ("retry_interval", -0.1, "must be at least 0, not -0.1"),
    ("retry_max_interval", 0, "must be more than 0, not 0"),
    *(("hedged_request_time", odd, "must be a positive number of seconds") for odd in (-1, True, "95%", [2], 10**400, inf)),
    *(("hedged_request_time", odd, "must be above p0 and below p100") for odd in ("p0", "p100")),
    *((name, wrong, "") for name in ("hedged_request_proportion", "adaptive_error_threshold") for wrong in (0, 1.01, True, None)),
    ("exception_types", BaseException, "use Exception, or subclasses of it"),
    ("exception_types", (ValueError, asyncio.CancelledError), "CancelledError cannot be retried"),
    ("exception_types", (), "is an empty tuple"),
    ("exception_types", int, "must name exception classes"),
    ("exception_types", [ValueError], "must be an exception class, a tuple of such classes, or a function"),
    ("exception_types", awaited, "must be a plain function"),
    ("key_func", "name", "must be a plain function"),
    ("key_func", awaited, "must be a plain function"),
    ("metrics_callback", 3, "callable"),
    ("telemetry_exporter", object(), "must be an object with a method export(metrics)"),
    ("priority", "urgent", "from 0 (most urgent) to 9, or 'high', 'normal' or 'low', not 'urgent'"),
    *(("pool", odd, "must be a name") for odd in ("", " judges", "a\nb")),
    ("adaptive_limit", "maybe", "must be a valid boolean"),
    ("debug", None, "must be a valid boolean"),
]


def test_a_right_value_is_kept_and_a_wrong_one_is_refused_once_by_the_name_of_its_parameter() -> None:
    found = [(name, given, getattr(ScheduleConfig(**{name: given}), name)) for name, given, _ in RIGHT]
    assert [(one, type(one[2])) for one in found] == [(one, type(one[2])) for one in RIGHT]
    faults = []
    for name, value, said in WRONG:
        message = refusal(**{name: value})
        if not message.startswith(f"ScheduleConfig: {name}: ") or said not in message or f"; {name}" in message:
            faults.append((name, value, message))
    assert faults == []
    assert {name for name, _, _ in WRONG} | {"default_result"} == NAMES, "every parameter is there"


def test_the_value_that_is_refused_is_never_shown() -> None:
    for name in NAMES - {"default_result", "pool"}:
        assert SECRET not in refusal(**{name: SECRET}), name
    assert SECRET not in refusal(pool=f" {SECRET}")


def test_an_unknown_name_offers_the_nearest_right_one() -> None:
    assert refusal(retry_time=3) == "ScheduleConfig: unknown setting 'retry_time'; did you mean 'retry_times'?"


def test_the_least_adaptive_limit_is_not_above_the_most() -> None:
    assert "adaptive_limit_min is larger than adaptive_limit_max; set both at once" in refusal(adaptive_limit_min=11, adaptive_limit_max=10)
    assert ScheduleConfig(adaptive_limit_min=7, adaptive_limit_max=7).adaptive_limit_max == 7


def test_only_what_differs_from_the_defaults_is_shown_and_nothing_that_an_object_says_of_itself() -> None:
    assert repr(ScheduleConfig()) == "ScheduleConfig()"
    config = ScheduleConfig(timeout=30, exception_types=(OSError,), telemetry_exporter=Exporter(), default_result={"key": SECRET})
    assert repr(config) == (
        "ScheduleConfig(timeout=30.0, exception_types=(OSError,), default_result=<dict>, telemetry_exporter=<Exporter>)"
    )
    assert SECRET not in repr(ScheduleConfig(key_func=lambda: SECRET))


def test_the_sentinel_stays_the_same_one_when_copied() -> None:
    assert copy.deepcopy(NOT_GIVEN) is pickle.loads(pickle.dumps(NOT_GIVEN)) is NOT_GIVEN
    assert ScheduleConfig(default_result=NOT_GIVEN) == ScheduleConfig() != ScheduleConfig(default_result=None)


def full() -> ScheduleConfig:
    return ScheduleConfig(timeout=3, retry_times=2, exception_types=(OSError, ValueError), key_func=length, priority=7, pool="judges")


def test_a_copy_has_the_same_values_and_a_life_of_its_own() -> None:
    ways: list[Any] = [
        copy.copy,
        copy.deepcopy,
        lambda config: pickle.loads(pickle.dumps(config)),
        lambda config: config.model_copy(),
        lambda config: ScheduleConfig(**config.snapshot()),
    ]
    config = full()
    heard: list[object] = []
    config.on_change(lambda _, names: heard.append(names))
    copies = [again(config) for again in ways]
    assert copies == [config] * 5
    for other in copies:
        other.update(timeout=9)
    assert heard == []
    assert (config.timeout, [other.timeout for other in copies]) == (3, [9] * 5)
    assert config not in copies


def test_configurations_are_equal_by_their_values_and_are_no_keys() -> None:
    assert full() == full()
    assert full() != ScheduleConfig()
    assert full() != full().snapshot()
    with pytest.raises(TypeError, match="unhashable"):
        hash(full())


def test_values_that_cannot_be_compared_are_the_same_only_if_they_are_one() -> None:
    class Array:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> Any:
            raise ValueError("the truth value is ambiguous")

    array = Array()
    assert ScheduleConfig(default_result=array) == ScheduleConfig(default_result=array)
    assert ScheduleConfig(default_result=array) != ScheduleConfig(default_result=Array())
    assert ScheduleConfig(default_result=0) != ScheduleConfig(default_result=False)


def test_a_configuration_is_read_from_any_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECONDS", "30")
    table: list[tuple[str, str, dict[str, Any]]] = [
        ("s.json", '{"timeout": "${SECONDS}", "hedged_request_time": "p95", "default_result": null}', {"default_result": None}),
        ("s.yaml", "timeout: ${SECONDS}\nhedged_request_time: p95\ndefault_result: null\n", {"default_result": None}),
        ("s.toml", 'timeout = "${SECONDS}"\nhedged_request_time = "p95"\n', {}),  # which has no word for nothing
    ]
    for name, text, more in table:
        (tmp_path / name).write_text(text)
        assert ScheduleConfig.from_file(tmp_path / name) == ScheduleConfig(timeout=30, hedged_request_time="p95", **more), name
    (tmp_path / "s.yaml").write_text("{}")
    assert ScheduleConfig.from_file(tmp_path / "s.yaml") == ScheduleConfig()


def test_a_wrong_file_is_refused_with_its_name_and_the_place(tmp_path: Path) -> None:
    table = [
        ("timeout: 0", "timeout: 0 does not switch it off; use None to switch it off"),
        ("", "is empty; write {} if nothing is to be set"),
        ("key_func: len", "key_func: must be a plain function"),
    ]
    path = tmp_path / "s.yaml"
    faults = []
    for text, said in table:
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            ScheduleConfig.from_file(path)
        if not re.match(rf"{re.escape(str(path))}: {re.escape(said)}", str(caught.value)):
            faults.append((text, str(caught.value)))
    assert faults == []
    with pytest.raises(ConfigError, match=r"^nowhere\.json: cannot be read: No such file"):
        ScheduleConfig.from_file("nowhere.json")
