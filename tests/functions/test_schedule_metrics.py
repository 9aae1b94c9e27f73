"""Records, counts and the log of calls. None of them can break a call."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from schedule_runs import KINDS, at_times, kind_name

from qreward import ScheduleMetrics, schedule

both = pytest.mark.parametrize("kind", KINDS, ids=kind_name)


@both
def test_there_is_one_record_a_call_of_failed_refused_and_defaulted_calls_too(kind: Any) -> None:
    records: list[ScheduleMetrics] = []

    def behave(number: int, kind: str) -> tuple[float, Any]:
        return {
            "well": (1.0, 7),
            "flaky": (1.0, 7 if number == 2 else ConnectionError()),
            "bad": (1.0, KeyError("secret")),
            "slow": (99.0, 7),
            "away": (0.0, ConnectionError()),
        }[kind]

    calls = [(0, "well"), (2, "flaky"), (10, "bad"), (20, "slow"), (30, "well"), (40, "away"), (41, "away")]
    settings = {"retry_times": 1, "retry_interval": 0, "timeout": 5, "exception_types": ConnectionError, "circuit_breaker_threshold": 2}
    kind.run(behave, calls, metrics_callback=records.append, default_result=0, key_func=lambda key: key, **settings)
    found = [(each.key, each.outcome, each.error, each.defaulted, each.tries, each.retries, round(each.latency)) for each in records]
    assert found == [
        ("well", "ok", None, False, 1, 0, 1),
        ("flaky", "ok", None, False, 2, 1, 2),
        ("bad", "failed", "KeyError", False, 1, 0, 1),
        ("slow", "timeout", "RequestTimeout", True, 1, 0, 5),
        ("well", "ok", None, False, 1, 0, 1),
        ("away", "failed", "ConnectionError", True, 2, 1, 0),
        ("away", "circuit_open", "CircuitOpen", True, 0, 0, 0),
    ]
    assert all(record.function.endswith("body") for record in records)
    assert "secret" not in repr(records)
    records.clear()
    kind.run(lambda *_: (2.0, 1), at_times([0, 0]), metrics_callback=records.append, max_concurrency=1)
    assert [round(record.queued) for record in records] == [0, 2]
    records.clear()
    kind.run(lambda number, *_: (9.0 if number == 0 else 1.0, 1), at_times([0]), metrics_callback=records.append, hedged_request_time=1)
    assert [(record.tries, record.hedges, record.retries) for record in records] == [(2, 1, 0)]


@both
def test_a_callback_or_exporter_that_raises_breaks_nothing(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Exporter:
        def export(self, metrics: ScheduleMetrics) -> None:
            raise OSError("the collector is away")

    def callback(_: ScheduleMetrics) -> None:
        raise ZeroDivisionError

    outcome = kind.run(lambda *_: (0.0, 7), at_times([0]), metrics_callback=callback, telemetry_exporter=Exporter())
    assert outcome.values == [7]
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    assert len(caplog.records) == 2


def test_the_method_of_an_exporter_may_be_replaced_while_the_function_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exporter:
        def export(self, metrics: ScheduleMetrics) -> None:
            raise AssertionError(metrics)

    records: list[ScheduleMetrics] = []
    exporter = Exporter()
    function = schedule(telemetry_exporter=exporter)(lambda: 7)
    monkeypatch.setattr(exporter, "export", records.append)
    function()
    assert [record.outcome for record in records] == ["ok"]


@both
def test_debug_and_only_debug_says_what_was_decided_and_when(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "qreward.schedule")
    for debug in (False, True):
        kind.run(
            lambda number, *_: (1.0, 7 if number else ConnectionError("secret")),
            at_times([0, 0]),
            debug=debug,
            retry_times=1,
            retry_interval=0,
            max_concurrency=1,
        )
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("qreward")]
        text = "\n".join(lines)
        assert bool(lines) == debug
    for words in ("waits for room: 1 of 1", "try 1 failed after 1 s: ConnectionError", "retry 1 of 1", "done after"):
        assert words in text, text
    assert "secret" not in text


@both
def test_debug_says_that_a_retry_is_not_made_because_other_calls_opened_the_circuit(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "qreward.schedule")
    settings = {"retry_times": 1, "exception_types": lambda _: 5.0, "circuit_breaker_threshold": 2}
    kind.run(lambda *_: (1.0, ConnectionError()), at_times([0, 2]), debug=True, **settings)
    assert "call 1 at 6.000 s: no retry: the circuit breaker is open" in caplog.text


def test_a_cancelled_call_has_a_record_that_says_so() -> None:
    records: list[ScheduleMetrics] = []

    @schedule(metrics_callback=records.append)
    async def score() -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        task = asyncio.ensure_future(score())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(test())
    assert [record.outcome for record in records] == ["cancelled"]
