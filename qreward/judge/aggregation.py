"""Aggregate several votes into one outcome, as soon as no pending vote can change it. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, median, median_low
from typing import Any

from qreward.errors import QRewardError, RequestError
from qreward.judge.config import Settle
from qreward.judge.types import Comparison, Preference, Vote
from qreward.results import AttemptRecord

Heard = Vote | QRewardError | None
"""The outcome of one request; None while it is pending."""

Decide = Callable[[Sequence[Heard]], Any]
"""From the known outcomes to the item's outcome, its error, or None while it is undecided."""


def quorum(size: int) -> int:
    """The votes that an outcome needs: more than half."""
    return size // 2 + 1


def lost(sample_requests: Sequence[Heard]) -> QRewardError | None:
    """The error of an item that can no longer reach its quorum; None if it still can.

    The error lists the errors of all failed requests. The error of an item's only request is returned unchanged.
    """
    errors = [sample_request for sample_request in sample_requests if isinstance(sample_request, QRewardError)]
    if not errors or len(sample_requests) - len(errors) >= quorum(len(sample_requests)):
        return None
    if len(sample_requests) == 1:
        return errors[0]
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else RequestError
    told = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in errors))
    message = f"{len(errors)} of {len(sample_requests)} votes failed, and more than half are needed: {told}"
    if not issubclass(kind, RequestError):
        return kind(message)
    error = kind(message, endpoint=_last(errors, "endpoint"), model=_last(errors, "model"), status_code=_last(errors, "status_code"))
    trail: tuple[AttemptRecord, ...] = ()
    for each in errors:
        trail += getattr(each, "attempts", ())
    error.attempts = trail
    return error


def _last(errors: list[QRewardError], name: str) -> Any:
    return getattr(errors[-1], name, None)


class ScoreAggregator:
    """Aggregates scores.

    ``majority`` is the most frequent score. Among equally frequent scores it is their median, and of two middle ones the lower, so that the
    result is always a score from a vote. It is decided when no pending vote can change it. ``mean`` and ``median`` wait until every
    request has a vote or an error. All three need votes from more than half of the requests.
    """

    def __init__(self, how: Settle) -> None:
        self._how = how

    def __call__(self, sample_requests: Sequence[Heard]) -> tuple[float, tuple[Vote, ...]] | QRewardError | None:
        """The score and the votes, those closest to the score first; the error; or None while it is undecided."""
        if len(sample_requests) == 1:
            only = sample_requests[0]
            return (only.score, (only,)) if isinstance(only, Vote) else only
        error = lost(sample_requests)
        if error is not None:
            return error
        votes = [sample_request for sample_request in sample_requests if isinstance(sample_request, Vote)]
        missing = sum(sample_request is None for sample_request in sample_requests)
        scores = [vote.score for vote in votes]
        score = settled(scores, missing, self._how) if len(votes) >= quorum(len(sample_requests)) else None
        if score is None:
            return None
        return score, tuple(sorted(votes, key=lambda vote: abs(vote.score - score)))


def settled(scores: Sequence[float], missing: int, how: Settle, among: Callable[[Sequence[float]], float] = median_low) -> float | None:
    """The aggregated score; None while pending votes can change it.

    Args:
        scores: the scores of the votes so far.
        missing: number of pending votes.
        how: the method of aggregation.
        among: chooses one of several equally frequent scores.

    Example:
        >>> settled([1, 1], 1, "majority"), settled([1, 0], 1, "majority"), settled([1, 0, 5], 0, "majority"), settled([1, 1], 1, "mean")
        (1.0, None, 1.0, None)
    """
    if how != "majority":
        return None if missing else float(mean(scores)) if how == "mean" else float(median(scores))
    counts = Counter(scores).most_common()
    first, most = counts[0]
    if most > missing + (counts[1][1] if len(counts) > 1 else 0):
        return float(first)
    return None if missing else float(among([score for score, count in counts if count == most]))


class ComparisonAggregator:
    """Aggregates comparisons. Each pair was shown in both orders: the requests 2k and 2k + 1 belong together.

    If the two orders disagree, they count as a tie. If one of them is a tie, the other cannot change that. Several judges or samples are
    aggregated like scores, except that equally frequent preferences make a tie.
    """

    def __init__(self, how: Settle) -> None:
        self._how = how

    def __call__(self, sample_requests: Sequence[Heard]) -> Comparison | QRewardError | None:
        """The comparison, the error, or None while it is undecided."""
        pairs = [_agreed(sample_requests[place], sample_requests[place + 1]) for place in range(0, len(sample_requests), 2)]
        error = lost(pairs)
        if error is not None:
            return error
        scores = [pair.score for pair in pairs if isinstance(pair, Vote)]
        missing = sum(pair is None for pair in pairs)
        score = settled(scores, missing, self._how, among=lambda _: 0.5) if len(scores) >= quorum(len(pairs)) else None
        if score is None:
            return None
        preference: Preference = "first" if score > 0.5 else "second" if score < 0.5 else "tie"
        return Comparison(
            preference, score, tuple(sample_request for sample_request in sample_requests if isinstance(sample_request, Vote))
        )


def _agreed(one: Heard, other: Heard) -> Heard:
    for heard in (one, other):
        if isinstance(heard, QRewardError):
            return heard
    for heard in (one, other):
        if isinstance(heard, Vote) and heard.score == 0.5:
            return heard
    if one is None or other is None:
        return None
    assert isinstance(one, Vote)
    assert isinstance(other, Vote)
    return one if one.score == other.score else Vote(0.5)
