"""Build the requests for an item: which models, which messages, how many samples. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from qreward.codecs.chat import CHAT
from qreward.errors import ConfigError
from qreward.judge import prompts
from qreward.judge.aggregation import Aggregate, Decide, aggregate_comparisons, aggregate_scores
from qreward.judge.config import JudgeConfig
from qreward.judge.prompts import Messages, Prompt
from qreward.judge.sampling import JudgeRequest, ReadItem
from qreward.judge.types import Comparison, Preference, Verdict
from qreward.judge.verdict_parser import VerdictParser
from qreward.judge.writing import JudgeModel, encoded, noted
from qreward.results import Usage

ANSWER_FORM = "answer_form"
"""The template field that is replaced by the instruction how to answer."""
POINT_NAMES = ("prompt", "response", "reference")
PAIR_NAMES = ("prompt", "first", "second", "reference")


def fields_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any]:
    """The fields of an item: a mapping, or a tuple of the values of ``names``, perhaps without the last. Raises ``ConfigError``."""
    if isinstance(item, Mapping):
        for name in names[:-1]:
            if name not in item:
                raise ConfigError(f"the item has no {name!r}: it has {', '.join(map(repr, item)) or 'nothing'}")
        return item
    if isinstance(item, tuple | list) and len(names) - 1 <= len(item) <= len(names):
        return dict(zip(names, item, strict=False))
    given = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise ConfigError(f"an item is ({', '.join(names[:-1])}), perhaps with {names[-1]}, or a mapping of these, not {given}")


def extra_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any] | None:
    """The fields of an item that are not judged, such as an ``id``; None if there are none."""
    if not isinstance(item, Mapping):
        return None
    return {name: value for name, value in item.items() if name not in names} or None


class RequestBuilder:
    """Builds the requests of one judge, for single responses or for pairs.

    Args:
        prompt: the user's prompt; None is the built-in one.
        parser: parser of the answers.
        config: models, samples, aggregation and request parameters.
        pairs: compare two responses, each pair in both orders.

    Attributes:
        judge_models: the judge models.
        per_item: requests per item.
        decide: aggregates the votes of an item.
    """

    def __init__(self, prompt: object, parser: VerdictParser, config: JudgeConfig, *, pairs: bool = False) -> None:
        self._pairs, self._form, self._samples = pairs, parser.instruction, config.samples
        self._names = names = PAIR_NAMES if pairs else POINT_NAMES
        self._prompt = Prompt(
            (prompts.pair if pairs else prompts.point) if prompt is None else prompt,
            config.system,
            needed=names[:-1] if prompt is None else names[1:-1],  # the built-in prompts show the task
            known=None if callable(prompt) else names,
            what="pair_prompt" if pairs else "prompt",
        )
        self._names_form = ANSWER_FORM in self._prompt.names
        self._appends_form = not self._names_form and (prompt is None or config.response_format != "none")
        self.judge_models = tuple(JudgeModel(model, parser, config) for model in config.model)
        self.per_item = len(self.judge_models) * config.samples * (2 if pairs else 1)
        self.decide: Decide = partial(aggregate_comparisons if pairs else aggregate_scores, how=config.settle)

    def read(self, item: object) -> ReadItem:
        """The requests for an item of a batch. An exception, which may come from the item's own code, becomes the item's result."""
        extra = None
        try:
            extra = extra_of(item, self._names)
            return ReadItem(self.requests(fields_of(item, self._names), extra=True), (), extra)
        except Exception as error:
            return ReadItem(error, (), extra)

    def requests(self, fields: Mapping[str, Any], *, extra: bool = False) -> list[JudgeRequest]:
        """The requests for an item. Raises ``ConfigError`` for a missing or, without ``extra``, an unused field; and ``BadRequest``."""
        orders = [(self._messages(fields, extra), False)]
        if self._pairs:
            orders.append((self._messages({**fields, "first": fields["second"], "second": fields["first"]}, extra), True))
        digests = [(messages, swapped, blake2b(encoded(messages), digest_size=16).digest()) for messages, swapped in orders]
        return [
            JudgeRequest(judge_model, messages, sample, swapped, _key(judge_model.identity, sample, digest))
            for judge_model in self.judge_models
            for sample in range(self._samples)
            for messages, swapped, digest in digests
        ]

    def result(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Verdict | Comparison:
        """The result of an item for the user."""
        score, votes = decided
        if not self._pairs:
            return Verdict(score, votes, None, usage, cached)
        preference: Preference = "first" if score > 0.5 else "second" if score < 0.5 else "tie"
        return Comparison(preference, score, votes, usage, cached)

    def _messages(self, fields: Mapping[str, Any], extra: bool) -> Messages:
        messages = self._prompt.messages({**fields, ANSWER_FORM: self._form} if self._names_form else fields, extra=extra)
        validated: Messages = CHAT.validate(messages)
        return noted(validated, self._form) if self._appends_form else validated


def _key(identity: bytes, sample: int, digest: bytes) -> bytes:
    return blake2b(identity + sample.to_bytes(4, "big") + digest, digest_size=16).digest()
