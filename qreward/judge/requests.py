"""Build the requests for an item: one for each model, question, sample, and order of a pair. This module must not send anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import product
from typing import Any, NamedTuple

from qreward.codecs.chat import CHAT
from qreward.errors import ConfigError
from qreward.judge import prompts
from qreward.judge.aggregation import Aggregate, Decide
from qreward.judge.asking import JudgeModel, encoded
from qreward.judge.calls import JudgeCall
from qreward.judge.config import JudgeConfig
from qreward.judge.loop import ItemCalls
from qreward.judge.prompts import Messages, Prompt
from qreward.judge.types import Comparison, Preference, Verdict
from qreward.judge.writing import noted
from qreward.results import Usage

ANSWER_FORM = "answer_form"
"""The placeholder of a template that is replaced by the question and the description of how to answer."""
POINT_NAMES = ("prompt", "response", "reference")
PAIR_NAMES = ("prompt", "first", "second", "reference")


def fields_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any]:
    """Return an item as a mapping of fields. A tuple holds the values of ``names`` in this order; the last value may be left out. Raises
    ``ConfigError`` for any other item."""
    if isinstance(item, Mapping):
        for name in names[:-1]:
            if name not in item:
                raise ConfigError(f"the item has no {name!r}: it has {', '.join(map(repr, item)) or 'nothing'}")
        return item
    if isinstance(item, tuple | list) and len(names) - 1 <= len(item) <= len(names) and not prompts.is_conversation(item):
        return dict(zip(names, item, strict=False))
    if prompts.is_conversation(item):
        raise ConfigError("an item is not a conversation: give (messages, response), with the response apart from the messages before it")
    given = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise ConfigError(f"an item is ({', '.join(names[:-1])}), perhaps with {names[-1]}, or a mapping of these, not {given}")


def extra_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any] | None:
    """Return the fields of an item that are not judged, such as an ``id``; None if there are none."""
    if not isinstance(item, Mapping):
        return None
    return {name: value for name, value in item.items() if name not in names} or None


class ItemPrompt:
    """Makes the messages for an item from the prompt of a judge, and adds questions to the messages.

    Args:
        prompt: the user's prompt; None for the built-in prompt.
        apart: True if the built-in prompt leaves out the question, because each request adds its own question.
        shows: True if the prompt itself says how to answer.

    Attributes:
        names: names of the fields of an item.
        has_place: True if the template contains ``{answer_form}``.
    """

    def __init__(self, prompt: object, config: JudgeConfig, *, pairs: bool, apart: bool, shows: bool = False) -> None:
        self.pairs, self.names = pairs, PAIR_NAMES if pairs else POINT_NAMES
        self._prompt = Prompt(
            partial(prompts.built_in, pairs=pairs, asks=not apart) if prompt is None else prompt,
            config.system,
            needed=self.names[:-1] if prompt is None else self.names[1:-1],  # built-in prompts also need the task
            known=None if callable(prompt) else (*self.names, *filter(None, [config.rubric_column])),
            what="pair_prompt" if pairs else "prompt",
        )
        self.has_place = ANSWER_FORM in self._prompt.names
        self._appends = not self.has_place and (apart or prompt is None or not (shows or config.response_format == "none"))

    @property
    def tells(self) -> bool:
        """True if the messages describe how to answer in the words of the judge."""
        return self.has_place or self._appends

    def messages(self, fields: Mapping[str, Any], *, extra: bool, question: str = "") -> Messages:
        """Return the messages for one item. ``question`` replaces ``{answer_form}``. Raises ``ConfigError`` and ``BadRequest``."""
        given = {**fields, ANSWER_FORM: question} if self.has_place else fields
        return CHAT.validate(self._prompt.messages(given, extra=extra))  # type: ignore[no-any-return]

    def asking(self, messages: Messages, question: str) -> Messages:
        """Return the messages with the question at the end. A template with ``{answer_form}`` contains the question already."""
        return noted(messages, question) if question and self._appends else messages


class ModelQuestions(NamedTuple):
    """Holds the prompt and the questions for one model. Each question is one request."""

    prompt: ItemPrompt
    questions: Sequence[JudgeModel]


class RequestBuilder:
    """Builds the requests of one judge, for single responses or for pairs.

    Args:
        models: the prompt and the questions for each model. Either all prompts are for single responses, or all are for pairs.
        samples: requests per question.
        decide: aggregates the outcomes of all requests of an item. The outcomes are sorted by model, then by sample, then by question, then
            by the order of a pair.
        fallback: builds the written requests that replace requests for decisions, for models that give no probabilities. None if no model
            needs such written requests.
        calibrate: maps the score of a single response to its calibrated score. None leaves scores unchanged.
        by_item: returns the builder for the rubric of an item; None if all items have the same questions.

    Attributes:
        per_model: model -> requests per item; None if items differ.
        decide: aggregates the outcomes of all requests of an item.
    """

    def __init__(
        self,
        models: Sequence[ModelQuestions],
        samples: int,
        decide: Decide,
        fallback: RequestBuilder | None = None,
        calibrate: Callable[[float], float] | None = None,
        by_item: Callable[[Mapping[str, Any]], RequestBuilder] | None = None,
    ) -> None:
        self._by_item = by_item
        self._models, self._samples, self.decide, self._fallback, self._calibrate = models, samples, decide, fallback, calibrate
        self._names, self._pairs = models[0].prompt.names, models[0].prompt.pairs
        each = samples * (2 if self._pairs else 1)
        self.per_model = {questions[0].model: None if by_item else len(questions) * each for _, questions in models}
        self._grouped = any(len(questions) > 1 for _, questions in models)

    def read(self, item: object) -> ItemCalls:
        """Make the calls for an item of a batch. If this raises, the item has the exception in place of the calls."""
        extra = None
        try:
            extra = extra_of(item, self._names)
            return self.item(fields_of(item, self._names), extra, strict=False)
        except Exception as error:
            return ItemCalls(error, self.decide, extra)

    def item(self, fields: Mapping[str, Any], extra: Mapping[str, Any] | None = None, *, strict: bool = True) -> ItemCalls:
        """Make the calls for the fields of an item, and raise what :meth:`requests` raises. ``strict`` refuses unknown fields."""
        builder = self if self._by_item is None else self._by_item(fields)
        return ItemCalls(builder.requests(fields, extra=not strict), builder.decide, extra)

    def requests(self, fields: Mapping[str, Any], *, extra: bool = False) -> list[JudgeCall]:
        """Make the calls for an item. ``extra`` allows fields that no template names.

        Raises ``ConfigError`` for a field that is missing or not allowed, and ``BadRequest`` for an invalid message.
        """
        if self._by_item is not None:
            return self._by_item(fields).requests(fields, extra=extra)
        group = tuple(map(_digest, (fields.get("prompt"), fields))) if self._grouped else None
        orders = [fields, {**fields, "first": fields["second"], "second": fields["first"]}] if self._pairs else [fields]
        found: list[JudgeCall] = []
        for prompt, questions in self._models:
            asked: dict[tuple[str, int], tuple[Messages, bytes]] = {}  # messages that several requests share are made once
            bases = None if prompt.has_place else [prompt.messages(each, extra=extra) for each in orders]
            for sample, judge_model, order in product(range(self._samples), questions, range(len(orders))):
                question = judge_model.question
                if (question, order) not in asked:
                    base = prompt.messages(orders[order], extra=extra, question=question) if bases is None else bases[order]
                    messages = prompt.asking(base, question)
                    asked[question, order] = messages, _digest(messages)
                messages, digest = asked[question, order]
                key = blake2b(judge_model.identity + sample.to_bytes(4, "big") + digest, digest_size=16).digest()
                inputs = judge_model.input_of(messages)
                found.append(JudgeCall(judge_model, inputs, key, sample, order > 0, judge_model.format, judge_model.reasks, group))
        if self._fallback is None:
            return found
        return [
            one._replace(fallback=other) if one.judge_model is not other.judge_model else one
            for one, other in zip(found, self._fallback.requests(fields, extra=extra), strict=True)
        ]

    def result(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Verdict | Comparison:
        score, votes, confidence = decided
        if not self._pairs:
            calibrated = score if self._calibrate is None else self._calibrate(score)
            return Verdict(calibrated, votes, None, usage, cached, confidence, calibrated=self._calibrate is not None)
        preference: Preference = "first" if score > 0.5 else "second" if score < 0.5 else "tie"
        return Comparison(preference, score, votes, usage, cached, confidence)


def _digest(value: object) -> bytes:
    return blake2b(encoded(value), digest_size=16).digest()
