"""Aggregate several votes into one outcome, as soon as no pending vote can change it. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, median, median_low

from qreward.errors import QRewardError, RequestError
from qreward.judge.config import Settle
from qreward.judge.types import Vote

SampleOutcome = Vote | QRewardError | None
"""The outcome of one request; None while it is pending."""

Aggregate = tuple[float, tuple[Vote, ...]]
"""The aggregated score, and the votes."""

Decide = Callable[[Sequence[SampleOutcome]], Aggregate | QRewardError | None]
"""From the known outcomes to the item's aggregate, its error, or None while it is undecided."""


def quorum(size: int) -> int:
    """The votes that an outcome needs: more than half."""
    return size // 2 + 1


def quorum_error(outcomes: Sequence[SampleOutcome], what: str = "votes") -> QRewardError | None:
    """The error of an item that can no longer reach its quorum; None if it still can.

    The error lists the errors of all failed requests. The error of an item's only request is returned unchanged.
    """
    errors = [outcome for outcome in outcomes if isinstance(outcome, QRewardError)]
    if not errors or len(outcomes) - len(errors) >= quorum(len(outcomes)):
        return None
    if len(outcomes) == 1:
        return errors[0]
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else RequestError
    reasons = "; ".join(dict.fromkeys(f"{type(error).__name__}: {error}" for error in errors))
    message = f"{len(errors)} of {len(outcomes)} {what} failed, and more than half are needed: {reasons}"
    if not issubclass(kind, RequestError):
        return kind(message)
    error = kind(message, **{name: getattr(errors[-1], name, None) for name in ("endpoint", "model", "status_code")})
    error.attempts = tuple(attempt for each in errors for attempt in getattr(each, "attempts", ()))
    return error


def aggregate_scores(outcomes: Sequence[SampleOutcome], how: Settle) -> Aggregate | QRewardError | None:
    """The aggregated score with the votes, those closest to it first; the error; or None while it is undecided.

    ``majority`` is the most frequent score. Among equally frequent scores it is their median, and of two middle ones the lower, so that the
    result is always a score from a vote. It is decided when no pending vote can change it. ``mean`` and ``median`` wait until every
    request has a vote or an error. All three need votes from more than half of the requests.
    """
    if len(outcomes) == 1:
        only = outcomes[0]
        return (only.score, (only,)) if isinstance(only, Vote) else only
    score = _aggregate(outcomes, how, median_low)
    if score is None or isinstance(score, QRewardError):
        return score
    votes = [outcome for outcome in outcomes if isinstance(outcome, Vote)]
    return score, tuple(sorted(votes, key=lambda vote: abs(vote.score - score)))


def aggregate_comparisons(outcomes: Sequence[SampleOutcome], how: Settle) -> Aggregate | QRewardError | None:
    """The aggregated score of the first response, with the votes; the error; or None while it is undecided.

    Each pair was shown in both orders: the requests 2k and 2k + 1 belong together. If the two orders disagree, they count as a tie. If one
    of them is a tie, the other cannot change that. Several judges or samples are aggregated like scores, except that equally frequent
    preferences make a tie.
    """
    pairs = [_agreed(outcomes[place], outcomes[place + 1]) for place in range(0, len(outcomes), 2)]
    score = _aggregate(pairs, how, lambda _: 0.5)
    if score is None or isinstance(score, QRewardError):
        return score
    return score, tuple(outcome for outcome in outcomes if isinstance(outcome, Vote))


def _aggregate(outcomes: Sequence[SampleOutcome], how: Settle, choose: Callable[[Sequence[float]], float]) -> float | QRewardError | None:
    """The aggregated score; ``choose`` takes one of several equally frequent ones."""
    if (error := quorum_error(outcomes)) is not None:
        return error
    scores = [outcome.score for outcome in outcomes if isinstance(outcome, Vote)]
    missing = outcomes.count(None)
    if len(scores) < quorum(len(outcomes)):
        return None
    if how != "majority":
        return None if missing else float(mean(scores) if how == "mean" else median(scores))
    counts = Counter(scores).most_common()
    first, most = counts[0]
    if most > missing + (counts[1][1] if len(counts) > 1 else 0):
        return float(first)
    return None if missing else float(choose([score for score, count in counts if count == most]))


def _agreed(one: SampleOutcome, other: SampleOutcome) -> SampleOutcome:
    """The outcome of two orders: an error, else a tie, decides without the other; else both are needed."""
    for outcome in (one, other):
        if isinstance(outcome, QRewardError):
            return outcome
    for outcome in (one, other):
        if isinstance(outcome, Vote) and outcome.score == 0.5:
            return outcome
    if not isinstance(one, Vote) or not isinstance(other, Vote):
        return None
    return one if one.score == other.score else Vote(0.5)
