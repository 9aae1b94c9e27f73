"""The ``Scorer`` interface with its inputs and results, shared by judges, reward models and trainer adapters.

This module knows no prompt, no model and no trainer.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qreward.options import DEFAULT
from qreward.results import BatchResult, Result, Usage
from qreward.settings.policies import Priority

if TYPE_CHECKING:
    from pydantic import BaseModel

    from qreward.progress import Progress

Item = tuple[Any, Any] | tuple[Any, Any, Any] | Mapping[str, Any]
"""An item to score: ``(prompt, response)``, ``(prompt, response, reference)``, or a mapping with ``prompt``, ``response``, optionally
``reference``, and the other fields that a prompt template names. A prompt is a text or a list of messages, a response is a text."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One parsed answer of one judge.

    Attributes:
        score: the score, in the judge's ``range``.
        verdict: the answer as an instance of the judge's ``verdict`` model; None for a reward model.
        text: the answer as received.
        model: name of the model.
        swapped: True if the responses of a pair were shown in reverse order.
    """

    score: float
    verdict: BaseModel | None = None
    text: str = ""
    model: str = ""
    swapped: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The score of one response.

    Attributes:
        score: the reward, a finite number, aggregated from the votes.
        votes: the answers it was aggregated from, at least one. Those closest to the score come first.
        attributes: the numbers of a reward model that returns several, by name.
        usage: tokens of all answers to this item, including answers that could not be parsed. None if no server reported usage.
        cached: True if no request was sent for this item.

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
    """

    preference: Preference
    score: float
    votes: tuple[Vote, ...]
    usage: Usage | None = None
    cached: bool = False

    def __repr__(self) -> str:
        return _shown(self, self.preference)

    def _repr_html_(self) -> str:
        from qreward.notebook.render import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, self.preference)


_SHOWN = 60
"""Characters of an answer in a ``repr``."""


def _shown(of: Verdict | Comparison, outcome: str) -> str:
    """The ``repr``: the outcome, the votes if there are several, the models, and the beginning of the first answer."""
    scores = f" from {len(of.votes)} votes ({', '.join(f'{vote.score:g}' for vote in of.votes[:8])})" if len(of.votes) > 1 else ""
    models = ", ".join(dict.fromkeys(vote.model for vote in of.votes if vote.model))
    text = " ".join(of.votes[0].text[: 4 * _SHOWN].split()) if of.votes else ""
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

    async def batch_score(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        on_result: Callable[[Result[Verdict]], object] | None = None,
        progress: bool | Callable[[Progress], object] | None = None,
        keep_results: bool = True,
    ) -> BatchResult[Verdict]:
        """Score many responses. An item that fails is a ``Result`` with an error."""

    async def aclose(self) -> None:
        """Release the scorer's resources."""
