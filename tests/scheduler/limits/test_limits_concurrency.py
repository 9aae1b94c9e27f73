"""Windows: the adaptive one finds what a server takes, the fixed one holds what the operator said, less where the source holds less."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import product
from math import inf
from random import Random

import pytest
from scheduler_seeds import seeds

from qreward.errors import RateLimited
from qreward.scheduler.limits.concurrency import PATIENCE, TUNING, AdaptiveLimit, FixedLimit
from qreward.scheduler.limits.rate import LearnedRate
from qreward.scheduler.load_balancing import ExpectedFinish
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.scheduler.queue import Queue
from qreward.scheduler.scheduler import FINISH, MORE, SEND, Scheduler
from qreward.scheduler.state import Attempt, BatchFeed, Pool, Source, Task
from qreward.settings.policies import Retry

SECONDS = 300.0

Serve = Callable[[float, int, float], tuple[float, float | bool | None]]
"""(now, in flight before it, tokens) -> (seconds, True for an answer, a hint or None for a reject)."""


class Loop:
    """One source with an endless backlog, in virtual time."""

    def __init__(self, serve: Serve, seed: int, *, most: int | None = None, sigma: float = 0.8) -> None:
        self.rng, self.serve, self.sigma = Random(seed), serve, sigma
        self.window = AdaptiveLimit(self.rng, most)
        self.source = Source("s", self.rng, window=self.window, learned=LearnedRate())
        self.scheduler = Scheduler(Retry(), self.rng)
        self.pool = Pool("p", [], ExpectedFinish(), Queue())
        self.now, self.answers, self.rejects, self.serving, self.peak = 0.0, 0, 0, 0, 0
        self.done: list[float] = []
        self.sent: list[float] = []
        self._events: list[tuple[float, int, Attempt, Answer | Failure]] = []
        self._number = 0

    def run(self, seconds: float = SECONDS) -> Loop:
        self.scheduler.join(self.now, self.source, self.pool)
        self.scheduler.open(self.now, BatchFeed(self.pool, 5, None, self.now))
        while True:
            self._drain()
            wake, first = self.scheduler.next_wake(), self._events[0][0] if self._events else inf
            self.now = min(first, wake if wake is not None else inf)
            if self.now >= seconds:
                return self
            if first <= self.now:
                _, _, attempt, outcome = heapq.heappop(self._events)
                self.ended()
                self.serving -= 1
                if isinstance(outcome, Answer):
                    self.answers += 1
                    self.done.append(self.now)
                self.scheduler.event(self.now, attempt, outcome)
            else:
                self.scheduler.tick(self.now)

    def ended(self) -> None:
        """The first event was taken."""

    def _drain(self) -> None:
        while self.scheduler.out:
            out, self.scheduler.out = self.scheduler.out, []
            for command in out:
                if command[0] == SEND:
                    self._send(command[1])
                elif command[0] == MORE:
                    feed = command[1]
                    feed.buffer.extend(Task(None, self.pool, 5, None, None, 0) for _ in range(32))
                    self.scheduler.refill(self.now, feed)
                else:
                    assert command[0] == FINISH

    def _send(self, attempt: Attempt) -> None:
        tokens = 200 * self.rng.lognormvariate(-(self.sigma**2) / 2, self.sigma)
        seconds, said = self.serve(self.now, self.serving, tokens)
        self.serving += 1
        self.peak = max(self.peak, self.source.inflight)
        self.sent.append(self.now)
        outcome: Answer | Failure = Answer(None, 100, int(tokens) + 1)
        if said is not True:
            self.rejects += 1
            outcome = Failure(FailureKind.OVERLOADED, RateLimited("429"), retry_after=said or None)
        self._number += 1
        self._begin(seconds, attempt, outcome)

    def _begin(self, seconds: float, attempt: Attempt, outcome: Answer | Failure) -> None:
        heapq.heappush(self._events, (self.now + seconds, self._number, attempt, outcome))

    @property
    def share_rejected(self) -> float:
        return self.rejects / len(self.sent)

    def rate(self, since: float, until: float = SECONDS) -> float:
        return sum(since <= at < until for at in self.done) / (until - since)


def capped(cap: Callable[[float], int]) -> Serve:
    """Ten milliseconds a token; beyond its cap a reject after 30 ms. What it is rejecting does not count."""
    return lambda now, serving, tokens: (0.01 * tokens, True) if serving < cap(now) else (0.03, None)


def test_it_finds_an_unknown_cap() -> None:
    found = {}
    for cap, seed in product((2, 6, 64, 150), seeds(1, 1)):
        loop = Loop(capped(lambda now, cap=cap: cap), seed).run()
        if loop.rate(0) < 0.85 * cap / 2.0 or loop.rejects > TUNING.start + 0.05 * len(loop.sent):
            found[cap, seed] = loop.rate(0), loop.rejects
    assert not found


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_it_follows_a_cap_that_falls_and_rises_again(seed: int) -> None:
    loop = Loop(capped(lambda now: 16 if 100 <= now < 200 else 64), seed).run()
    assert loop.rate(110, 200) >= 0.8 * 16 / 2.0
    assert loop.rate(240, 300) >= 0.8 * 64 / 2.0
    assert loop.share_rejected <= 0.05


class Shared(Loop):
    """A server that takes everything: forty run at full speed, more share that (processor sharing)."""

    FULL = 40

    def __init__(self, seed: int) -> None:
        super().__init__(lambda now, serving, tokens: (0.01 * tokens, True), seed)
        self._work, self._then = 0.0, 0.0  # work that each request under way has got since the start
        self._ends: list[tuple[float, int, Attempt, Answer | Failure]] = []

    def _advance(self) -> None:
        self._work += (self.now - self._then) * min(1.0, self.FULL / max(1, len(self._ends)))
        self._then = self.now

    def _begin(self, seconds: float, attempt: Attempt, outcome: Answer | Failure) -> None:
        self._advance()
        heapq.heappush(self._ends, (self._work + seconds, self._number, attempt, outcome))
        self._next_end()

    def _next_end(self) -> None:
        seconds = (self._ends[0][0] - self._work) / min(1.0, self.FULL / len(self._ends)) if self._ends else 0.0
        self._events = [(self.now + max(0.0, seconds), *self._ends[0][1:])] if self._ends else []

    def ended(self) -> None:
        self._advance()
        heapq.heappop(self._ends)
        self._next_end()


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_a_server_that_never_rejects_is_not_flooded(seed: int) -> None:
    """Beyond forty a larger window only adds waiting: the start doubles past it once, to 128, and steps back."""
    loop = Shared(seed).run()
    assert loop.rate(60) >= 0.9 * Shared.FULL / 2.0
    assert loop.peak <= 128
    assert loop.window.limit <= 2 * Shared.FULL


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_stray_rejects_of_a_server_without_a_cap_do_not_hold_it_down(seed: int) -> None:
    stray = Random(seed)

    def serve(now: float, serving: int, tokens: float) -> tuple[float, float | bool | None]:
        if stray.random() < 0.001:
            return 0.01, None
        return 0.01 * tokens * max(1.0, (serving + 1) / 64), True

    assert Loop(serve, seed).run().rate(60) >= 0.8 * 64 / 2.0


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_a_rate_limit_is_learned_from_its_hints(seed: int) -> None:
    """600 a minute by token bucket with a burst of 60."""
    level, then = 60.0, 0.0

    def serve(now: float, serving: int, tokens: float) -> tuple[float, float | bool | None]:
        nonlocal level, then
        level, then = min(60.0, level + 10 * (now - then)), now
        if level < 1:
            return 0.03, (1 - level) / 10
        level -= 1
        return 0.01 * tokens, True

    loop = Loop(serve, seed).run()
    assert loop.rate(60) >= 0.9 * 10
    assert loop.share_rejected <= 0.03


def test_an_outage_is_not_taken_for_a_small_cap() -> None:
    loop = Loop(lambda now, serving, tokens: (0.02, None) if 60 <= now < 120 or serving >= 64 else (0.01 * tokens, True), 3).run()
    assert loop.rate(150) >= 0.8 * 64 / 2.0
    assert sum(62 <= at < 120 for at in loop.sent) <= 60, "while it is away it is asked now and then"


def test_a_small_limit_of_an_operator_is_used_at_once_and_kept_where_it_pays_a_large_one_is_no_target() -> None:
    assert AdaptiveLimit(Random(0), 40).limit == 40
    assert AdaptiveLimit(Random(0), 1000).limit == TUNING.start
    loop = Loop(lambda now, serving, tokens: (0.01 * tokens, True), 5, most=40).run(120.0)
    assert loop.rate(10, 120) >= 0.9 * 40 / 2.0
    assert loop.peak <= 40


def test_without_enough_work_it_learns_nothing() -> None:
    """A window that is not filled says nothing of what more would bring."""
    window = AdaptiveLimit(Random(0))
    for number in range(500):
        window.sent(float(number), 1)
        window.ok(number + 1.0, float(number), 100, 0)
    assert window.limit == TUNING.start


def answers(window: FixedLimit, count: int) -> None:
    for _ in range(count):
        window.ok(1.0, 0.0, None, 1)


def test_a_source_that_turns_away_what_is_too_much_is_full_not_gone() -> None:
    window = FixedLimit(64)
    assert [window.rejected(0.1, 0.0, None, others) for others in (63, 50, 40)] == [False, False, False]
    assert window.limit == 40, "what it still holds"


def test_the_limit_comes_back_by_doubling_and_never_beyond_what_was_set() -> None:
    window = FixedLimit(100)
    window.rejected(0.1, 0.0, None, 30)
    seen = []
    for _ in range(3):
        answers(window, PATIENCE)
        seen.append(window.limit)
    assert seen == [60, 100, 100]


def test_where_little_was_held_more_is_offered_sooner() -> None:
    window = FixedLimit(64)
    window.rejected(0.1, 0.0, None, 2)
    answers(window, 7)
    assert window.limit == 2
    answers(window, 1)
    assert window.limit == 4


def test_a_source_that_turns_everything_away_is_gone_not_full() -> None:
    window = FixedLimit(8)
    assert [window.rejected(0.1, 0.0, None, others) for others in (2, 1, 0)] == [False, False, True]
    assert window.limit == 8, "what it holds is not known"
    assert not window.rejected(0.2, 0.05, None, 3)
    assert window.limit == 8, "sent before it was left alone"


def test_a_lone_reject_amid_good_answers_is_noise() -> None:
    window = FixedLimit(8)
    answers(window, 4)
    assert not window.rejected(1.0, 0.5, None, 3)
    assert window.limit == 8
    assert not window.rejected(1.1, 0.6, None, 3)
    assert window.limit == 3, "a second one is not alone"


def test_a_hint_or_nothing_left_in_flight_means_that_the_source_wants_to_be_left_alone() -> None:
    for hint, others in ((None, 0), (2.0, 5), (2.0, 0)):
        window = FixedLimit(8)
        answers(window, 8)
        assert window.rejected(1.0, 0.5, hint, others), (hint, others)
        assert window.limit == 8
