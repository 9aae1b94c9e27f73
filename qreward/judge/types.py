"""The ``Scorer`` interface with its inputs and results. This module must not import prompts, models or trainers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, Unpack

from qreward.decisions import Option
from qreward.engine.portal import BlockingTwin
from qreward.errors import ConfigError, InvalidResponse, did_you_mean
from qreward.judge.calibration import digest
from qreward.options import DEFAULT, JudgeBatchOptions
from qreward.results import BatchResult, Usage
from qreward.settings.policies import Priority

if TYPE_CHECKING:
    from pydantic import BaseModel

Item = tuple[Any, Any] | tuple[Any, Any, Any] | Mapping[str, Any]
"""An item to score: ``(prompt, response)``, ``(prompt, response, reference)``, or a mapping with ``prompt``, ``response``, optionally
``reference``, and the other fields that a prompt template names. A prompt is a text or a list of messages. A response is a text."""


def _rounded(value: object) -> str:
    """Return the ``repr`` of a value, with at most three decimals."""
    if isinstance(value, float):
        return f"{round(value, 3) + 0.0:g}"  # adding 0.0 makes -0.0 positive
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_rounded(each)}' for name, each in value.items())}}}"
    return repr(value)


class CriterionResult(NamedTuple):
    """Holds the outcome of one criterion of a rubric.

    Attributes:
        score: how far the criterion is met, from 0 to 1.
        weight, gate: as in :class:`~qreward.judge.rubric.Criterion`.
        confidence, distribution: the confidence of a decision, from 0 to 1, and the probability of each option; None for a written answer.
        text, reason: a written answer as received, usually JSON, and the reason in it; ``""`` and None for a decision.

    Example:
        >>> result = CriterionResult(0.2, weight=2.0, gate=0.5)
        >>> result.score, result.passed
        (0.2, False)
        >>> result
        CriterionResult(score=0.2, passed=False, weight=2, gate=0.5)
    """

    score: float
    weight: float = 1.0
    confidence: float | None = None
    distribution: Mapping[Option, float] | None = None
    text: str = ""
    gate: float | None = None
    reason: str | None = None

    def __repr__(self) -> str:
        found = {name: value for name, value in self._asdict().items() if value not in (None, "")}
        shown = {"score": self.score, "passed": self.passed, **found}
        return f"CriterionResult({', '.join(f'{name}={_rounded(value)}' for name, value in shown.items())})"

    @property
    def passed(self) -> bool:
        """False if the score is below the gate. The score of the rubric is then 0."""
        return self.gate is None or self.score >= self.gate


class CriterionResults(dict[str, CriterionResult]):
    """Maps the name of each criterion of a rubric to its outcome."""

    def __missing__(self, name: object) -> CriterionResult:
        raise KeyError(f"there is no criterion {name!r}; {did_you_mean(name, self)}")


@dataclass(frozen=True, slots=True)
class Vote:
    """Holds one parsed answer of one judge model. With a rubric, one vote combines the answers to all criteria.

    Attributes:
        score: the score, in the judge's ``range``.
        verdict: the answer as an instance of the judge's ``verdict`` model; None for a decision, a rubric and a reward model.
        text: the answer as received; ``""`` for a decision and a rubric.
        model: name of the model.
        swapped: True if the responses of a pair were shown in reverse order.
        confidence: the confidence of a decision, from 0 to 1; None for a written answer and a reward model.
        distribution: the probability of each option of a decision with one question; otherwise None. The options of a pair are ``first``,
            ``second`` and ``tie``. ``first`` is the caller's first response, even if ``swapped`` is True.
        criteria: the outcome of each criterion of a rubric, by name; None without a rubric.
    """

    score: float
    verdict: BaseModel | None = None
    text: str = ""
    model: str = ""
    swapped: bool = False
    confidence: float | None = None
    distribution: Mapping[Option, float] | None = None
    criteria: Mapping[str, CriterionResult] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """Holds the score of one response.

    Attributes:
        score: the reward, a finite number, aggregated from the votes.
        votes: the votes that were aggregated, at least one. The votes closest to the score come first.
        attributes: name -> number, for a reward model that returns several numbers; otherwise None.
        usage: tokens of all answers to this item, including answers that could not be parsed. None if no server reported usage.
        cached: True if no request was sent for this item.
        confidence: the confidence in the score, from 0 to 1. For a single decision, this is the confidence of the decision. For several
            votes, this is the share of votes that agree with the score (see :func:`~qreward.judge.aggregation.confidence_of`). None for a
            single written answer and for a reward model.
        decided_by: name of the stage of a cascade that gave the verdict; ``""`` without a cascade.
        calibrated: True if a calibration was applied to the score.

    Example:
        >>> Verdict(0.75, (Vote(0.75, text="Score: 7.5"),)).text
        'Score: 7.5'
        >>> Verdict(0.75, (Vote(0.75, text="Score: 7.5", model="judge-7b"),))
        <Verdict 0.75 by judge-7b: 'Score: 7.5'>
    """

    score: float
    votes: tuple[Vote, ...]
    attributes: Mapping[str, float] | None = None
    usage: Usage | None = None
    cached: bool = False
    confidence: float | None = None
    decided_by: str = ""
    calibrated: bool = False

    @property
    def distribution(self) -> Mapping[Option, float] | None:
        """The ``distribution`` of the first vote."""
        return self.votes[0].distribution if self.votes else None

    @property
    def criteria(self) -> Mapping[str, CriterionResult] | None:
        """The ``criteria`` of the first vote."""
        return self.votes[0].criteria if self.votes else None

    @property
    def verdict(self) -> BaseModel | None:
        """The ``verdict`` of the first vote: an instance of the judge's pydantic model, or None."""
        return self.votes[0].verdict

    @property
    def text(self) -> str:
        """The ``text`` of the first vote."""
        return self.votes[0].text

    def __repr__(self) -> str:
        return _shown(self, _rounded(self.score))

    def _repr_html_(self) -> str:
        from qreward.render import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, f"{self.score:g}", self.attributes)


Preference = Literal["first", "second", "tie"]

Pair = tuple[Any, Any, Any] | tuple[Any, Any, Any, Any] | Mapping[str, Any]
"""A pair to compare: ``(prompt, first, second)``, ``(prompt, first, second, reference)``, or a mapping with these fields and the other
fields that a prompt template names."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Holds the comparison of two responses to one prompt. Each judge model saw the responses in both orders.

    Attributes:
        preference: the better response. If a judge model prefers different responses in the two orders, its preference is ``tie``.
        score: 1.0 for the first response, 0.0 for the second, 0.5 for a tie. A decision has the expected value of these numbers. The
            judge's ``settle`` says how the scores of several models or samples are aggregated.
        votes: the votes that were aggregated. The ``score`` of a vote is the score of the caller's first response, even if the responses
            were shown in reverse order.
        usage, cached, confidence: as in :class:`Verdict`. The two orders of a pair count as one vote.
    """

    preference: Preference
    score: float
    votes: tuple[Vote, ...]
    usage: Usage | None = None
    cached: bool = False
    confidence: float | None = None

    def __repr__(self) -> str:
        return _shown(self, self.preference)

    def _repr_html_(self) -> str:
        from qreward.render import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, self.preference)


_SHOWN = 60
"""Maximum number of characters of an answer in a ``repr``."""


def _shown(of: Verdict | Comparison, outcome: str) -> str:
    """Return the ``repr``: the outcome, the scores of several votes, the models, and the beginning of the first answer or its criteria."""
    scores = f" from {len(of.votes)} votes ({', '.join(_rounded(vote.score) for vote in of.votes[:8])})" if len(of.votes) > 1 else ""
    models = ", ".join(dict.fromkeys(vote.model for vote in of.votes if vote.model))
    criteria = (of.votes[0].criteria or {}) if of.votes else {}
    said = [
        f"{name} {_rounded(each.score)}" if each.passed else f"{name} {each.score:g} below its gate {each.gate:g}"
        for name, each in sorted(criteria.items(), key=lambda each: each[1].passed)  # those below their gate come first, as the text is cut
    ] or [of.votes[0].text if of.votes else ""]
    text = " ".join(", ".join(said)[: 4 * _SHOWN].split())
    begins = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    by, cached = f" by {models}" if models else "", " cached" if of.cached else ""
    return f"<{type(of).__name__} {outcome}{scores}{by}{cached}{f': {begins!r}' if begins else ''}>"


class Scorer(Protocol):
    """Scores responses. ``Judge``, ``RewardModelScorer`` and ``Cascade`` have this interface, and so may objects of the user."""

    async def score(
        self,
        /,
        prompt: Any,
        response: Any,
        *,
        reference: Any = None,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Verdict:
        """Score one response.

        Args:
            timeout: seconds for the whole call.

        Raises:
            QRewardError: the response could not be scored. An implementation must never return a substitute number.
        """

    async def batch_score(self, items: Iterable[Item] | AsyncIterable[Item], **options: Unpack[JudgeBatchOptions]) -> BatchResult[Verdict]:
        """Score many responses. The result of an item that failed has an ``error``."""

    async def aclose(self) -> None:
        """Release the scorer's resources."""


class Closing(AbstractAsyncContextManager[Any]):
    """Closes the object at the end of ``async with``."""

    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class JudgeAnswer:
    """Holds a verdict, comparison or ranking as the answer of a ``Result``."""

    __slots__ = ("estimated", "usage", "value")

    def __init__(self, value: Any, *, estimated: bool = False) -> None:
        self.value, self.usage, self.estimated = value, value.usage, estimated

    def build(self) -> Any:
        return self.value

    def text(self) -> str:
        votes = getattr(self.value, "votes", ())
        return votes[0].text if votes else ""


AnyScorer = Scorer | BlockingTwin[Any]
"""A scorer, or the blocking twin of a scorer, such as a ``SyncJudge``."""


def unblocked(given: Any, what: str, needed: Sequence[str] = ("score", "batch_score", "aclose")) -> Scorer:
    scorer = given._async if isinstance(given, BlockingTwin) else given
    missing = [name for name in needed if not callable(getattr(scorer, name, None))]
    if missing:
        raise ConfigError(f"{what} must be a scorer, such as a Judge; {given!r} has no method {missing[0]!r}")
    return scorer  # type: ignore[no-any-return]


async def one_by_one(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    """Read an input of either kind, and close it at the end."""
    iterator: Any = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
    try:
        if isinstance(items, AsyncIterable):
            async for item in iterator:
                yield item
        else:
            for item in iterator:
                yield item
    finally:
        if (aclose := getattr(iterator, "aclose", None)) is not None:
            await aclose()
        elif (close := getattr(iterator, "close", None)) is not None:
            close()


def check_finite(verdict: Verdict) -> None:
    """Raise ``InvalidResponse`` if the score or an attribute of a verdict, perhaps of a scorer of the user, is not a finite number."""
    for name, number in {"score": verdict.score, **(verdict.attributes or {})}.items():
        with suppress(TypeError, ValueError, OverflowError):
            if isfinite(number):
                continue
        error = InvalidResponse(f"the scorer returned {ascii(number)[:100]} as {name!r}, which is not a finite number")
        error.usage = verdict.usage
        raise error


def described(scorer: object) -> str:
    """Return a text that differs between scorers whose verdicts may differ: the ``repr``, and a digest of the ``verdict_settings``."""
    settings = getattr(scorer, "verdict_settings", None)
    if settings is not None:
        return f"{scorer!r}, settings {digest(settings)[:16]}"
    cls = type(scorer)
    return repr(scorer) if cls.__repr__ is not object.__repr__ else f"{cls.__module__}:{cls.__qualname__}"
