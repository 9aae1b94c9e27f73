"""One call of a decorated function."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import TYPE_CHECKING, Any, cast

from qreward.core.calls.outcome import Raised
from qreward.core.task import Attempt, State, Task

if TYPE_CHECKING:
    from qreward.core.calls.function import Function
    from qreward.core.calls.lane import Lane
    from qreward.core.calls.terms import CallTerms


class Call(Task):
    """A task that is a call of a function. Several tries may be under way at once.

    Attributes:
        function, key, lane: what is called, and under which key; it has a lane once it was submitted.
        terms: how it is treated, whatever is set meanwhile.
        rank: smaller goes first: the time it came, later by some seconds a level.
        tried: tries that are under way, oldest first.
        begun: how often it was tried.
        retries, hedges: tries beyond the first, by why they were made.
        tries: tries that failed, ``streak`` of them since one was turned away.
        error: the last failure, and whether it is ``covered``; see ``Raised``.
        not_before: the time before which the function, or the user, wants no other try.
        retry_at, hedge_at: when the next of either is due; inf for none.
        notes: what was decided, and when, if anybody wants to know.
    """

    __slots__ = (
        "begun", "covered", "error", "function", "hedge_at", "hedges", "key", "lane", "not_before", "notes", "rank", "retries", "retry_at",
        "streak", "terms", "tried",
    )  # fmt: skip

    lane: Lane

    def __init__(self, function: Function, key: Hashable, terms: CallTerms, sink: Any) -> None:
        super().__init__(None, cast("Any", None), terms.level, terms.timeout, sink, 0)  # it has a lane, and no pool
        self.function = function
        self.key = key
        self.terms = terms
        self.rank = 0.0
        self.tried: dict[Attempt, None] = {}
        self.begun = self.retries = self.hedges = self.streak = 0
        self.error: BaseException | None = None
        self.covered = False
        self.not_before = -inf
        self.retry_at = self.hedge_at = inf
        self.notes: list[tuple[float, str]] | None = [] if terms.noted else None

    @property
    def done(self) -> bool:
        """It has ended, whatever may still be under way for it."""
        return self.state is State.DONE

    @property
    def planned(self) -> bool:
        """It will be tried again: at a time, or when its turn comes."""
        return self.retry_at < inf or self in self.lane.line

    def next_due(self) -> float:
        """The next time at which something about it is due."""
        return min(self.deadline, self.retry_at, self.hedge_at)

    def failed(self, now: float, raised: Raised) -> None:
        """Remember how a try failed."""
        self.error, self.covered = raised.error, raised.covered
        self.tries += 1
        self.streak = 0 if raised.overloaded else self.streak + 1
        if raised.wait is not None:
            self.not_before = now + raised.wait

    def may_retry(self) -> bool:
        """One more try may be made, and beside those under way: more of them the more have failed, but for overload."""
        terms = self.terms
        return self.retries < terms.retries and len(self.tried) < max(1, min(terms.abreast, 1 + self.streak))

    def note(self, now: float, text: str) -> None:
        """Write down what was decided."""
        if self.notes is not None:
            self.notes.append((now, text))
