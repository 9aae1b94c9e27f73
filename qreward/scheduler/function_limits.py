"""The state of one key of a function: the calls that wait, the rate limit, the circuit breaker; and the adaptive limit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SWEEP = 64  # number of empty entries that a heap may hold, in addition to one entry for each item, before all empty entries are deleted
MEMORY = 60.0  # seconds for which an unused key keeps its failures, its open circuit breaker and its adaptive limit
FALL, RISE = 0.5, 1.1  # factors on an adaptive limit when it falls and when it rises; it rises by at least 1
LEAST_ROUND = 5  # minimum number of tries that must have ended before an adaptive limit is evaluated


class IndexedHeap(Generic[T]):
    """Keeps items ordered by rank, each item once. Items of equal rank are in the order in which they were put."""

    __slots__ = ("_entries", "_heap", "_pushes")

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # rank, a serial number so that items are never compared, and the item or None
        self._entries: dict[T, list[Any]] = {}
        self._pushes = 0

    def put(self, item: T, rank: Any) -> None:
        """Add an item, or move it to another rank. The rank inf removes it."""
        entry = self._entries.get(item)
        if entry is not None:
            if entry[0] == rank:
                return
            entry[2] = None  # so that a removed item can be garbage collected
            del self._entries[item]
        if rank != inf:
            self._pushes += 1
            entry = self._entries[item] = [rank, self._pushes, item]
            heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + SWEEP:
            self._heap = list(self._entries.values())
            heapify(self._heap)

    def first(self) -> T | None:
        heap = self._heap
        while heap:
            item: T | None = heap[0][2]
            if item is not None:
                return item
            heappop(heap)
        return None

    def rank(self) -> Any:
        """Return the rank of the first item, or inf."""
        return inf if not self._heap or self.first() is None else self._heap[0][0]

    def take(self) -> T:
        item = self.first()
        assert item is not None
        heappop(self._heap)
        del self._entries[item]
        return item

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class AimdLimit:
    """Adapts a limit between two bounds (AIMD; Chiu and Jain, 1989), each time as many tries have ended as it allows (at least 5).

    Only tries count that started after its last change, so that the effect of a change is seen before the next change. ``options`` has the
    settings ``adaptive_*`` of ``ScheduleConfig``, and ``most`` is another upper bound.
    """

    __slots__ = ("_ended", "_failed", "_fell_at", "_most", "_seconds", "_since", "limit", "options", "wanted")

    def __init__(self, start: int, options: Any, most: float = inf) -> None:
        self.limit: Any = start
        self._fell_at = self._since = -inf
        self.follow(options, most)
        self._begin_round(-inf, start)

    def follow(self, options: Any, most: float = inf) -> None:
        """Use other options. The limit is kept as far as the new bounds allow."""
        self.options, self._most = options, min(options.adaptive_limit_max, most)
        if not options.adaptive_limit_min <= self.limit <= self._most:
            self._begin_round(self._since, self.limit)

    def ended(self, now: float, sent_at: float, seconds: float | None, *, overloaded: bool = False) -> None:
        """Record that a try succeeded after ``seconds``, or failed (None). After overload, the limit falls at once."""
        if overloaded or sent_at < self._since:
            if overloaded and sent_at >= self._fell_at:
                self._fall(now)
            return
        self._ended += 1
        self._failed += seconds is None
        self._seconds += seconds or 0.0
        if self._ended < max(LEAST_ROUND, self.limit):
            return
        errors, most_errors = self._failed / self._ended, self.options.adaptive_error_threshold
        slow = self.options.adaptive_latency_threshold
        if errors > most_errors or (slow is not None and self._seconds > slow * (self._ended - self._failed)):
            self._fall(now)
        else:
            rises = self.wanted and errors <= most_errors / 2
            self._begin_round(now, max(self.limit + 1, round(self.limit * RISE)) if rises else self.limit)

    def _fall(self, now: float) -> None:
        self._fell_at = now
        self._begin_round(now, int(self.limit * FALL))

    def _begin_round(self, now: float, limit: float) -> None:
        limit = min(max(limit, self.options.adaptive_limit_min), self._most)
        if limit != self.limit:
            self.limit, self._since = limit, now
        self._ended = self._failed = 0
        self._seconds = 0.0
        self.wanted = False  # a call had to wait for the limit since, so a higher limit would help


def adapted(adaptive: AimdLimit | None, options: Any, start: Any, most: float) -> AimdLimit | None:
    """Return an adaptive limit that follows other options; None if they are None."""
    if options is None or adaptive is None:
        return None if options is None else AimdLimit(start, options, most)
    adaptive.follow(options, most)
    return adaptive


@dataclass(slots=True, eq=False, repr=False)
class KeyState:
    """One key of a function: its waiting calls, its rate limit and its circuit breaker (Nygard, "Release It!", 2007).

    The rate limit allows ``limit`` starts in any half-open interval of ``limit_window`` seconds. The circuit breaker is closed, open until
    a time, or half-open: then one call, the probe, is tried, and its outcome decides.
    """

    options: Any  # the present settings of the function, with the names of ``ScheduleConfig``
    queue: IndexedHeap[Any] = field(default_factory=IndexedHeap)  # calls that wait for the rate limit or for a free slot
    calls: int = 0  # those that have not ended
    inflight: int = 0  # tries in flight
    used_at: float = -inf  # when a try last started or ended
    closed_until: float = -inf  # end of the cooldown after an overload error that carried a wait
    room: int = 0  # tries that may begin in the cooldown: one for each that succeeded in it (conservation of packets, Jacobson 1988)
    starts: deque[float] | None = None  # those that count for the rate limit; None without a rate limit
    limit: Any = None  # the rate limit now
    adaptive: AimdLimit | None = None
    failures: int = 0  # in a row
    opened_at: float = -inf  # when the circuit breaker opened; -inf while it is closed
    probe: object = None

    def __post_init__(self) -> None:
        self.follow(self.options)

    def reset(self, options: Any) -> None:
        self.closed_until, self.room, self.starts, self.adaptive = -inf, 0, None, None
        self.close_circuit()
        self.follow(options)

    def follow(self, options: Any) -> None:
        self.options = options
        size = options.limit_size
        self.starts = None if size is None else self.starts or deque()
        self.adaptive = adapted(self.adaptive, options if options.adaptive_limit and size is not None else None, size, size)
        self.limit = size if self.adaptive is None else self.adaptive.limit
        if options.circuit_breaker_threshold is None:
            self.close_circuit()

    # rate limit

    def ready_at(self, call: Any) -> float:
        """Return the earliest time at which the key allows a try of a call. If the time has passed, the try is allowed now."""
        starts = self.starts
        if starts is None or len(starts) < self.limit or not call.paced:
            return -inf if self.room else self.closed_until
        ready: float = starts[len(starts) - self.limit] + self.options.limit_window
        return ready if self.room else max(self.closed_until, ready)

    def begin(self, now: float) -> None:
        """Record that a try begins."""
        self.inflight += 1
        self.used_at = now
        self.room = max(0, self.room - 1) if now < self.closed_until else 0
        starts = self.starts
        if starts is not None:
            starts.append(now)
            window = self.options.limit_window
            while starts[0] + window <= now:  # the sum is written as in ``ready_at``, because a difference would be rounded differently
                starts.popleft()

    # circuit breaker

    def close_circuit(self) -> None:
        self.failures, self.opened_at, self.probe = 0, -inf, None

    @property
    def open_until(self) -> float:
        """Before this time, the circuit breaker allows no call; -inf while it is closed."""
        recovery: float = self.options.circuit_breaker_recovery
        return self.opened_at + recovery

    def trusts(self, call: object) -> bool:
        """Return whether the circuit breaker is closed, or the call is its probe. The tries of all other calls began before it opened."""
        return self.opened_at == -inf or self.probe is call

    def admits(self, now: float, call: object) -> bool:
        """Return whether the circuit breaker allows a try of a call. The first call after the recovery time becomes the probe."""
        if self.opened_at > -inf and self.probe is None and now >= self.open_until:
            self.probe = call
        return self.trusts(call)

    # end of use

    @property
    def idle(self) -> bool:
        return not self.calls and not self.inflight

    def clear_at(self) -> float:
        """Return the time after which the key can be dropped without losing state that is needed; inf while the key is in use."""
        if not self.idle:
            return inf
        at = self.closed_until
        if self.starts:
            at = max(at, self.starts[-1] + self.options.limit_window)
        if self.failures:
            at = max(at, self.used_at + MEMORY, self.open_until + MEMORY)
        return at if self.adaptive is None else max(at, self.used_at + MEMORY)
