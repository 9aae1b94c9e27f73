"""What a scorer gives, and what is asked of one: the words that judges, reward models and the adapters of trainers share.

Knows no prompt, no model and no trainer.
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
"""What is scored: ``(prompt, response)``, ``(prompt, response, reference)``, or a mapping with ``prompt``, ``response`` and perhaps
``reference`` and whatever else a prompt template names. A prompt is a text or a list of messages, a response a text."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One answer of one judge, read.

    Attributes:
        score: what it says, in the judge's ``range``.
        verdict: the answer as the pydantic model that was asked for; None of a reward model.
        text: the answer as it came.
        model: who was asked.
        swapped: the two responses of a pair were shown in the other order.
    """

    score: float
    verdict: BaseModel | None = None
    text: str = ""
    model: str = ""
    swapped: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """What is thought of one response.

    Attributes:
        score: the reward: a finite number, settled from the votes.
        votes: the answers it was settled from, at least one, those that agree with it first.
        attributes: name -> number, of a reward model that gives several.
        usage: tokens of all answers to this item, those that could not be read among them; None if no server told.
        cached: nothing was sent for it.

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
        from qreward.notebook.verdicts import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, f"{self.score:g}", self.attributes)


Preference = Literal["first", "second", "tie"]

Pair = tuple[Any, Any, Any] | tuple[Any, Any, Any, Any] | Mapping[str, Any]
"""What is compared: ``(prompt, first, second)``, with ``reference`` as a fourth, or a mapping of these and what else a template names."""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """What is thought of two responses to one prompt, each of which was shown first once.

    Attributes:
        preference: the better one; ``tie`` if it changes with the order in which they are shown.
        score: 1.0 for the first, 0.0 for the second, 0.5 for a tie; the mean of these over several judges or samples.
        votes: the answers it was settled from; the ``score`` of each is of the first response, in whichever order they were shown.
        usage: tokens of all answers; None if no server told.
        cached: nothing was sent for it.
    """

    preference: Preference
    score: float
    votes: tuple[Vote, ...]
    usage: Usage | None = None
    cached: bool = False

    def __repr__(self) -> str:
        return _shown(self, self.preference)

    def _repr_html_(self) -> str:
        from qreward.notebook.verdicts import verdict_html  # noqa: PLC0415 - only notebooks draw

        return verdict_html(self, self.preference)


_SHOWN = 60
"""Characters of an answer that a ``repr`` shows."""


def _shown(of: Verdict | Comparison, outcome: str) -> str:
    """The ``repr``: the outcome, the votes if there are several, who gave them, and how the first answer begins."""
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
    """Anything that scores responses: a ``Judge``, a ``RewardModelScorer``, or an object of the user's."""

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
        """Score one response within ``timeout`` seconds in all, or raise a ``QRewardError``; never a number that nobody gave."""

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
        """Score many; an item that fails is a ``Result`` with an error."""

    async def aclose(self) -> None:
        """Give back what it holds."""
