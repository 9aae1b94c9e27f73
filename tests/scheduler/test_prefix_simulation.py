"""The scheduler as a whole with prefixes: every invariant holds, and servers with prefix caches compute less."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

import pytest
from scale import seeds
from scheduler_driver import Driver
from scheduler_scenarios import random_simulation

from qreward.scheduler.outcome import Answer
from qreward.scheduler.prefixes import Prefix
from qreward.scheduler.task import READ_AHEAD, Attempt, BatchFeed, Task

PROMPT, SHARED = 1000, 900
"""Tokens of a prompt, and of the question in it."""
CACHE = 8_000
"""Tokens that the prefix cache of a server holds."""


def sends(seed: int, monkeypatch: pytest.MonkeyPatch, *, prefixes: str) -> list[tuple[float, int, str]]:
    """What is sent when and where in a random simulation in which no two tasks have a prefix in common."""
    plain, numbers = Driver.task, count()

    def task(driver: Driver, *given: Any, **more: Any) -> Task:
        made, number = plain(driver, *given, **more), next(numbers)
        if prefixes == "named":
            made.prefix = Prefix((hash((number, 0)),), (4000.0,), 5000.0 + number, named=True)
        elif prefixes == "found":
            keys = tuple(hash((number, place)) for place in range(6))
            made.prefix = Prefix(keys, tuple(1000.0 * place for place in range(1, 7)), 6500.0 + number)
        return made

    with monkeypatch.context() as patched:
        patched.setattr(Driver, "task", task)
        simulation = random_simulation(seed)
        simulation.run()
    return [(at, attempt.task.index, attempt.source.name) for at, attempt in simulation.driver.watch.sends]


def test_where_nothing_is_shared_all_is_sent_as_without_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries, copies and outages included: the first attempt of a task is no reason to prefer or to delay its next."""
    for seed in seeds(12):
        plain = sends(seed, monkeypatch, prefixes="none")
        for prefixes in ("named", "found"):
            assert sends(seed, monkeypatch, prefixes=prefixes) == plain, f"seed {seed}, {prefixes}"


class CachingServer:
    """Computes a prompt at 1,000 tokens a second, one after another, and remembers the latest questions."""

    def __init__(self) -> None:
        self.cached: dict[int, None] = {}
        self.computed = 0
        self.free_at = 0.0

    def reply(self, now: float, prefix: Prefix) -> tuple[float, Answer]:
        known = prefix.keys[-1] in self.cached
        self.cached.pop(prefix.keys[-1], None)
        self.cached[prefix.keys[-1]] = None
        if len(self.cached) > CACHE // SHARED:
            del self.cached[next(iter(self.cached))]
        tokens = PROMPT - SHARED * known
        self.computed += tokens
        self.free_at = max(self.free_at, now) + tokens / 1000
        return self.free_at, Answer("yes", PROMPT, 1, cached_tokens=SHARED * known)


def bulk(groups: int, size: int, *, affine: bool, named: bool = True) -> tuple[float, int, Driver]:
    """Judge so many answers each to so many questions, shuffled. Returns the seconds, the tokens computed, and the driver."""
    driver = Driver(dict.fromkeys("abcd", 8), thorough=False)
    servers = {name: CachingServer() for name in driver.sources}
    feed = BatchFeed(driver.pool, 5, None, 0.0, read_ahead=driver.pool.look_ahead if affine else READ_AHEAD)
    driver.watch.feeds[feed] = None
    questions = [number % groups for number in range(groups * size)]
    Random(3).shuffle(questions)
    for number, question in enumerate(questions):
        task = driver.task()
        keys = (1, 10 + question) if named else (1, 10 + question, 10_000 + number)
        task.prefix = Prefix(keys, (200.0, 4.0 * SHARED, 4.0 * PROMPT)[: len(keys)], 4.0 * PROMPT, named) if affine else None
        task.payload = Prefix((question,), (1.0,), 1.0)
        feed.buffer.append(task)
    feed.ended = True
    driver.scheduler.refill(0.0, feed)
    seen, agenda, numbers = 0, list[tuple[float, int, Attempt, Any]](), count()
    while True:
        driver._after()
        for _, attempt in driver.watch.sends[seen:]:
            at, answer = servers[attempt.source.name].reply(driver.now, attempt.task.payload)
            heappush(agenda, (at, next(numbers), attempt, answer))
        seen = len(driver.watch.sends)
        if not agenda:
            break
        at, _, attempt, answer = heappop(agenda)
        driver.until(at)
        driver.report(attempt, answer)
    assert len(driver.watch.finished) == groups * size
    return driver.now, sum(server.computed for server in servers.values()), driver


def test_servers_with_prefix_caches_compute_each_question_once() -> None:
    groups, size = 60, 16
    least = groups * (SHARED + size * (PROMPT - SHARED))
    plain, plain_tokens, _ = bulk(groups, size, affine=False)
    for named in (True, False):
        affine, tokens, driver = bulk(groups, size, affine=True, named=named)
        predicted = sum(source.prefix_cache.predicted_tokens for source in driver.sources.values())
        assert tokens <= 1.1 * least < plain_tokens / 3
        assert affine < plain / 3
        assert predicted == pytest.approx(sum(source.tally.cached_tokens for source in driver.sources.values()), rel=0.1)
