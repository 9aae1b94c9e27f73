"""What the rooms here say to each other and to callers: errors, the settings of a pool, its numbers. No Ray, no asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, get_args

from qreward.errors import ConfigError, ConnectionFailed, RequestError

Backend = Literal["auto", "ray", "local"]
INSTALL = "pip install 'qreward[ray]'"


class ActorDied(ConnectionFailed, ConnectionError):
    """An actor died and took the score with it: time after time with this one item alone on it, or no actor is left at all."""


class Lost(Exception):
    """A batch has no outcome, because its actor is gone; it says nothing of its items yet.

    Args:
        message: what became of the actor.
        in_making: it never came to be: its class raised, or its environment could not be set up.
        excused: nothing that it was given can be the reason, such as a node that was taken back.
    """

    def __init__(self, message: str, *, in_making: bool = False, excused: bool = False) -> None:
        super().__init__(message)
        self.in_making = in_making
        self.excused = excused


@dataclass(frozen=True)
class Terms:
    """The settings of a pool; :class:`~qreward.integrations.ray.ScorerPool` says what they mean."""

    actors: int = 1
    max_concurrent_batches: int = 1
    backend: Backend = "auto"
    batch_timeout: float | None = None
    start_timeout: float | None = 600.0
    max_restarts: int = 20
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _whole("actors", self.actors, 1)
        _whole("max_concurrent_batches", self.max_concurrent_batches, 1)
        _whole("max_restarts", self.max_restarts, 0)
        _seconds("batch_timeout", self.batch_timeout)
        _seconds("start_timeout", self.start_timeout)
        if self.backend not in get_args(Backend):
            raise ConfigError(f"backend must be one of {', '.join(map(repr, get_args(Backend)))}, not {self.backend!r}")

    @property
    def slots(self) -> int:
        """Batches that may be under way at once."""
        return self.actors * self.max_concurrent_batches


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Where a pool stands.

    Args:
        backend: ``ray`` or ``local``; None before the first batch.
        ready: actors that can be given batches.
        starting: actors that are being made, or wait to be made again.
        lost: actors that were given up.
        waiting: batches that wait for an actor.
        in_flight: batches on actors.
        batches: that came back, whole or with an exception of the scorer.
        deaths: actors that died or could not be made.
        retried: batches that went back because their actor died.
        poisonous: items that failed because an actor died with each of them alone on it.
        timeouts: batches that took too long.
    """

    backend: str | None = None
    ready: int = 0
    starting: int = 0
    lost: int = 0
    waiting: int = 0
    in_flight: int = 0
    batches: int = 0
    deaths: int = 0
    retried: int = 0
    poisonous: int = 0
    timeouts: int = 0


def cancelled() -> RequestError:
    """The error of a batch that somebody else cancelled."""
    return RequestError("the batch was cancelled in its actor; its items may be submitted again")


def length_of(columns: Sequence[Sequence[Any]]) -> int:
    """How many items a batch has.

    Raises:
        ConfigError: there is no column, or they differ in length.
    """
    counts = {len(column) for column in columns}
    if len(counts) != 1:
        raise ConfigError(f"a batch is one list, or several of equal length; got lengths {[len(column) for column in columns]}")
    return counts.pop()


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer >= {least}, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be an integer >= {least}, got {value}")


def _seconds(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, got {value!r}")
    if not (isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be a positive number of seconds or None, got {value}")
