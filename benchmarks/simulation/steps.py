"""Piecewise constant functions of time, such as a cap, a speed, or a number of replicas."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Steps:
    """A function with the value ``values[i]`` from ``times[i]`` (seconds) on. ``times`` ascend from 0.

    Example:
        >>> Steps((0.0, 10.0), (64.0, 16.0)).integral(5.0, 12.0)
        352.0
    """

    times: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, when: float) -> float:
        return self.values[bisect_right(self.times, when) - 1]

    def integral(self, begin: float, end: float) -> float:
        """Return the integral over [begin, end]."""
        first = bisect_right(self.times, begin) - 1
        total = 0.0
        for place in range(first, len(self.times)):
            since = max(begin, self.times[place])
            until = self.times[place + 1] if place + 1 < len(self.times) else end
            if since >= end:
                break
            total += self.values[place] * (min(until, end) - since)
        return total

    def changes(self) -> tuple[float, ...]:
        """Return the times at which the value changes, without 0."""
        return self.times[1:]


ONE = Steps((0.0,), (1.0,))


def hold(value: float) -> Steps:
    """Return a constant."""
    return Steps((0.0,), (float(value),))


def steps(first: float, *then: tuple[float, float]) -> Steps:
    """Return a function with the value ``first`` from 0 on, then each value from its time on, given as (time, value)."""
    return Steps((0.0, *(when for when, _ in then)), (float(first), *(float(value) for _, value in then)))


def between(begin: float, end: float, inside: float, outside: float = 1.0) -> Steps:
    """Return a function with the value ``inside`` from ``begin`` to ``end``, and ``outside`` before and after."""
    if begin <= 0:
        return steps(inside, (end, outside))
    return steps(outside, (begin, inside), (end, outside))


def square(first: float, second: float, every: float, until: float) -> Steps:
    """Return a function with two values in turn, each for ``every`` seconds."""
    times = tuple(every * place for place in range(int(until / every) + 1))
    return Steps(times, tuple(float(second if place % 2 else first) for place in range(len(times))))


def over(times: Iterable[float], value: Callable[[float], float]) -> Steps:
    """Return a function of time that can change only at ``times``."""
    when = tuple(sorted({0.0, *times}))
    return Steps(when, tuple(value(each) for each in when))


@dataclass(frozen=True, slots=True)
class Walk:
    """A random walk: every ``every`` seconds a uniform step of at most ``stride``, reflected at ``low`` and ``high``."""

    low: int
    high: int
    first: int
    stride: int
    every: float
    until: float

    def draw(self, rng: Random) -> Steps:
        values, value = [float(self.first)], self.first
        times = [self.every * place for place in range(int(self.until / self.every) + 1)]
        for _ in times[1:]:
            value += rng.randint(-self.stride, self.stride)
            value = 2 * self.low - value if value < self.low else 2 * self.high - value if value > self.high else value
            values.append(float(value))
        return Steps(tuple(times), tuple(values))
