"""Aggregate the votes on an item into its outcome, which is a score or an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from statistics import mean, median, median_low, multimode
from typing import NamedTuple

from qreward.errors import QRewardError, RequestError
from qreward.judge.config import Settle
from qreward.judge.rubric import DecidedCriteria, Rubric
from qreward.judge.types import CriterionResults, Vote

SampleOutcome = Vote | QRewardError | None
"""The outcome of one request: a vote or an error; None while the request is pending."""


class Aggregate(NamedTuple):
    """The score of an item, its votes, and the confidence in the score; see :func:`confidence_of`."""

    score: float
    votes: tuple[Vote, ...]
    confidence: float | None = None


Decided = Aggregate | QRewardError | None
"""The outcome of an item: the aggregate of its votes or its error; None while it is undecided."""
Decide = Callable[[Sequence[SampleOutcome]], Decided]


def quorum(size: int) -> int:
    return size // 2 + 1


def quorum_error(outcomes: Sequence[SampleOutcome], what: str = "votes") -> QRewardError | None:
    """Return the error of an item that can no longer reach its quorum; None if it can."""
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


def confidence_of(score: float, votes: Sequence[Vote], how: Settle, width: float | None) -> float | None:
    """Return the confidence in a score that was aggregated from votes, from 0 to 1; None for a single written vote.

    A single decision has its own confidence. For several votes, the confidence is the sum over the votes that agree with the score, divided
    by the number of all votes. A written vote counts as 1, and a decision as its own confidence. With ``majority``, a written vote agrees
    if it equals the score. Any other vote agrees if it is less than half of ``width``, the highest minus the lowest score, away from the
    score; if ``width`` is not known, only if it equals the score.
    """
    if len(votes) == 1:
        return votes[0].confidence
    sure = 0.0
    for vote in votes:
        equal = width is None or (how == "majority" and vote.confidence is None)
        if vote.score == score if equal else abs(vote.score - score) < abs(width or 0.0) / 2:
            sure += 1.0 if vote.confidence is None else vote.confidence
    return sure / len(votes)


def aggregate_scores(outcomes: Sequence[SampleOutcome], how: Settle, width: float | None = None) -> Decided:
    if len(outcomes) == 1:
        only = outcomes[0]
        return Aggregate(only.score, (only,), only.confidence) if isinstance(only, Vote) else only
    score = _aggregate(outcomes, how, median_low)
    if score is None or isinstance(score, QRewardError):
        return score
    votes = [outcome for outcome in outcomes if isinstance(outcome, Vote)]
    return Aggregate(score, tuple(sorted(votes, key=lambda vote: abs(vote.score - score))), confidence_of(score, votes, how, width))


def aggregate_comparisons(outcomes: Sequence[SampleOutcome], how: Settle) -> Decided:
    """Aggregate a comparison, whose score is that of the first response.

    The requests 2k and 2k + 1 show the two responses in opposite orders, and their votes are a *pair of votes*. If the two votes prefer
    different responses, or one of them is a tie, the pair is a tie. Otherwise its score is the mean of both. The pairs of several models or
    samples are aggregated as in :func:`aggregate_scores`, except that ``majority`` finds the most frequent preference, and the score is the
    mean of the pairs with this preference. Two equally frequent preferences are a tie.

    The confidence of a pair of decisions is their mean; of a tie, the mean of the votes that are a tie, or 0 if there is none. That
    of several pairs is as in :func:`confidence_of`, where a pair agrees if it has the aggregated preference.
    """
    pairs = [_agreed(outcomes[place], outcomes[place + 1]) for place in range(0, len(outcomes), 2)]
    agreed = [pair for pair in pairs if isinstance(pair, Vote)]
    is_majority = how == "majority"
    preferences = [Vote((1 + side_of(pair)) / 2) if isinstance(pair, Vote) else pair for pair in pairs]
    score = _aggregate(preferences if is_majority else pairs, how, lambda _: 0.5)
    if score is None or isinstance(score, QRewardError):
        return score
    same = [pair for pair in agreed if side_of(pair) == side_of(Vote(score))]
    if is_majority and any(pair.confidence is not None for pair in same):
        score = mean([pair.score for pair in same])
    votes = tuple(outcome for outcome in outcomes if isinstance(outcome, Vote))
    if len(agreed) == 1:
        return Aggregate(score, votes, agreed[0].confidence)
    return Aggregate(score, votes, sum(1.0 if pair.confidence is None else pair.confidence for pair in same) / len(agreed))


def aggregate_rubrics(
    outcomes: Sequence[SampleOutcome], how: Settle, rubric: Rubric, sizes: Sequence[int], bounds: tuple[float, float]
) -> Decided:
    """Aggregate an item that is judged by a rubric. ``sizes`` has the number of requests of each sample."""
    rest = iter(outcomes)
    votes = [_whole(list(islice(rest, size)), rubric, bounds) for size in sizes]
    return aggregate_scores(votes, how, bounds[1] - bounds[0])


def _whole(parts: Sequence[SampleOutcome], rubric: Rubric, bounds: tuple[float, float]) -> SampleOutcome:
    """Return the vote of one sample on all criteria; None while a request of the sample is pending."""
    for part in parts:
        if isinstance(part, QRewardError):
            return part
    votes = [part for part in parts if isinstance(part, Vote)]
    if len(votes) < len(parts):
        return None
    each = [vote.criteria or {} for vote in votes]
    criteria = each[0] if len(each) == 1 else CriterionResults(item for part in each for item in part.items())  # in the order of the rubric
    values: Sequence[float]
    known: Sequence[float]
    if isinstance(criteria, DecidedCriteria):
        values, known = criteria.scores(), criteria.confidences()
    else:
        results = criteria.values()
        values, known = [each.score for each in results], [each.confidence for each in results if each.confidence is not None]
    confidence = rubric.confidence(values, known) if len(known) == len(values) else None
    low, high = bounds
    return Vote(low + (high - low) * rubric.score(values), model=votes[0].model, confidence=confidence, criteria=criteria)


def _aggregate(outcomes: Sequence[SampleOutcome], how: Settle, choose: Callable[[Sequence[float]], float]) -> float | QRewardError | None:
    """Return the aggregated score; an error; or None while the score is undecided. ``choose`` decides between equally frequent scores."""
    if (error := quorum_error(outcomes)) is not None:
        return error
    if None in outcomes:
        return None
    scores = [outcome.score for outcome in outcomes if isinstance(outcome, Vote)]
    if how != "majority":
        return float(mean(scores) if how == "mean" else median(scores))
    frequent = multimode(scores)
    return float(frequent[0] if len(frequent) == 1 else choose(frequent))


def _agreed(one: SampleOutcome, other: SampleOutcome) -> SampleOutcome:
    """Return the outcome of two votes, one for each order of the responses; None while it is undecided."""
    if error := next((outcome for outcome in (one, other) if isinstance(outcome, QRewardError)), None):
        return error
    if not isinstance(one, Vote) or not isinstance(other, Vote):
        return None
    ties = [vote for vote in (one, other) if side_of(vote) == 0]
    known = [vote.confidence for vote in ties or (one, other) if vote.confidence is not None]
    sure = mean(known) if known else None
    if ties:
        return Vote(0.5, confidence=sure)
    if side_of(one) != side_of(other):
        return Vote(0.5, confidence=None if sure is None else 0.0)
    return Vote((one.score + other.score) / 2, confidence=sure)


def side_of(vote: Vote) -> int:
    """Return 1 if a vote prefers the first response, -1 if it prefers the second response, and 0 if it is a tie."""
    if vote.distribution is None:
        return (vote.score > 0.5) - (vote.score < 0.5)
    best = max(vote.distribution, key=vote.distribution.__getitem__)
    return (best == "first") - (best == "second")
