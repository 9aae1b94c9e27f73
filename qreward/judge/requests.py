"""Build the requests for an item: which models, which questions, which messages, how many samples. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from qreward.codecs.chat import CHAT
from qreward.errors import ConfigError
from qreward.judge import prompts
from qreward.judge.aggregation import Aggregate, Decide, aggregate_comparisons, aggregate_rubrics, aggregate_scores
from qreward.judge.asking import JudgeModel, encoded
from qreward.judge.config import JudgeConfig
from qreward.judge.prompts import Messages, Prompt
from qreward.judge.sampling import JudgeRequest, ReadItem
from qreward.judge.types import Comparison, Preference, Verdict
from qreward.judge.writing import noted
from qreward.results import Usage

ANSWER_FORM = "answer_form"
"""The template field that is replaced by what is asked and how to answer."""
POINT_NAMES = ("prompt", "response", "reference")
PAIR_NAMES = ("prompt", "first", "second", "reference")


def fields_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any]:
    """The fields of an item: a mapping, or a tuple of the values of ``names``; the last may be left out. Raises ``ConfigError``."""
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


class ItemPrompt:
    """The prompt of a judge for single responses, or for pairs: the messages of an item, without and with a question.

    Args:
        prompt: the user's prompt; None is the built-in one.
        config: the system message, and the response format.
        pairs: the prompt shows two responses.
        apart: the built-in prompt shows the material alone, as several questions follow it, or questions that say everything.

    Attributes:
        names: names of the fields of an item.
        pairs: see above.
    """

    def __init__(self, prompt: object, config: JudgeConfig, *, pairs: bool, apart: bool) -> None:
        self.pairs, self.names = pairs, PAIR_NAMES if pairs else POINT_NAMES
        whole, material = (prompts.pair, prompts.pair_input) if pairs else (prompts.point, prompts.point_input)
        self._prompt = Prompt(
            (material if apart else whole) if prompt is None else prompt,
            config.system,
            needed=self.names[:-1] if prompt is None else self.names[1:-1],  # the built-in prompts show the task
            known=None if callable(prompt) else self.names,
            what="pair_prompt" if pairs else "prompt",
        )
        self.has_place = ANSWER_FORM in self._prompt.names
        self._appends = not self.has_place and (apart or prompt is None or config.response_format != "none")

    def messages(self, fields: Mapping[str, Any], *, extra: bool, question: str = "") -> Messages:
        """The messages for one item. ``question`` stands where the template names it. Raises ``ConfigError`` and ``BadRequest``."""
        validated: Messages = CHAT.validate(
            self._prompt.messages({**fields, ANSWER_FORM: question} if self.has_place else fields, extra=extra)
        )
        return validated

    def asking(self, messages: Messages, question: str) -> Messages:
        """These messages with the question at the end, if the template names no place for it."""
        return noted(messages, question) if question and self._appends else messages


class ModelQuestions(NamedTuple):
    """What one model is asked about an item.

    Attributes:
        prompt: the prompt.
        questions: the questions; each is one request.
    """

    prompt: ItemPrompt
    questions: Sequence[JudgeModel]


class RequestBuilder:
    """Builds the requests of one judge, for single responses or for pairs.

    Args:
        models: what each model is asked. All prompts are for single responses, or all for pairs.
        samples: requests per question.
        decide: aggregates the outcomes of all requests of an item. They are in the order of models, samples, questions, and the two orders
            of a pair.
        instead: builds the requests to models that turn out to give no probabilities. None if there are none.
        calibrate: maps the score of a single response to its calibrated score. None leaves scores as they are.

    Attributes:
        per_item: requests per item.
        per_model: requests per item to each model.
        decide: see above.
    """

    def __init__(
        self,
        models: Sequence[ModelQuestions],
        samples: int,
        decide: Decide,
        instead: RequestBuilder | None = None,
        calibrate: Callable[[float], float] | None = None,
    ) -> None:
        self._models, self._samples, self.decide, self._instead, self._calibrate = models, samples, decide, instead, calibrate
        self._names, self._pairs = models[0].prompt.names, models[0].prompt.pairs
        each = samples * (2 if self._pairs else 1)
        self.per_model = {questions[0].model: len(questions) * each for _, questions in models}
        self.per_item = sum(self.per_model.values())
        self._grouped = any(len(questions) > 1 for _, questions in models)

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
        group = tuple(map(_digest, (fields.get("prompt"), fields))) if self._grouped else None
        found: list[JudgeRequest] = []
        orders: dict[ItemPrompt, list[ItemInOrder]] = {}
        for prompt, questions in self._models:
            if prompt not in orders:
                orders[prompt] = self._orders(prompt, fields, extra)
            found += [
                JudgeRequest(question, *order.asked(question, sample), sample, order.swapped, group)
                for sample in range(self._samples)
                for question in questions
                for order in orders[prompt]
            ]
        if self._instead is None:
            return found
        return [
            one._replace(instead=other) if one.judge_model is not other.judge_model else one
            for one, other in zip(found, self._instead.requests(fields, extra=extra), strict=True)
        ]

    def _orders(self, prompt: ItemPrompt, fields: Mapping[str, Any], extra: bool) -> list[ItemInOrder]:
        first = ItemInOrder(prompt, fields, extra, swapped=False)
        if not self._pairs:
            return [first]
        return [first, ItemInOrder(prompt, {**fields, "first": fields["second"], "second": fields["first"]}, extra, swapped=True)]

    def result(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Verdict | Comparison:
        """The result of an item for the user."""
        score, votes, confidence = decided
        if not self._pairs:
            calibrated = score if self._calibrate is None else self._calibrate(score)
            return Verdict(calibrated, votes, None, usage, cached, confidence, calibrated=self._calibrate is not None)
        preference: Preference = "first" if score > 0.5 else "second" if score < 0.5 else "tie"
        return Comparison(preference, score, votes, usage, cached, confidence)


class ItemInOrder:
    """An item as it is shown, of a pair in one of its orders. What several questions share is made once."""

    __slots__ = ("_base", "_extra", "_fields", "_made", "_prompt", "swapped")

    def __init__(self, prompt: ItemPrompt, fields: Mapping[str, Any], extra: bool, *, swapped: bool) -> None:
        self._prompt, self._fields, self._extra, self.swapped = prompt, fields, extra, swapped
        self._base = None if prompt.has_place else prompt.messages(fields, extra=extra)
        self._made: dict[str, tuple[Messages, bytes]] = {}

    def asked(self, judge_model: JudgeModel, sample: int) -> tuple[Any, bytes]:
        """Return the request for one sample of a model, and the key under which equal requests are shared."""
        question = judge_model.question
        if question not in self._made:
            base = self._prompt.messages(self._fields, extra=self._extra, question=question) if self._base is None else self._base
            messages = self._prompt.asking(base, question)
            self._made[question] = messages, _digest(messages)
        messages, digest = self._made[question]
        return judge_model.asked(messages), _key(judge_model.identity, sample, digest)


def _key(identity: bytes, sample: int, digest: bytes) -> bytes:
    return blake2b(identity + sample.to_bytes(4, "big") + digest, digest_size=16).digest()


def _digest(value: object) -> bytes:
    return blake2b(encoded(value), digest_size=16).digest()


def scored(config: JudgeConfig, width: float | None) -> Decide:
    """Aggregates single scores in a range of this width."""
    return partial(aggregate_scores, how=config.settle, width=width)


def compared(config: JudgeConfig) -> Decide:
    """Aggregates comparisons."""
    return partial(aggregate_comparisons, how=config.settle)


def by_rubric(config: JudgeConfig, models: Sequence[ModelQuestions]) -> Decide:
    """Aggregates the outcomes of the criteria of a rubric."""
    assert config.rubric is not None
    sizes = tuple(len(questions) for _, questions in models for _ in range(config.samples))
    return partial(aggregate_rubrics, how=config.settle, rubric=config.rubric, sizes=sizes, bounds=config.range or (0.0, 1.0))
