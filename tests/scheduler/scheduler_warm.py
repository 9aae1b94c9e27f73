"""Fleets that have shown what they are: brought there by answers, not by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from scheduler_driver import Driver

from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import Attempt, Task
from qreward.settings.policies import Hedge

HANGS_ONLY = Hedge(after=1000.0, tail=False)
"""No single call waits that long, so whatever is copied was taken for hung."""
PACE, TOKENS = 0.05, 20
"""Seconds a token and tokens of an answer where a test does not care: a second."""


def live(task: Task) -> Attempt:
    """What is under way of a task; if there are two attempts, the older."""
    assert task.attempt is not None
    return task.attempt


def copy(task: Task) -> Attempt:
    """The younger attempt of a task that has two."""
    assert task.copy is not None
    return task.copy


def awaited(driver: Driver, task: Task, step: float = 0.1) -> Attempt:
    """What is under way of a task, once it is: time passes in such steps until then."""
    for _ in range(10_000):
        if task.attempt is not None:
            return task.attempt
        driver.wait(step)
    raise AssertionError("it is never sent")


def warm(driver: Driver, name: str, pace: float = PACE, lengths: Sequence[int] = (TOKENS,), answers: int = 128) -> None:
    """Let a source give so many answers, of these lengths in turn, at so many seconds a token, while the others rest."""
    others = [other for other in driver.sources if other != name]
    for other in others:
        driver.mark(other, down=True)
    thorough, driver.watch.thorough = driver.watch.thorough, False
    tokens = cycle(lengths)
    length: dict[Attempt, int] = {}
    driver.feed(answers)
    while held := driver.at(name):
        for attempt in held:
            if attempt not in length:
                length[attempt] = next(tokens)
        first = min(held, key=lambda attempt: attempt.sent_at + pace * length[attempt])
        driver.until(first.sent_at + pace * length[first])
        driver.report(first, Answer("yes", 10, length[first]))
    driver.watch.thorough = thorough
    for other in others:
        driver.mark(other, down=False)
    assert driver[name].tally.ok >= answers


def warm_all(driver: Driver, lengths: Sequence[int] = (TOKENS,), answers: int = 128, **paces: float) -> Driver:
    """The same for the whole fleet; name=pace where it is another one."""
    for name in driver.sources:
        warm(driver, name, paces.get(name, PACE), lengths, answers)
    return driver
