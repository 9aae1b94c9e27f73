"""Rank all responses to one prompt in one request. This module makes the prompt with the list of responses, reads their order from the
answer, and computes the scores.

A judge favours some places in a list, so each list is shown twice, in opposite orders. This module must not send anything.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from math import sqrt
from statistics import fmean, variance
from string import ascii_uppercase
from typing import Any

from pydantic import BaseModel, Field

from qreward.codecs.chat import CHAT
from qreward.errors import ConfigError, QRewardError
from qreward.judge.aggregation import Aggregate, SampleOutcome, quorum_error
from qreward.judge.asking import encoded
from qreward.judge.codec import DecidedReply, ModelReply
from qreward.judge.config import JudgeConfig
from qreward.judge.parsing import Unreadable
from qreward.judge.prompts import Prompt, listed
from qreward.judge.ranking import Ranking
from qreward.judge.requests import RequestBuilder
from qreward.judge.sampling import JudgeRequest
from qreward.judge.types import Vote
from qreward.judge.verdict_parser import VerdictParser
from qreward.judge.writing import AnswerFormat, WritingModel, noted
from qreward.results import Usage

GROUP_NAMES = ("prompt", "responses", "reference")
LABELS = ascii_uppercase
"""The labels of the responses in a list. A list has at most as many responses as there are labels."""


class OrderVerdict(BaseModel):
    """All responses of a list, the best first, and why.

    Example:
        >>> OrderVerdict(order=["B", "A"]).order
        ['B', 'A']
    """

    reason: str = Field(default="", description="why, in a few sentences")
    order: list[str] = Field(description="the labels of all answers, the best first, each once")

    @property
    def score(self) -> float:
        """Always 0.5, because an order of a whole list is not the score of one response."""
        return 0.5


def check_order(order: Sequence[str], size: int) -> None:
    """Raise ``Unreadable`` unless the order has each of the first ``size`` labels once.

    Example:
        >>> check_order(["B", "A"], 2)
        >>> check_order(["B", "A", "B"], 3)
        Traceback (most recent call last):
        qreward.judge.parsing.quotes.Unreadable: The order must have each of the labels A to C once.
    """
    if sorted(order) != sorted(LABELS[:size]):
        raise Unreadable(f"The order must have each of the labels A to {LABELS[size - 1]} once.")


class OrderingModel(WritingModel):
    """Asks one model for the order of a list of ``size`` responses."""

    def __init__(self, model: str, config: JudgeConfig, form: AnswerFormat, size: int) -> None:
        super().__init__(model, VerdictParser(OrderVerdict), config, form, config.rubric)
        self._size = size

    def vote(self, reply: ModelReply | DecidedReply, *, swapped: bool) -> Vote:
        vote = super().vote(reply, swapped=swapped)
        assert isinstance(vote.verdict, OrderVerdict)
        check_order(vote.verdict.order, self._size)
        return vote


class ListwiseBuilder(RequestBuilder):
    """Builds the requests for lists of at least two different responses. See :class:`RequestBuilder`.

    Raises:
        ConfigError: the judge has ``method="decide"``.
    """

    def __init__(self, config: JudgeConfig) -> None:
        if config.method == "decide":
            raise ConfigError("method='listwise' needs a judge that writes, and this judge has method='decide'; rank with method='pairs'")
        self._config, self._names = config, GROUP_NAMES
        self._prompt = Prompt(listed, config.system, needed=GROUP_NAMES[:-1], known=GROUP_NAMES, what="listwise prompt")
        self._formats = {model: AnswerFormat(config) for model in config.model}
        self._sized: dict[tuple[str, int], OrderingModel] = {}
        self._lock = threading.Lock()
        self.per_model = dict.fromkeys(config.model, 2 * config.samples)
        self.per_item = sum(self.per_model.values())
        self.decide = aggregate_orders

    def requests(self, fields: Mapping[str, Any], *, extra: bool = False) -> list[JudgeRequest]:
        """Build two requests for each model and sample: one with the list, one with the reversed list.

        Raises:
            ConfigError: there are too many responses, or a field is missing or not allowed.
            BadRequest: a message is invalid.
        """
        responses = fields["responses"]
        if len(responses) > len(LABELS):
            raise ConfigError(f"a list may have at most {len(LABELS)} different responses, not {len(responses)}; use method='pairs'")
        found = []
        shown = [self._prompt.messages({**fields, "responses": list(order)}, extra=extra) for order in (responses, reversed(responses))]
        for name in self._config.model:
            model = self._model(name, len(responses))
            inputs = [model.input_of(noted(CHAT.validate(messages), model.question)) for messages in shown]
            for sample in range(self._config.samples):
                for swapped, messages in enumerate(inputs):
                    key = blake2b(encoded([model.identity.decode(), sample, "list", messages]), digest_size=16).digest()
                    found.append(JudgeRequest(model, messages, key, sample, bool(swapped)))
        return found

    def _model(self, name: str, size: int) -> OrderingModel:
        with self._lock:
            if (name, size) not in self._sized:
                self._sized[name, size] = OrderingModel(name, self._config, self._formats[name], size)
            return self._sized[name, size]

    def result(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Ranking:  # type: ignore[override]
        """Return the ranking of a list."""
        shares = [shares_of(vote) for vote in decided.votes]
        scores = tuple(fmean(each) for each in zip(*shares, strict=True))
        errors = tuple(sqrt(variance(each) / len(each)) for each in zip(*shares, strict=True))
        return Ranking(scores, errors, {}, self.per_item - len(decided.votes), decided.votes, usage, cached)


def shares_of(vote: Vote) -> list[float]:
    """Return a share (0 to 1) for each response, in the order of the input.

    The share of a response is the number of responses that the vote ranks below it, divided by the number of all other responses.

    Example:
        >>> shares_of(Vote(0.5, OrderVerdict(order=["C", "A", "B"])))
        [0.5, 0.0, 1.0]
        >>> shares_of(Vote(0.5, OrderVerdict(order=["C", "A", "B"]), swapped=True))
        [1.0, 0.0, 0.5]
    """
    assert isinstance(vote.verdict, OrderVerdict)
    order = vote.verdict.order
    below = len(order) - 1
    shares = [(below - order.index(label)) / below for label in LABELS[: len(order)]]
    return shares[::-1] if vote.swapped else shares


def aggregate_orders(outcomes: Sequence[SampleOutcome]) -> Aggregate | QRewardError | None:
    """Return the votes of a list; the error of the list; or None while a request is pending.

    The outcomes 2k and 2k + 1 are a pair: their requests showed the list in opposite orders. If one of the two requests failed, the outcome
    of the other request is left out too, because a single order would favour some places in the list. If at most half of the pairs
    succeeded, the list has an error.
    """
    pairs = [outcomes[place : place + 2] for place in range(0, len(outcomes), 2)]
    whole: list[SampleOutcome] = []
    for pair in pairs:
        failed = [outcome for outcome in pair if isinstance(outcome, QRewardError)]
        whole.append(failed[0] if failed else None if None in pair else pair[0])
    if (error := quorum_error(whole)) is not None:
        return error
    if None in whole:
        return None
    return Aggregate(0.5, tuple(vote for pair in pairs if all(isinstance(vote, Vote) for vote in pair) for vote in pair))  # type: ignore[misc]
