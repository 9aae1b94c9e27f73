"""The ``Scorer`` interface with its inputs and results, shared by judges, reward models and trainer adapters.

This module knows no prompt, no model and no trainer.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Unpack

from qreward.decisions import Option
from qreward.errors import ConfigError
from qreward.options import DEFAULT, JudgeBatchOptions
from qreward.results import BatchResult, Usage
from qreward.settings.policies import Priority
from qreward.spelling import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

Item = tuple[Any, Any] | tuple[Any, Any, Any] | Mapping[str, Any]
"""An item to score: ``(prompt, response)``, ``(prompt, response, reference)``, or a mapping with ``prompt``, ``response``, optionally
``reference``, and the other fields that a prompt template names. A prompt is a text or a list of messages, a response is a text."""


class CriterionResult(NamedTuple):
    """The outcome of one criterion of a rubric.

    Attributes:
        score: how far the criterion is met, from 0 to 1.
        weight: the weight of the criterion in the score of the rubric.
        confidence: of a decision its confidence, from 0 to 1; None for a written answer.
        distribution: of a decision the probability of each option; None for a written answer.
        text: the answer as received; ``""`` for a decision.

    Example:
        >>> CriterionResult(0.9, weight=2.0, confidence=0.9, distribution={True: 0.9, False: 0.1}).score
        0.9
    """

    score: float
    weight: float = 1.0
    confidence: float | None = None
    distribution: Mapping[Option, float] | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Vote:
    """One parsed answer of one judge. With a rubric it is made from the answers to all criteria.

    Attributes:
        score: the score, in the judge's ``range``.
        verdict: the answer as an instance of the judge's ``verdict`` model; None for a decision, a rubric and a reward model.
        text: the answer as received; ``""`` for a decision and a rubric.
        model: name of the model.
        swapped: True if the responses of a pair were shown in reverse order.
        confidence: of a decision its confidence, from 0 to 1; None for a written answer and a reward model.
        distribution: of a decision with one question the probability of each option, else None. Of a pair the options are ``first``,
            ``second`` and ``tie``, in whichever order the responses were shown.
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
    """The score of one response.

    Attributes:
        score: the reward, a finite number, aggregated from the votes.
        votes: the answers it was aggregated from, at least one. Those closest to the score come first.
        attributes: the numbers of a reward model that returns several, by name.
        usage: tokens of all answers to this item, including answers that could not be parsed. None if no server reported usage.
        cached: True if no request was sent for this item.
        confidence: from 0 to 1. Of a single decision its confidence. Of several votes the share that agrees with the score; see
            :func:`~qreward.judge.aggregation.confidence_of`. None for a single written answer and a reward model.
        decided_by: name of the scorer that gave the verdict, where several could have; ``""`` if there is only one.
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
        """The first vote's probability of each option. None if it is not a decision with one question."""
        return self.votes[0].distribution if self.votes else None

    @property
    def criteria(self) -> Mapping[str, CriterionResult] | None:
        """The first vote's outcome of each criterion, by name. None without a rubric."""
        return self.votes[0].criteria if self.votes else None

    @property
    def verdict(self) -> BaseModel | None:
        """The first vote's pydantic model."""
        return self.votes[0].verdict

    @property
    def text(self) -> str:
        """The first vote's answer."""
        return self.votes[0].text

    def __repr__(self) -> str:
        return _shown(self, f"{self.score:g}")

    def _repr_html_(self) -> str:
        from qreward.notebook.render import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, f"{self.score:g}", self.attributes)


Preference = Literal["first", "second", "tie"]

Pair = tuple[Any, Any, Any] | tuple[Any, Any, Any, Any] | Mapping[str, Any]
"""A pair to compare: ``(prompt, first, second)``, ``(prompt, first, second, reference)``, or a mapping with these fields and those that a
prompt template names."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The comparison of two responses to one prompt. Each judge saw them in both orders.

    Attributes:
        preference: the better response. A judge whose preference changes with the order counts as ``tie``.
        score: 1.0 for the first, 0.0 for the second, 0.5 for a tie. With several judges or samples these are aggregated by the judge's
            ``settle``.
        votes: the answers it was aggregated from. The ``score`` of each is that of the first response, in whichever order they were shown.
        usage: tokens of all answers. None if no server reported usage.
        cached: True if no request was sent for this pair.
        confidence: as in :class:`Verdict`; the votes are the pairs of both orders.
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
        from qreward.notebook.render import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, self.preference)


_SHOWN = 60
"""Characters of an answer in a ``repr``."""


def _shown(of: Verdict | Comparison, outcome: str) -> str:
    """The ``repr``: the outcome, the votes if there are several, the models, and the beginning of the first answer or its criteria."""
    scores = f" from {len(of.votes)} votes ({', '.join(f'{vote.score:g}' for vote in of.votes[:8])})" if len(of.votes) > 1 else ""
    models = ", ".join(dict.fromkeys(vote.model for vote in of.votes if vote.model))
    criteria = (of.votes[0].criteria or {}) if of.votes else {}
    said = ", ".join(f"{name} {result.score:g}" for name, result in criteria.items()) or (of.votes[0].text if of.votes else "")
    text = " ".join(said[: 4 * _SHOWN].split())
    begins = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return "".join([
        f"<{type(of).__name__} {outcome}{scores}",
        f" by {models}" if models else "",
        " cached" if of.cached else "",
        f": {begins!r}" if begins else "",
        ">",
    ])  # fmt: skip


class Scorer(Protocol):
    """The interface of everything that scores responses: a ``Judge``, a ``RewardModelScorer``, or the user's own object."""

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
            QRewardError: there is no score. An implementation must never return a substitute number.
        """

    async def batch_score(self, items: Iterable[Item] | AsyncIterable[Item], **options: Unpack[JudgeBatchOptions]) -> BatchResult[Verdict]:
        """Score many responses. An item that fails is a ``Result`` with an error."""

    async def aclose(self) -> None:
        """Release the scorer's resources."""


def check_batch_options(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for an option that a batch of a scorer does not have."""
    known = JudgeBatchOptions.__optional_keys__
    for name in options:
        if name not in known:
            raise ConfigError(f"{name!r} is not an option of this call; {did_you_mean(name, sorted(known))}")
