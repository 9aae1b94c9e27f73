"""Servers with a limit that the client does not know, whose rejects carry a ``Retry-After``: how near a batch comes to the limit.

``python tests/scheduler/test_scheduler_learned_rates.py`` prints the time of each batch in relation to what the limit allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil

from ordinary_fleets import Fleet, Server, lengths

Door = Callable[[float], float]


def bucket(rate: float, burst: float, *, exact: bool = False) -> Door:
    """A token bucket that says when the next request is served, in whole seconds unless it is exact."""
    level, then = burst, 0.0

    def wait_at(now: float) -> float:
        nonlocal level, then
        level, then = min(burst, level + (now - then) * rate), now
        if level >= 1:
            level -= 1
            return 0.0
        return (1 - level) / rate if exact else float(ceil((1 - level) / rate))

    return wait_at


def sliding(most: int, seconds: float) -> Door:
    """At most so many requests in any such time."""
    taken: list[float] = []

    def wait_at(now: float) -> float:
        while taken and now - taken[0] >= seconds:
            taken.pop(0)
        if len(taken) < most:
            taken.append(now)
            return 0.0
        return float(ceil(seconds - (now - taken[0]))) or 1.0

    return wait_at


def by_the_clock(most: int, seconds: float) -> Door:
    """At most so many requests in each such time since the start."""
    window, count = 0, 0

    def wait_at(now: float) -> float:
        nonlocal window, count
        if int(now / seconds) != window:
            window, count = int(now / seconds), 0
        count += 1
        return 0.0 if count <= most else float(ceil((window + 1) * seconds - now)) or 1.0

    return wait_at


def limited(door: Callable[[], Door]) -> Server:
    return Server(per_token=0.0015, wait_at=door())


def relative(items: int, bound: float, make: Callable[[], Server], count: int) -> tuple[float, int]:
    """Return the time of a batch in relation to the time that the limit allows, mean of ``count`` seeds, and the lost items."""
    fleets = [Fleet([make()], seed) for seed in range(1, count + 1)]
    seconds = [fleet.batch(lengths(number, items, 5.17, 0.5), timeout=900.0) for number, fleet in enumerate(fleets)]
    return sum(seconds) / len(seconds) / (bound + 0.6), sum(fleet.lost for fleet in fleets)


RATES: dict[str, tuple[int, float, Callable[[], Door], float]] = {
    "40 a second, 40 at once, for 15 s": (640, 15.0, lambda: bucket(40, 40), 1.20),
    "40 a second, 4 at once, for 15 s": (604, 15.0, lambda: bucket(40, 4), 2.2),
    "40 a second, 4 at once, for 60 s": (2404, 60.0, lambda: bucket(40, 4), 1.45),
    "40 a second, 4 at once, exact waits, for 60 s": (2404, 60.0, lambda: bucket(40, 4, exact=True), 1.4),
    "2 a second, for 240 s": (482, 240.0, lambda: bucket(2, 2), 1.1),
    "10 a second, 600 at once": (1200, 60.0, lambda: bucket(10, 600), 1.05),
    "40 in any second, for 15 s": (600, 14.0, lambda: sliding(40, 1.0), 1.35),
    "40 in any second, for 60 s": (2400, 59.0, lambda: sliding(40, 1.0), 1.15),
    "100 in any ten seconds": (600, 50.0, lambda: sliding(100, 10.0), 1.3),
    "40 in each second of the clock": (600, 14.0, lambda: by_the_clock(40, 1.0), 1.3),
    "600 in each minute of the clock": (2400, 180.0, lambda: by_the_clock(600, 60.0), 1.12),
}
"""Items, seconds that the limit takes, the limit, and the most that a batch may take in relation to these seconds."""
SLOTS = (
    (2, None, 0.0, 1.06), (4, None, 0.0, 1.06), (4, 1.0, 0.0, 1.06), (16, 1.0, 0.0, 1.06), (64, 1.0, 0.0, 1.2), (8, 5.0, 0.0, 1.12),
    (4, 1.0, 0.1, 2.1), (8, 1.0, 0.1, 1.5), (16, 1.0, 0.1, 1.4),
)  # fmt: skip
"""Slots, hint, share of the requests that are rejected at random, and the most that a batch of a minute may take, in relation to slots that
are never free."""


def with_rates() -> Iterator[tuple[str, float, float, int]]:
    """Yield of each rate limit its name, the time of a batch, the most that it may be, and the lost items."""
    for name, (items, bound, door, most) in RATES.items():
        took, lost = relative(items, bound, partial(limited, door), 10)
        yield name, took, most, lost


def with_slots() -> Iterator[tuple[str, float, float, int]]:
    """Yield the same of each server with slots."""
    for slots, hint, share, most in SLOTS:
        make = partial(Server, per_token=0.0015, cap=slots, hint=hint, rejects=share)
        took, lost = relative(int(slots * 60 / 0.6), 60.0, make, 3)
        yield f"{slots} slots, Retry-After {hint}, {share:.0%} rejected at random", took, most, lost


def test_a_batch_uses_a_rate_limit_that_is_learned_from_rejects() -> None:
    assert [(name, round(took, 3), lost) for name, took, most, lost in with_rates() if took > most or lost] == []


def test_a_batch_uses_the_slots_of_a_server_that_answers_what_it_rejects_with_retry_after() -> None:
    assert [(name, round(took, 3), lost) for name, took, most, lost in with_slots() if took > most or lost] == []


if __name__ == "__main__":
    for name, took, _, lost in (*with_rates(), *with_slots()):
        print(f"{took:.2f}  {name}" + (f", {lost} lost" if lost else ""))
