"""Ordinary reward servers in virtual time, whose throughput nobody has told the client: lists are as long as each of them needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean

from gpu_servers import Gpu, best_of_fixed, bound, ours, random_servers
from scale import seeds

ROWS: dict[str, tuple[str, Callable[[], list[Gpu]], float, float]] = {
    "a server that takes lists of 8, and a slow one": (
        "batch", lambda: [Gpu(0.005, 0.0005, forward=8, longest=8, name="a"), Gpu(0.1, 0.02, name="b")], 1.15, 0.0,
    ),
    "four lists of 8 at once, and a slow one": (
        "batch", lambda: [Gpu(0.02, 0.002, slots=4, longest=8, name="a"), Gpu(0.3, 0.02, name="b")], 1.15, 0.0,
    ),
    "two that take 0.3 s for any list": ("batch", lambda: [Gpu(0.3, 0.002, name="a"), Gpu(0.3, 0.002, name="b")], 1.8, 0.0),
    "eight lists at once": ("batch", lambda: [Gpu(0.02, 0.02, slots=8)], 1.2, 0.0),
    "lists of 30 requests a minute": ("batch", lambda: [Gpu(0.02, 0.01, slots=4, rpm=30)], 1.15, 0.0),
    "lists of 600 requests a minute": ("batch", lambda: [Gpu(0.02, 0.01, slots=4, rpm=600)], 1.15, 0.0),
    "steps, one that takes 0.3 s for any list": ("steps", lambda: [Gpu(0.3, 0.0005)], 1.7, 3.0),
    "steps, two that take 0.1 s for any list": ("steps", lambda: [Gpu(0.1, 0.0005, name="a"), Gpu(0.1, 0.0005, name="b")], 2.8, 1.0),
    "steps, a fast one and one that is always too late": (
        "steps", lambda: [Gpu(0.005, 0.0005, slots=2, longest=32, name="a"), Gpu(0.3, 0.0005, errors=0.05, name="b")], 1.2, 0.5,
    ),
    "200 calls at once, two that take 0.1 s for any list": (
        "at once", lambda: [Gpu(0.1, 0.0005, name="a"), Gpu(0.1, 0.0005, name="b")], 2.0, 1.0,
    ),
}  # fmt: skip
"""Name -> the work, the servers, a factor on the bound (of 6 or 10 steps: with one list per server), and seconds for finding out."""


def least(how: str, servers: list[Gpu]) -> float:
    if how == "batch":
        return bound(servers, 4000)
    steps, items = (10, 128) if how == "steps" else (6, 200)
    return steps * max(bound(servers, items), min(each.fixed for each in servers))


def test_lists_become_as_long_as_each_server_needs_whether_the_length_of_the_input_is_known_or_not() -> None:
    wrong = []
    for name, (how, servers, factor, more) in ROWS.items():
        for sized in (True, False):
            seconds, most = ours(servers(), how, sized=sized), factor * least(how, servers()) + more
            if seconds > most:
                wrong.append(f"{name}, sized={sized}: {seconds:.2f} s, at most {most:.2f}")
    assert wrong == []


RETRIES = 2.0
"""Seconds that the retries of all failures, and finding out what is full, may take beside work of a few hundredths of a second."""


def too_slow(how: str, count: int, worst: float) -> tuple[float, list[str]]:
    """Return the mean ratio to the best client with fixed lists on random servers, and the servers where it is worse than ``worst``."""
    ratios, wrong = [], []
    for seed in seeds(count, 3000):
        seconds, best = ours(random_servers(seed), how, sized=seed % 2 == 0), best_of_fixed(partial(random_servers, seed), how)
        ratios.append(seconds / best)
        if seconds > worst * best + RETRIES:
            wrong.append(f"seed {seed}: {seconds:.2f} s, not {best:.2f}, on {random_servers(seed)}")
    return mean(ratios), wrong


def test_a_batch_ends_on_average_before_the_best_of_four_clients_with_fixed_lists() -> None:
    ratio, wrong = too_slow("batch", 24, 1.7)
    assert not wrong
    assert ratio < 1.03


def test_steps_of_128_items_take_on_average_as_long_as_the_best_of_four_clients_with_fixed_lists() -> None:
    ratio, wrong = too_slow("steps", 40, 2.6)
    assert not wrong
    assert ratio < 1.15


def test_single_calls_take_a_fraction_of_the_time_of_calls_that_are_not_merged() -> None:
    for how in ("calls", "at once"):
        ratio, wrong = too_slow(how, 6, 1.3)
        assert not wrong
        assert ratio < 0.6
