"""Concurrency limits: the adaptive one finds what a server takes, the fixed one follows a server that takes less than is configured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf
from random import Random
from statistics import fmean
from types import ModuleType
from typing import Any

from scale import seeds

from qreward.scheduler.limits.concurrency import PATIENCE, AdaptiveLimit, ConfiguredLimit, Reject


def test_it_finds_the_capacity_of_servers_of_any_kind(module: Callable[[str], ModuleType]) -> None:
    """Server -> least share of its capacity that is used in 300 s, most rejects, longest recovery in seconds, highest limit in the end."""
    specs, laws, steps, doors = (module(f"simulation.{name}") for name in ("specs", "laws", "steps", "doors"))
    spec, hold = specs.Spec, steps.hold
    servers: dict[str, tuple[Any, float, float, float, float]] = {
        "a cap of 2": (spec(cap=hold(2)), 0.85, 50, 0, 2),
        "a cap of 6": (spec(cap=hold(6)), 0.85, 75, 0, 7),
        "a cap of 64": (spec(cap=hold(64)), 0.85, 250, 0, 70),
        "a cap that falls and rises": (spec(cap=steps.steps(64, (100.0, 16), (200.0, 64))), 0.85, 300, 15, 70),
        "an outage is no small cap": (spec(cap=hold(64), away=(60.0, 120.0)), 0.9, 350, 10, 70),
        "one that never rejects is not flooded": (spec(law=laws.Scoring(0.01, 40)), 0.9, 0, 0, 80),
        "stray rejects": (spec(law=laws.Scoring(0.01, 64), stray=0.001), 0.9, 30, 0, 128),
        "a rate learned from its hints": (spec(rates=(doors.Rate(600, burst=60, hint="exact"),)), 0.9, 250, 0, 2048),
    }
    missed = {}
    for name, (server, least, rejects, recovery, limit) in servers.items():
        for seed in seeds(1, 1):
            model = module("simulation.models").Model(name, name, server)
            found = module("simulation.closed_loop").run_model(model, "ours", seed, seconds=300.0)
            seen = found["fraction"], found["rejects"] * found["sent"], found["recovery"] or 0.0, found["limits"][-1]
            if seen[0] < least or seen[1] > rejects or seen[2] > recovery or seen[3] > limit or max(found["limits"]) > 128:
                missed[name, seed] = seen
    assert not missed


class Numbered:
    """Numbers the requests in the order in which they end, as if they had been sent in that order."""

    order = 0

    def ok(self, *args: Any) -> None:
        self.order += 1
        super().ok(*args)  # type: ignore[misc]

    def rejected(self, now: float, sent_at: float, hint: float | None, others: int) -> Reject:
        self.order += 1
        reject: Reject = super().rejected(now, sent_at, self.order, hint, others)  # type: ignore[misc]
        return reject


class Adaptive(Numbered, AdaptiveLimit):  # type: ignore[misc]
    pass


class Fixed(Numbered, ConfiguredLimit):  # type: ignore[misc]
    pass


def path(
    limit: Adaptive, seconds: Callable[[int], float], rounds: int, *, cap: int = 2048, load: int = 2048, now: float = 0.0
) -> list[int]:
    """Return the limit before each round, in which as many of ``load`` requests are sent as it allows.

    Those beyond ``cap`` are rejected after 0.1 s; the others are answered after ``seconds(sent)``.
    """
    seen = []
    for _ in range(rounds):
        seen.append(limit.limit)
        sent = min(limit.limit, load)
        served = min(sent, cap)
        for number in range(sent):
            limit.sent(now, number + 1)
        for others in range(sent - 1, served - 1, -1):
            limit.rejected(now + 0.1, now, None, others)
        began, now = now, now + seconds(sent)
        for others in range(served - 1, -1, -1):
            limit.ok(now, began, 10, others)
    return seen


def elastic(value: float) -> Callable[[int], float]:
    """Return the seconds of an answer at a server whose throughput has this elasticity."""
    return lambda sent: sent ** (1.0 - value)


def test_the_path_of_the_limit_follows_from_elasticity_and_rejects() -> None:
    """Configured limit, seconds of an answer, further arguments of ``path`` -> the limit in each round."""
    again = [40, 40, 40, 40, 40, 40, 40, 34]
    table: list[tuple[int | None, Callable[[int], float], dict[str, int], list[int]]] = [
        (None, elastic(1.0), {}, [32, 64, 128, 256, 512, 1024, 2048, 1741, 2048, 2048]),
        (None, elastic(0.36), {}, [32, 64, 128, 256, 512, 1024, 2048, 1741]),
        (None, elastic(0.34), {}, [32, 64, 74, 54, 88, 65, 106, 78, 127, 94]),
        (None, elastic(0.22), {}, [32, 64, 74, 54, 88, 65, 106, 78, 127, 94]),
        (None, elastic(0.18), {}, [32, 64, 74, 54, 74, 54, 74, 54]),
        (None, elastic(0.06), {}, [32, 64, 74, 54, 74, 54, 74, 54]),
        (None, elastic(0.04), {}, [32, 64, 37, 27, 31, 23, 27, 20]),
        (100, elastic(1.0), {}, [32, 64, 100, 100, 100, 100, 100, 85, 100]),
        (40, elastic(1.0), {}, [*again, *again, 40]),
        (
            None,
            lambda sent: max(1.0, sent / 40),
            {},
            [32, 64, 74, 54, 88, 65, 88, 65, 88, 65, 88, 65, 75, 55, 64, 47, 54, 40, 46, 34, 46, 34, 55],
        ),
        (64, elastic(1.0), {}, [64, 64]),
        (65, elastic(1.0), {}, [32, 64, 65]),
        (20, elastic(1.0), {}, [20, 20]),
        (100, elastic(1.0), {"load": 51}, [32, 64, 64, 64, 64]),
        (100, elastic(1.0), {"load": 52}, [32, 64, 100, 100, 100]),
        (None, elastic(1.0), {"cap": 6}, [32, *4 * [6], 7, *8 * [6], 7, 6]),  # twice as many answers before the second try
        (None, elastic(1.0), {"cap": 50}, [32, 64, 50, 50, 51, 51, 51]),  # one stray reject in each round
        (None, lambda _sent: 30.0, {"cap": 6}, [32, 6, 6, 7, 6, 6, 7, 6]),
        (None, lambda _sent: 30.0, {"cap": 16}, [32, 16, 16, 17, 16]),  # a round after a reject does not raise it as well
        (None, lambda sent: max(1.0, sent / 20), {"cap": 30}, [32, 64, 30, 30, 30, 30, 31, 30, 30, 30, 30, 31, 30]),
    ]
    wrong = {}
    for number, (most, seconds, options, expected) in enumerate(table):
        seen = path(Adaptive(Random(0), most), seconds, len(expected), **options)
        if seen != expected:
            wrong[number] = seen
    assert not wrong


def test_the_limit_doubles_at_the_start_only_if_throughput_grew_since_the_limit_was_last_used() -> None:
    for seconds, expected in ((1.0, 128), (2.0, 27)):
        limit = Adaptive(Random(0))
        assert path(limit, lambda _sent: 1.0, 1) == [32]
        assert path(limit, lambda _sent: 1.0, 3, load=32, now=100.0) == [64, 64, 64], "half of the limit is no use of it"
        path(limit, dict.fromkeys([64], seconds).__getitem__, 1, now=200.0)
        assert limit.limit == expected, seconds


def test_the_first_answers_of_batches_do_not_raise_the_limit_of_a_server_that_queues_without_end() -> None:
    """The server serves ten requests at a time, in the order of their arrival, each for a second."""
    limit, now, seen = Adaptive(Random(0)), 0.0, []
    for _ in range(30):
        sent = min(limit.limit, 1000)
        for number in range(sent):
            limit.sent(now, number + 1)
        for others in range(sent - 1, -1, -1):
            limit.ok(now + 1.0 + (sent - 1 - others) // 10, now, 10, others)
        now += 1000.0
        seen.append(limit.limit)
    assert max(seen) <= 256, seen


def test_each_change_of_the_limit_is_counted_with_its_reason() -> None:
    limit = Adaptive(Random(0), 100)
    assert limit.reason == "start"
    path(limit, elastic(1.0), 16)
    assert limit.changes == {("up", "start"): 2, ("down", "start"): 1, ("up", "elasticity"): 2, ("down", "elasticity"): 1}
    assert limit.reason == "elasticity 1.00"
    limit = Adaptive(Random(0))
    path(limit, elastic(1.0), 9, cap=50)
    assert limit.changes == {("up", "start"): 1, ("down", "rejected"): 10, ("up", "trial"): 1}
    assert limit.reason == "trying 1 more after clean answers"


ROW = 4  # rejects in a row that are not stray


def answers(window: Fixed, count: int) -> None:
    for _ in range(count):
        window.ok(1.0, 0.0, None, 1)


def test_a_source_that_turns_away_what_is_too_much_is_full_and_its_limit_comes_back_by_doubling() -> None:
    window = Fixed(100)
    rejects = [window.rejected(0.1, 0.0, None, others) for others in (63, 50, 45, 40, 35, 30)]
    assert rejects == [*[Reject.STRAY] * (ROW - 1), *[Reject.FULL] * 3]
    seen = [window.limit]  # what it still holds
    for count in (PATIENCE - 1, 1, PATIENCE, PATIENCE):
        answers(window, count)
        seen.append(window.limit)
    assert seen == [30, 30, 60, 100, 100]
    assert window.changes == {("down", "rejected"): 3, ("up", "answers"): 2}
    for _ in range(ROW):
        window.rejected(0.1, 0.0, None, 2)
    answers(window, 7)
    assert window.limit == 2
    answers(window, 1)
    assert window.limit == 4, "where little is held, more is offered sooner"
    assert Fixed().limit == 64, "without a configured limit"


def test_a_source_that_turns_everything_away_or_asks_for_a_wait_is_left_alone_and_what_it_holds_is_not_known() -> None:
    window = Fixed(8)
    assert [window.rejected(0.1, 0.0, None, others) for others in (4, 3, 2, 1, 0)][ROW - 1 :] == [Reject.FULL, Reject.AWAY]
    assert window.limit == 8
    assert window.rejected(0.2, 0.05, None, 3) is Reject.FULL
    assert window.limit == 8, "sent before it was left alone"
    assert window.rejected(0.3, 0.1, None, 3) is Reject.FULL
    assert window.limit == 3
    for hint, others, row in ((None, 0, 1), (2.0, 0, 1), (2.0, 5, ROW)):
        window = Fixed(8)
        answers(window, 8)
        rejects = [window.rejected(1.0, 0.5, hint, others) for _ in range(row)]
        assert rejects == [*[Reject.STRAY] * (row - 1), Reject.AWAY], (hint, others)
        assert window.limit == 8


def test_a_few_rejects_at_random_are_stray_and_several_in_a_row_are_not() -> None:
    wrong = []
    kinds: tuple[Callable[[], Fixed | Adaptive], ...] = (lambda: Fixed(64), lambda: Adaptive(Random(0), 64))
    for limit, hint in product(kinds, (None, 5.0)):
        for seed in seeds(3, 20):
            window, rng = limit(), Random(seed)
            for number in range(1000):
                now = number / 100
                window.sent(now, 64)
                if rng.random() < 0.02:
                    window.rejected(now, now - 0.1, hint, 63)
                else:
                    window.ok(now, now - 0.3, 10, 63)
            stayed = window.limit
            found = [window.rejected(10.0, 9.9, hint, 40) for _ in range(ROW)]
            if stayed < 54 or found[:2] != [Reject.STRAY] * 2 or found[-1] is Reject.STRAY:
                wrong.append((window, hint, seed, stayed, found))
    assert not wrong


def test_what_a_source_always_rejects_at_random_becomes_usual() -> None:
    """Share of rejects -> least average of the limit after 5,000 requests."""
    wrong = {}
    for share, least in ((0.1, 56), (0.2, 20)):
        for seed in seeds(3, 20):
            window, rng, limits = Adaptive(Random(seed), 64), Random(seed), []
            for number in range(20_000):
                now = number / 200
                others = window.limit - 1
                if rng.random() < share:
                    window.rejected(now, now - 0.002, None, others)
                else:
                    window.ok(now, now - 0.3, 10, others)
                limits.append(window.limit)
            if fmean(limits[5000:]) < least:
                wrong[share, seed] = fmean(limits[5000:])
    assert not wrong


def capped(limit: int = 20) -> tuple[Adaptive, float]:
    """A window whose source has rejected what was more than ``limit``, and the time."""
    window = Adaptive(Random(0), 40)
    rejects = [window.rejected(1.0, 0.9, None, limit) for _ in range(ROW)]
    assert rejects == [*[Reject.STRAY] * (ROW - 1), Reject.AWAY]
    assert window.limit == limit
    return window, 1.0


def tried(window: Adaptive, now: float) -> float:
    """Answer to a full window until it tries more, for 300 s at most. Returns when that was; inf if it did not."""
    limit, until = window.limit, now + 300.0
    while window.limit <= limit and now < until:
        now += 0.1
        window.ok(now, now - 0.5, 10, window.limit - 1)
    return now if window.limit > limit else inf


def test_after_a_reject_it_tries_one_more_and_doubles_the_step_while_that_succeeds() -> None:
    window, now = capped()
    steps = []
    for _ in range(4):
        before, began = window.limit, now
        now = tried(window, now)
        steps.append((window.limit - before, round(now - began)))
    assert steps[0] == (1, 8), "after four answers for each of the 20 slots"
    assert [step for step, _ in steps[1:3]] == [2, 4]
    assert all(1 <= seconds <= 2 for _, seconds in steps[1:]), "not before the last one has settled"


def fallen(served: int) -> Adaptive:
    """A limit of 40 that was used for a whole round, and fell to what was still served."""
    window = Adaptive(Random(0), 40)
    window.sent(0.0, 40)
    for _ in range(20):
        window.ok(2.0, 0.0, 10, 39)
    for _ in range(ROW):
        window.rejected(2.1, 2.0, None, served)
    return window


def test_a_round_before_a_reject_is_not_compared_with_one_after_it() -> None:
    """Answers are four times quicker after the reject: compared, that would say that more requests in flight bring nothing."""
    window = fallen(20)
    assert 19 <= window.limit <= 20
    assert tried(window, 2.1) < 20.0


def test_a_try_that_fails_is_taken_back_and_pauses_nothing_whatever_wait_is_asked_for() -> None:
    for hint in (None, 5.0):
        window, now = capped()
        now = tried(window, now)
        assert window.rejected(now + 0.1, now, hint, 20) is Reject.FULL, "the source is not away: the try was too much"
        assert window.limit in (19, 20), hint
        assert 9.0 <= tried(window, now + 0.1) - (now + 0.1) <= 11.0


def test_a_reject_long_after_a_try_is_news_about_the_capacity() -> None:
    window, now = capped()
    now = tried(window, now)
    rejects = [window.rejected(now + 2.0, now + 1.5, None, 12) for _ in range(ROW)]
    assert rejects == [*[Reject.STRAY] * (ROW - 1), Reject.AWAY]
    assert window.limit in (11, 12)


def test_when_a_cooldown_ends_the_limit_returns_to_the_one_that_was_used_unless_that_is_rejected_too() -> None:
    """When a request was sent after the return at 3 s, and when it was rejected -> the limit after the next cooldown."""
    wrong = {}
    for sent_at, rejected_at, limit in ((3.2, 3.3, 10), (3.2, 9.0, 10), (4.5, 9.0, 40)):
        window = fallen(10)
        assert window.limit == 10
        window.cooled(3.0, 5)
        assert window.limit == 40
        for _ in range(ROW):
            window.rejected(rejected_at, sent_at, None, 10)
        assert window.limit == 10
        window.cooled(10.0, 5)
        if window.limit != limit:
            wrong[sent_at, rejected_at] = window.limit
    assert not wrong


def test_the_limit_does_not_return_while_requests_wait_inside_the_server() -> None:
    window = fallen(10)
    assert window.limit == 10
    window.crowd(4.0)
    window.cooled(3.0, 5)
    assert window.limit == 10


def test_a_reject_while_nothing_is_served_shows_that_the_source_is_away_and_it_starts_again() -> None:
    window, now = capped(4)
    assert window.rejected(now + 1.0, now, None, 0) is Reject.AWAY
    assert window.limit == 40
    window.ok(now + 2.0, now + 1.0, 10, 0)
    assert window.rejected(now + 3.0, now + 2.0, None, 0) is Reject.AWAY
    assert window.limit == 40


def test_while_requests_are_known_to_wait_inside_the_server_nothing_more_is_tried() -> None:
    window, now = capped()
    window.crowd(now + 100.0)
    assert tried(window, now) >= now + 100.0


def test_a_source_that_is_back_starts_again() -> None:
    window, now = capped(4)
    window.returned(now, 0)
    assert window.limit == 40
