"""Build the requests for an item: one for each model, question, sample, and order of a pair. This module must not send anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import blake2b
from itertools import product
from typing import Any, NamedTuple

from qreward.codecs.chat import CHAT
from qreward.codecs.decisions import Decide as DecisionCodec
from qreward.deciding import evenly
from qreward.errors import BadRequest, ConfigError
from qreward.judge import prompts
from qreward.judge.aggregation import Aggregate, Decide, aggregate_comparisons, aggregate_rubrics, aggregate_scores
from qreward.judge.calls import (
    WRITING_ONLY,
    AnswerFormat,
    DecidingModel,
    JudgeCall,
    JudgeModel,
    SingleQuestion,
    WritingModel,
    noted,
    parser_of,
    preference_question,
    question_of,
)
from qreward.judge.codec import encoded
from qreward.judge.config import JudgeConfig
from qreward.judge.loop import Invalid, ItemCalls
from qreward.judge.parsing import PreferenceVerdict
from qreward.judge.parsing.forms import shown_in
from qreward.judge.prompts import Messages, Prompt
from qreward.judge.rubric import Criterion, Rubric, rubric_of_item
from qreward.judge.types import Comparison, Preference, Verdict
from qreward.judge.verdict_parser import VerdictParser
from qreward.results import Usage

ANSWER_FORM = "answer_form"
"""The placeholder of a template that is replaced by the question and the description of how to answer."""
POINT_NAMES = ("prompt", "response", "reference")
PAIR_NAMES = ("prompt", "first", "second", "reference")


def fields_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any]:
    """Return an item as a mapping of fields. A tuple holds the values of ``names``; the last value may be left out. Raises
    ``ConfigError``."""
    if isinstance(item, Mapping):
        for name in names[:-1]:
            if name not in item:
                raise ConfigError(f"the item has no {name!r}: it has {', '.join(map(repr, item)) or 'nothing'}")
        return item
    is_conversation = prompts.is_conversation(item)
    if isinstance(item, tuple | list) and len(names) - 1 <= len(item) <= len(names) and not is_conversation:
        return dict(zip(names, item, strict=False))
    if is_conversation:
        raise ConfigError("an item is not a conversation: give (messages, response), with the response apart from the messages before it")
    given = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise ConfigError(f"an item is ({', '.join(names[:-1])}), perhaps with {names[-1]}, or a mapping of these, not {given}")


def extra_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any] | None:
    """Return the fields of an item that are not judged, such as an ``id``; None if there are none."""
    if not isinstance(item, Mapping):
        return None
    return {name: value for name, value in item.items() if name not in names} or None


def prepared(names: Sequence[str], make: Callable[..., Any], item: object) -> Any:
    """Return what ``make`` makes of the fields of an item and of those that are not judged, or ``Invalid``."""
    extra = None
    try:
        extra = extra_of(item, names)
        return make(fields_of(item, names), extra)
    except Exception as error:
        return Invalid(error, extra)


class ItemPrompt:
    """The prompt of a judge. With ``apart``, each request has a question of its own at the end."""

    def __init__(self, prompt: object, config: JudgeConfig, *, pairs: bool, apart: bool) -> None:
        names = PAIR_NAMES if pairs else POINT_NAMES
        shows = not config.has_criteria and shown_in(prompt, pairs=pairs) is not None
        self.prompt = Prompt(
            partial(prompts.built_in, pairs=pairs, asks=not apart) if prompt is None else prompt,
            config.system,
            needed=names[:-1] if prompt is None else names[1:-1],  # built-in prompts also need the task
            known=None if callable(prompt) else (*names, *filter(None, [config.rubric_column])),
            what="pair_prompt" if pairs else "prompt",
        )
        self.has_place = ANSWER_FORM in self.prompt.names
        self.appends = not self.has_place and (apart or prompt is None or not (shows or config.response_format == "none"))
        self.tells = self.has_place or self.appends  # how to answer, in the words of the judge


class ItemQuestions(NamedTuple):
    """What all items with the same rubric are asked: for each model its prompt and its questions, each of which is one request; and how
    the answers are aggregated."""

    models: Sequence[tuple[ItemPrompt, Sequence[JudgeModel]]]
    decide: Decide


MOST_RUBRICS = 1024
"""Number of rubrics of items, in all their spellings, whose requests are kept."""
_ANY = Rubric([Criterion("any", "It meets the criterion.")])  # the settings of a judge whose items have rubrics are checked with it

Limits = tuple[int, ...]
"""For each model, the largest number of questions in a request for decisions; 0 for a model that answers in writing."""


class RequestBuilder:
    """Makes the calls for items of one judge: single responses or pairs.

    Attributes:
        names: the fields of an item that is a tuple.
        per_model: name of a model -> number of calls for an item; None if items have rubrics of their own.
    """

    def __init__(self, judge: Builders, limits: Limits, *, pairs: bool) -> None:
        config = judge.config
        self._judge, self._limits, self._pairs, self._samples = judge, limits, pairs, config.samples
        self.names = PAIR_NAMES if pairs else POINT_NAMES
        self._column, self._lock = config.rubric_column, threading.Lock()
        self._of_rubric: dict[str | bytes, ItemQuestions] = {}  # a rubric as an item has it, or as settings -> what is asked
        self._usual = self._make(_ANY if self._column is not None and config.rubric is None else config.rubric)
        each = config.samples * (2 if pairs else 1)
        self.per_model = {
            model: None if self._column else len(questions) * each
            for model, (_, questions) in zip(config.model, self._usual.models, strict=True)
        }

    def item(self, fields: Mapping[str, Any], extra: Mapping[str, Any] | None = None, *, strict: bool = True) -> ItemCalls:
        """Make the calls for an item. ``strict`` refuses fields that no template names."""
        asked = self._usual if self._column is None else self._questions_of(fields, self._column)
        group = None
        if any(len(questions) > 1 for _, questions in asked.models):
            group = tuple(blake2b(encoded(each), digest_size=16).digest() for each in (fields.get("prompt"), fields))
        orders = [fields, {**fields, "first": fields["second"], "second": fields["first"]}] if self._pairs else [fields]
        calls: list[JudgeCall] = []
        for prompt, questions in asked.models:
            made: dict[tuple[str, int], tuple[Messages, bytes]] = {}  # messages that several requests share are made once
            for order, shown in enumerate(orders):
                base = [] if prompt.has_place else CHAT.validate(prompt.prompt.messages(shown, extra=not strict))
                for question in dict.fromkeys([each.question for each in questions]):
                    messages = base
                    if prompt.has_place:
                        messages = CHAT.validate(prompt.prompt.messages({**shown, ANSWER_FORM: question}, extra=not strict))
                    elif question and prompt.appends:
                        messages = noted(base, question)
                    made[question, order] = messages, blake2b(encoded(messages), digest_size=16).digest()
            for sample, model, order in product(range(self._samples), questions, range(len(orders))):
                messages, digest = made[model.question, order]
                inputs = messages if model.input_of is None else model.input_of(messages)
                key = blake2b(model.identity + sample.to_bytes(4, "big") + digest, digest_size=16).digest()
                calls.append(JudgeCall(model, inputs, key, sample, order > 0, model.reasks, group))
        return ItemCalls(calls, asked.decide, self._result, extra)

    def _result(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Verdict | Comparison:
        score, votes, confidence = decided
        if not self._pairs:
            calibrate = self._judge.calibrate
            calibrated = score if calibrate is None else calibrate(score)
            return Verdict(calibrated, votes, None, usage, cached, confidence, calibrated=calibrate is not None)
        preference: Preference = "first" if score > 0.5 else "second" if score < 0.5 else "tie"
        return Comparison(preference, score, votes, usage, cached, confidence)

    def _make(self, rubric: Rubric | None) -> ItemQuestions:
        config, ends, questions = self._judge.config, self._judge.parser.ends, self._judge.questions
        models = [questions(model, most, rubric, pairs=self._pairs) for model, most in zip(config.model, self._limits, strict=True)]
        if self._pairs:
            return ItemQuestions(models, partial(aggregate_comparisons, how=config.settle))
        if rubric is None:
            return ItemQuestions(models, partial(aggregate_scores, how=config.settle, width=None if ends is None else ends[1] - ends[0]))
        sizes = tuple(len(questions) for _, questions in models for _ in range(config.samples))
        bounds = config.range or (0.0, 1.0)
        return ItemQuestions(models, partial(aggregate_rubrics, how=config.settle, rubric=rubric, sizes=sizes, bounds=bounds))

    def _questions_of(self, fields: Mapping[str, Any], column: str) -> ItemQuestions:
        """Return what an item is asked, by the rubric in its field."""
        value: Any = fields.get(column)
        if self._judge.config.rubric is not None and prompts.is_absent("reference", value):  # which holds for a blank text too
            return self._usual
        if prompts.is_absent("rubric", value):
            has = "has no value" if column in fields else "is missing"
            raise ConfigError(f"the item has no rubric: its field {column!r} {has}, and the judge has no rubric for such items")
        if hasattr(value, "tolist"):
            value = value.tolist()
        key = value if isinstance(value, str) else encoded(value.settings() if isinstance(value, Rubric) else value)
        with self._lock:
            found = self._of_rubric.get(key)
        if found is None:
            try:
                rubric = rubric_of_item(value)
            except BadRequest as error:
                raise BadRequest(f"the rubric in {column!r} is wrong: {error}") from None
            with self._lock:
                same = encoded(rubric.settings())
                found = self._of_rubric[key] = self._of_rubric[same] = self._of_rubric.get(same) or self._make(rubric)
                while len(self._of_rubric) > MOST_RUBRICS:
                    del self._of_rubric[next(iter(self._of_rubric))]
        return found


class Builders:
    """Makes the request builders of one judge on first use, and keeps them. They share the prompts and what is known of the models.

    ``get`` returns the builder for these ``limits``, of single responses or of ``pairs``.
    """

    def __init__(
        self,
        config: JudgeConfig,
        given: dict[str, Any],
        parser: VerdictParser,
        decide: DecisionCodec,
        calibrate: Callable[[float], float] | None = None,
    ) -> None:
        self.config, self.parser, self.calibrate, self._given, self._decide = config, parser, calibrate, given, decide
        self._formats = {model: AnswerFormat(config.response_format) for model in config.model}
        self.get: Callable[..., RequestBuilder] = cache(partial(RequestBuilder, self))
        self._prompt: Callable[..., ItemPrompt] = cache(self._make_prompt)
        self.written: Limits = (0,) * len(config.model)
        self._point: SingleQuestion | None = None
        if config.method != "write":
            if not config.has_criteria:
                if given["score"] is not None:
                    raise ConfigError(
                        "score is a function of a written verdict, which a decision does not have; use a rubric, or method='write'"
                    )
                self._point = question_of(given["verdict"], parser.scale, config.range, built_in=given["prompt"] is None)
            if config.method == "decide" and (unused := sorted(WRITING_ONLY & config.params.keys())):
                raise ConfigError(
                    f"{unused[0]} has no effect with method='decide', as nothing is written; leave it out, or use method='write'"
                )
            self.get((1,) * len(config.model), pairs=False)
        if config.method != "decide":
            self.get(self.written, pairs=False)
        if given["pair_prompt"] is not None:
            self.get(self.written, pairs=True)  # so that an invalid pair_prompt raises now

    def _make_prompt(self, *, pairs: bool, apart: bool) -> ItemPrompt:
        return ItemPrompt(self._given["pair_prompt" if pairs else "prompt"], self.config, pairs=pairs, apart=apart)

    def questions(self, model: str, most: int, rubric: Rubric | None, *, pairs: bool) -> tuple[ItemPrompt, Sequence[JudgeModel]]:
        """Return the prompt and the questions for one model. The criteria of a rubric are questions of their own, which are divided evenly
        into requests with at most ``most`` decisions."""
        config, given, form = self.config, self._given, self._formats[model]
        apart = bool(most) or not (rubric is None or pairs)
        prompt = self._prompt(pairs=pairs, apart=apart)
        if not apart:
            parser = VerdictParser(PreferenceVerdict, form=given["pair_answer"]) if pairs else self.parser
            return prompt, [WritingModel(model, parser, config, form, rubric, told=prompt.tells)]
        if rubric is not None and not most:
            return prompt, [WritingModel(model, parser_of(each), config, form, each) for each in rubric.criteria]
        subjects: Sequence[Any]
        if pairs:
            subjects = [preference_question(built_in=given["pair_prompt"] is None, rubric=rubric)]
        else:
            subjects = [self._point] if rubric is None else evenly(rubric.criteria, most)
        return prompt, [DecidingModel(model, each, config, self._decide) for each in subjects]
