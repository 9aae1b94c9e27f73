"""What comes back: one ``Result`` an item, one ``BatchResult`` a batch. A failure is a value here, never ``None`` or 0.

This room knows nothing of HTTP or of the scheduler; answers reach it through the small ``Answered`` protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, overload

import msgspec

from qreward.errors import QRewardError, RequestError

T = TypeVar("T")

_RAISE: Any = object()
"""Stands for no default: failed items raise."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens that the server says it used; None where it said nothing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """One try at one endpoint.

    Attributes:
        endpoint: its name.
        outcome: ``ok``, or the kind of failure (``overloaded``, ``transient``, ``timeout``, ``cancelled``, ...).
        latency: seconds from sending to the outcome.
        status_code: HTTP status, if there was an answer.
        detail: what the failure said, without secrets.
        hedge: a second attempt, made while another was under way.
    """

    endpoint: str
    outcome: str
    latency: float
    status_code: int | None = None
    detail: str = ""
    hedge: bool = False


def has_failed(attempts: Iterable[AttemptRecord]) -> bool:
    """Whether one of them failed. A 429 or another sign of overload is no failure, and neither is an attempt that was cancelled."""
    return any(attempt.outcome not in ("ok", "overloaded", "cancelled") for attempt in attempts)


def retries(attempts: Sequence[AttemptRecord]) -> Iterator[AttemptRecord]:
    """The attempts that were made because an earlier one had failed."""
    failed = False
    for attempt in attempts:
        if failed and not attempt.hedge:
            yield attempt
        failed = failed or has_failed((attempt,))


class RouteLoad(NamedTuple):
    """The load of a route's endpoints at one moment.

    Attributes:
        in_flight: requests under way.
        window: requests that the endpoints in service may have under way.
        down: endpoints that are out of service.
        endpoints: all of them.
    """

    in_flight: int = 0
    window: int = 0
    down: int = 0
    endpoints: int = 0


class Answered(Protocol):
    """What the wire made of an answer: ``build`` gives the user's object, ``text`` the words, both on demand."""

    usage: Usage | None  # and, where it was written by a model, ``finish_reason: str | None``

    def build(self) -> Any: ...
    def text(self) -> str: ...


class Result(Generic[T]):
    """The outcome of one item: an answer or an error.

    A chat completion is an answer if it is whole, or was cut off at its token limit (``finish_reason`` is then ``"length"``). One that the
    server aborted or filtered, or that ended for a reason that is not known, is an :class:`~qreward.errors.InvalidResponse`.

    Attributes:
        index: place in the batch, from 0.
        error: what went wrong, or None.
        endpoint: name of the endpoint that answered, or that failed last.
        latency: seconds of the attempt that answered (0.0 if none did).
        queued: seconds in the queue before the first attempt.
        attempts: every try, oldest first.
    """

    __slots__ = ("_answer", "_extra", "_trail", "_value", "endpoint", "error", "index", "latency", "queued")

    def __init__(
        self,
        index: int,
        answer: Answered | None,
        error: QRewardError | None,
        endpoint: str | None,
        latency: float,
        queued: float,
        trail: tuple[AttemptRecord, ...] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.index = index
        self._extra = extra
        self.error = error
        self.endpoint = endpoint
        self.latency = latency
        self.queued = queued
        self._answer = answer
        self._trail = trail
        self._value: T | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def extra(self) -> Mapping[str, Any]:
        """The item's other fields, such as an ``id``: what a mapping given to ``batch_score`` or ``batch_compare`` of a judge, or of a
        ``RewardModelScorer``, holds besides what is judged. Empty for other items, and for those that were never read."""
        return {} if self._extra is None else self._extra

    @property
    def value(self) -> T:
        """The user's object, such as an openai ``ChatCompletion``, made when first asked for. Raises the item's error."""
        if self._value is None:
            self._value = self._answered().build()
        assert self._value is not None
        return self._value

    @property
    def text(self) -> str:
        """The words of the answer, ``""`` if it has none (a tool call). Raises the item's error."""
        return self._answered().text()

    @property
    def finish_reason(self) -> str | None:
        """How the answer of a model ended: ``"stop"``, ``"tool_calls"``, ``"length"`` if it was cut off at its token limit.

        None if the server did not say, for a failure, and for what no model wrote.
        """
        return getattr(self._answer, "finish_reason", None)

    @property
    def usage(self) -> Usage | None:
        """Tokens used by the answer, or by the answers of a judge that failed; None if there were none, or no server told."""
        paid = self._answer if self._answer is not None else self.error
        return paid.usage if paid is not None else None

    @property
    def usage_is_estimated(self) -> bool:
        """True if the item was sent with others, and the server told only what they used together: then ``usage`` is a share by size."""
        return bool(getattr(self._answer, "estimated", False))

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        if self._answer is None or self.endpoint is None:
            return self._trail
        hedge = any(record.outcome == "cancelled" and not record.hedge for record in self._trail)
        return (*self._trail, AttemptRecord(self.endpoint, "ok", self.latency, hedge=hedge))

    @property
    def has_trail(self) -> bool:
        """True if an attempt failed on the way."""
        return bool(self._trail)

    def _answered(self) -> Answered:
        if self._answer is None:
            assert self.error is not None
            raise self.error
        return self._answer

    def __repr__(self) -> str:
        how = "" if self.finish_reason in (None, "stop") else f" finish_reason={self.finish_reason!r}"
        what = f"ok{how}" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"<Result {self.index} {what} endpoint={self.endpoint!r} attempts={len(self.attempts)}>"


@dataclass(frozen=True, slots=True)
class EndpointState:
    """Where one endpoint stands at this moment, and why.

    Attributes:
        in_flight: requests under way.
        window: how many may be; ``why_window`` says why it last changed.
        obstacle: what keeps it from being asked now, ``ready`` if nothing does.
        ready_in: seconds until it may be asked; 0.0 is now, None if that depends on an event, such as an answer.
        sharing: where limits are shared with other processes, this one's part of them, and whether it is on its own; else None.
    """

    in_flight: int
    window: int
    why_window: str
    obstacle: str
    ready_in: float | None
    sharing: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """What one endpoint did. Latencies are seconds of successful attempts, None if there were none.

    Attributes:
        sent: requests; ``won`` were answered, ``rejected`` turned away, ``failed`` otherwise, ``cancelled`` by us or the caller.
        retried, hedged: of them, sent again after a failure (not after a 429), and copies of requests under way elsewhere.
        state: where it stands now; None in the statistics of a batch.
    """

    sent: int = 0
    won: int = 0
    rejected: int = 0
    retried: int = 0
    hedged: int = 0
    failed: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    state: EndpointState | None = None


class FleetStats(dict[str, EndpointStats]):
    """Endpoint name -> what it did: a plain dict, which a notebook shows as a table."""

    def __str__(self) -> str:
        return endpoints_table(self)

    def _repr_html_(self) -> str:
        from qreward.notebook.render import stats_html  # noqa: PLC0415 - only notebooks draw

        return stats_html(self)


def endpoints_table(endpoints: Mapping[str, EndpointStats]) -> str:
    """What each endpoint did, a line each, for a terminal."""
    rows: list[tuple[str, ...]] = [("endpoint", "sent", "answered", "rejected", "retried", "hedged", "failed", "p50", "p95")]
    for name, stats in sorted(endpoints.items()):
        counts = (stats.sent, stats.won, stats.rejected, stats.retried, stats.hedged, stats.failed)
        times = ("-" if seconds is None else f"{seconds * 1000:.0f} ms" for seconds in (stats.p50, stats.p95))
        rows.append((name, *map(str, counts), *times))
    first, *others = ([len(cell) for cell in column] for column in zip(*rows, strict=True))
    widths = [max(column) for column in others]
    return "\n".join(
        "  ".join((row[0].ljust(max(first)), *(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True)))) for row in rows
    )


@dataclass(frozen=True, slots=True)
class BatchStats:
    """The statistics of a batch. Printed, they are a table with a line for each endpoint.

    Attributes:
        items, ok, failed: items, those with an answer, those with an error.
        seconds: from the start of the batch to its last result.
        endpoints: endpoint name -> what it did for this batch.
        cost: US dollars; see :attr:`BatchResult.cost`.
    """

    items: int = 0
    ok: int = 0
    failed: int = 0
    seconds: float = 0.0
    endpoints: Mapping[str, EndpointStats] = field(default_factory=dict)
    cost: float | None = None

    def __str__(self) -> str:
        cost = "" if self.cost is None else f", ${self.cost:.4f}"
        summary = f"{self.items} items, {self.ok} ok, {self.failed} failed, {self.seconds:.2f} s{cost}"
        return f"{summary}\n{endpoints_table(self.endpoints)}" if self.endpoints else summary


def dollars(price: tuple[float, float], prompt_tokens: int, completion_tokens: int) -> float:
    """What tokens cost at a price, which is for a million of each kind."""
    return (price[0] * prompt_tokens + price[1] * completion_tokens) / 1e6


class BatchResult(Sequence[Result[T]]):
    """Results in the order of the input; failed items are among them, as values.

    Example:
        >>> batch = BatchResult([], BatchStats())
        >>> len(batch), batch.texts(), batch.errors
        (0, [], {})
    """

    def __init__(self, results: list[Result[T]], stats: BatchStats) -> None:
        self._results = results
        self.stats = stats

    @overload
    def __getitem__(self, index: int) -> Result[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result[T]]: ...
    def __getitem__(self, index: int | slice) -> Result[T] | list[Result[T]]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result[T]]:
        return iter(self._results)

    def values(self, default: Any = None) -> list[Any]:
        """Return each item's value, and ``default`` for an item that failed."""
        return self._each(lambda result: result.value, default)

    def texts(self, default: Any = None) -> list[Any]:
        """Return each item's text, and ``default`` for an item that failed."""
        return self._each(lambda result: result.text, default)

    def scores(self, default: Any = _RAISE) -> list[Any]:
        """Return each item's reward as a float: of reward models (``batch_score``), judges and comparisons.

        Args:
            default: takes the place of a failed item's reward, such as ``None`` or ``math.nan``. Without it, failed items raise.

        Raises:
            ExceptionGroup: items failed, and there is no ``default``.
            TypeError: the values are not rewards, such as those of ``batch_chat_completion``.

        Example:
            >>> BatchResult([Result(0, None, QRewardError("no answer"), None, 0.0, 0.0)], BatchStats()).scores(default=None)
            [None]
        """
        if default is _RAISE:
            self.raise_for_errors()
        return self._each(lambda result: _score_of(result.value), default)

    def _each(self, read: Callable[[Result[T]], Any], default: Any) -> list[Any]:
        return [read(result) if result.ok else default for result in self._results]

    @property
    def errors(self) -> dict[int, QRewardError]:
        """Index -> error of the items that failed."""
        return {result.index: result.error for result in self._results if result.error is not None}

    @property
    def cost(self) -> float | None:
        """US dollars for all answers of endpoints that have a price, by the tokens that they told; None if no endpoint has one.

        What was asked for and not used, such as a hedge that lost, is not in it.
        """
        return self.stats.cost

    def priced(self, prices: Mapping[str, tuple[float, float]]) -> BatchResult[T]:
        """Reckon the cost, and return this batch; ``prices`` are US dollars for a million prompt and completion tokens, by endpoint."""
        told = ((prices[name], stats) for name, stats in self.stats.endpoints.items() if name in prices)
        cost = sum((dollars(price, stats.prompt_tokens, stats.completion_tokens) for price, stats in told), 0.0)
        self.stats = replace(self.stats, cost=cost if prices else None)
        return self

    def raise_for_errors(self) -> BatchResult[T]:
        """Return this batch, or raise an ``ExceptionGroup`` of the errors if any item failed."""
        if errors := self.errors:
            raise ExceptionGroup(f"{len(errors)} of {len(self)} items failed", list(errors.values()))
        return self

    def __repr__(self) -> str:
        if not self and self.stats.items:
            return f"<BatchResult {self.stats.items} items, {self.stats.failed} failed, results not kept>"
        return f"<BatchResult {len(self)} items, {len(self.errors)} failed>"

    def _repr_html_(self) -> str:
        from qreward.notebook.render import batch_html  # noqa: PLC0415 - only notebooks draw

        return batch_html(self)


def _score_of(value: Any) -> float:
    score = value if isinstance(value, float) else getattr(value, "score", None)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise TypeError(f"scores() needs rewards, as of batch_score or Judge.batch_score; a {type(value).__name__} has none")
    return float(score)


def with_trail(error: QRewardError, trail: tuple[AttemptRecord, ...]) -> QRewardError:
    """Give an error its attempt trail, where its kind carries one."""
    if isinstance(error, RequestError):
        error.attempts = trail
    return error
