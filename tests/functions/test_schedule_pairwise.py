"""All parameters together: sets of settings in which pairs of values meet, under random calls and faults.

In each the promises hold at once: one outcome a call, limits never exceeded in any window, time limits, no try too many, losers stopped.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from schedule_runs import KINDS, SLACK, End, Outcome, kind_name, most_in_any_window

from qreward import ScheduleMetrics
from qreward.callables import NOT_GIVEN
from qreward.functions.config import ScheduleConfig

CALLS = 60
CHOICES: dict[str, tuple[Any, ...]] = {
    "timeout": (None, 3.0, 20.0),
    "retry_times": (0, 2, 5),
    "retry_interval": (0.0, 0.5),
    "retry_max_interval": (60.0, 0.6),
    "exception_types": (
        Exception,
        (ConnectionError, httpx.HTTPStatusError),
        lambda error: 0.25 if isinstance(error, ConnectionError) else True,
    ),
    "limit_size": (None, 2, 7),
    "limit_window": (1.0, 2.5),
    "key_func": (None, lambda key, _place: key),
    "max_concurrency": (None, 1, 4),
    "hedged_request_time": (None, 0.5, "p80"),
    "hedged_request_max_times": (1, 3),
    "hedged_request_proportion": (0.05, 1.0),
    "speed_up_max_multiply": (1, 3),
    "default_result": (NOT_GIVEN, None, lambda key, place: (key, place)),
    "circuit_breaker_threshold": (None, 1, 6),
    "circuit_breaker_recovery": (30.0, 0.5),
    "adaptive_limit": (False, True),
    "adaptive_limit_min": (10, 1),
    "adaptive_limit_max": (500, 12),
    "adaptive_error_threshold": (0.3, 1.0),
    "adaptive_latency_threshold": (None, 0.4),
    "priority": (5, 0, 9),
    "pool": (None, "pairwise"),
    "metrics_callback": (None, "recorded"),
    "telemetry_exporter": (None, "recorded"),
    "debug": (False, True),
}


class Exporter:
    def __init__(self) -> None:
        self.records: list[ScheduleMetrics] = []

    def export(self, metrics: ScheduleMetrics) -> None:
        self.records.append(metrics)


def rows(count: int) -> list[dict[str, int]]:
    """Random choices by number: in so many rows nearly every value of one parameter meets every value of another."""
    rng = random.Random(1)
    return [{name: rng.randrange(len(choices)) for name, choices in CHOICES.items()} for _ in range(count)]


def faulty(rng: random.Random) -> Any:
    """A function that is quick, slow, stuck for a while, failing, or turns away."""
    request = httpx.Request("POST", "http://judge.example")
    busy = httpx.Response(429, headers={"retry-after-ms": "300"}, request=request)

    def behave(number: int, key: str, place: int) -> tuple[float, Any]:
        fate = rng.random()
        if fate < 0.12:
            return rng.uniform(0, 0.3), ConnectionError(number)
        if fate < 0.16:
            return 0.05, httpx.HTTPStatusError("busy", request=request, response=busy)
        if fate < 0.18:
            return 0.1, KeyError(number)
        return (6.0 if fate > 0.95 else rng.uniform(0.05, 0.8)), (key, place)

    return behave


def settings_of(row: dict[str, int]) -> tuple[dict[str, Any], list[ScheduleMetrics] | None, Exporter | None]:
    settings = {name: CHOICES[name][number] for name, number in row.items()}
    records: list[ScheduleMetrics] | None = None
    exporter: Exporter | None = None
    if settings["pool"]:
        settings["pool"] = f"pairwise {row}"
    if settings["metrics_callback"]:
        records = []
        settings["metrics_callback"] = records.append
    if settings["telemetry_exporter"]:
        exporter = settings["telemetry_exporter"] = Exporter()
    return settings, records, exporter


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_the_promises_hold_together(kind: Any) -> None:
    assert set(CHOICES) == set(ScheduleConfig.model_fields)
    faults = []
    for row, choices in enumerate(rows(40)):
        rng = random.Random(row)
        settings, records, exporter = settings_of(choices)
        calls = [(rng.uniform(0, 12), rng.choice("ab"), place) for place in range(CALLS)]
        outcome = kind.run(faulty(rng), calls, **settings)
        faults += [(row, fault, settings) for fault in broken(outcome, calls, settings, cancels=kind.cancels)]
        counted = {True: outcome.stats.ok, False: outcome.stats.failed}
        for seen in (records, exporter.records if exporter else None):
            if seen is not None and Counter(record.outcome == "ok" for record in seen) != Counter(counted):
                faults.append((row, f"{len(seen)} records for {counted}", settings))
    assert faults == []


def broken(outcome: Outcome, calls: list[tuple[float, str, int]], settings: dict[str, Any], *, cancels: bool) -> Iterator[str]:
    """What did not hold."""
    stats = outcome.settled
    ended = outcome.calls
    if len(ended) != CALLS or stats.calls != CALLS or stats.ok + stats.failed != CALLS:
        yield f"{len(ended)} ends, {stats} for {CALLS} calls"
    for call, end in zip(calls, ended, strict=True):
        yield from wrong_end(call, end, settings)
    most_tries = CALLS * (1 + settings["retry_times"] + (settings["hedged_request_max_times"] if settings["hedged_request_time"] else 0))
    if not len(outcome.starts) == stats.tries <= most_tries or (not settings["hedged_request_time"] and stats.hedges):
        yield f"{len(outcome.starts)} tries, {stats}"
    if stats.hedges > 10 + settings["hedged_request_proportion"] * CALLS:
        yield f"{stats.hedges} hedges"
    if settings["max_concurrency"] is not None and outcome.most > settings["max_concurrency"]:
        yield f"{outcome.most} under way"
    yield from over_the_rate(outcome, settings)
    if outcome.now or stats.inflight or stats.waiting:
        yield f"{outcome.now} tries go on, {stats}"
    if cancels and settings["timeout"] is None and any(time > max(end.at for end in ended) + SLACK for time in outcome.ended.values()):
        yield "a loser went on when all calls had ended"


def wrong_end(call: tuple[float, str, int], end: End, settings: dict[str, Any]) -> Iterator[str]:
    (at, key, place), default = call, settings["default_result"]
    if end.error is None and end.value != (key, place) and not (default is None and end.value is None):
        yield f"call {place} got {end.value}"
    if end.error is not None and default is not NOT_GIVEN and isinstance(end.error, ConnectionError):
        yield f"call {place} raised {end.error!r} despite its default"
    if settings["timeout"] is not None and end.at > at + settings["timeout"] + SLACK:
        yield f"call {place} took {end.at - at:.3f} s"


def over_the_rate(outcome: Outcome, settings: dict[str, Any]) -> Iterator[str]:
    size, window = settings["limit_size"], settings["limit_window"]
    if size is None:
        return
    if settings["adaptive_limit"]:
        size = max(size, settings["adaptive_limit_max"])
    for key in "ab" if settings["key_func"] else ("ab",):
        times = [time for time, args in outcome.starts if args[0] in key]
        if times and most_in_any_window(times, window) > size:
            yield f"{most_in_any_window(times, window)} starts of {key} in {window} s"
