"""Make the ``RequestBuilder`` of a judge from its settings: for single responses or pairs, written or decided, with or without a rubric."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from qreward.codecs.decisions.operation import Decide
from qreward.deciding.parts import evenly
from qreward.errors import BadRequest, ConfigError
from qreward.judge.aggregation import Decide as DecideItem
from qreward.judge.aggregation import aggregate_comparisons, aggregate_rubrics, aggregate_scores
from qreward.judge.answers import shown_in
from qreward.judge.asking import encoded
from qreward.judge.config import JudgeConfig
from qreward.judge.deciding import WRITING_ONLY, AutoMethod, DecidingModel, SingleQuestion, preference_question, question_of
from qreward.judge.parsing import PreferenceVerdict
from qreward.judge.prompts import is_absent
from qreward.judge.requests import ItemPrompt, ModelQuestions, RequestBuilder
from qreward.judge.rubric import Criterion, Rubric, rubric_of_item
from qreward.judge.verdict_parser import VerdictParser
from qreward.judge.writing import AnswerFormat, WritingModel, parser_of

MOST_RUBRICS = 512
"""Number of rubrics of items whose requests are kept. The requests for a rubric that returns later are prepared again."""
_ANY = Rubric([Criterion("any", "It meets the criterion.")])  # the settings of a judge whose items have rubrics are checked with it

Limits = tuple[int, ...]
"""For each model, the largest number of questions in a request for decisions; 0 for a model that answers in writing."""


class Builders:
    """Makes the request builders of one judge, and keeps them. A builder is made on first use.

    ``given`` has ``prompt``, ``pair_prompt``, ``verdict``, ``score`` and the form ``pair_answer`` of the judge. Raises ``ConfigError`` if a
    setting is invalid, or does not fit the method or the rubric.

    Attributes:
        autos: name of a model -> the record of whether the model answers with probabilities, for the method ``auto``.
        written: the limits of a judge whose models all answer in writing: 0 for each model.
    """

    def __init__(
        self,
        config: JudgeConfig,
        given: dict[str, Any],
        parser: VerdictParser,
        decide: Decide,
        calibrate: Callable[[float], float] | None = None,
    ) -> None:
        self._column, self._usual = config.rubric_column, config.rubric
        if self._column is not None and self._usual is None:
            config = config.model_copy(update={"rubric": _ANY})
        self._config, self._given, self._parser, self._decide, self._calibrate = config, given, parser, decide, calibrate
        self._of_value: dict[Any, Builders] = {}
        self._of_rubric: dict[Any, Builders] = {}
        self.autos = {model: AutoMethod(model) for model in config.model}
        self._formats = {model: AnswerFormat(config) for model in config.model}
        self._prompts: dict[tuple[bool, bool], ItemPrompt] = {}
        self._made: dict[tuple[bool, Limits, bool], RequestBuilder] = {}
        self._lock = threading.Lock()
        self.written: Limits = (0,) * len(config.model)
        self._point: SingleQuestion | None = None
        if config.method != "write":
            self._check_decisions()
            self.get((1,) * len(config.model), pairs=False)
        if config.method != "decide":
            self.get(self.written, pairs=False)
        if given["pair_prompt"] is not None:
            self.get(self.written, pairs=True)  # so that an invalid pair_prompt raises now

    def _check_decisions(self) -> None:
        config = self._config
        if config.rubric is None:
            if self._given["score"] is not None:
                raise ConfigError(
                    "score is a function of a written verdict, which a decision does not have; use a rubric, or method='write'"
                )
            built_in = self._given["prompt"] is None
            self._point = question_of(self._given["verdict"], self._parser.scale, config.range, built_in=built_in)
        if config.method == "decide" and (unused := sorted(WRITING_ONLY & config.params.keys())):
            raise ConfigError(f"{unused[0]} has no effect with method='decide', as nothing is written; leave it out, or use method='write'")

    def get(self, limits: Limits, *, pairs: bool) -> RequestBuilder:
        with self._lock:
            key = pairs, limits, all(auto.works for auto in self.autos.values())
            if key not in self._made:
                self._made[key] = self._make(limits, pairs)
            return self._made[key]

    def _make(self, limits: Limits, pairs: bool) -> RequestBuilder:
        config = self._config
        models = [
            self._deciding(model, most, pairs) if most else self._writing(model, pairs)
            for model, most in zip(config.model, limits, strict=True)
        ]
        by_item = None if self._column is None else partial(self._of_item, limits, pairs)
        fallback = self._fallback(models, limits, pairs)
        return RequestBuilder(models, config.samples, self._decide_by(models, pairs), fallback, self._calibrate, by_item)

    def _of_item(self, limits: Limits, pairs: bool, fields: Mapping[str, Any]) -> RequestBuilder:
        """Return the builder for the rubric of an item. Equal rubrics have one builder."""
        value: Any = fields.get(str(self._column))
        if self._usual is not None and is_absent("reference", value):  # which holds for a blank text too
            value = self._usual
        elif is_absent("rubric", value):
            has = "has no value" if self._column in fields else "is missing"
            raise ConfigError(f"the item has no rubric: its field {self._column!r} {has}, and the judge has no rubric for such items")
        if hasattr(value, "tolist"):
            value = value.tolist()
        key = value if isinstance(value, str) else encoded(value.settings() if isinstance(value, Rubric) else value)
        with self._lock:
            found = self._of_value.get(key)
        if found is None:
            try:
                rubric = rubric_of_item(value)
            except BadRequest as error:
                raise BadRequest(f"the rubric in {self._column!r} is wrong: {error}") from None
            with self._lock:
                same = encoded(rubric.settings())
                found = self._of_value[key] = self._of_rubric[same] = self._of_rubric.get(same) or self._with(rubric)
                for known in (self._of_value, self._of_rubric):
                    if len(known) > MOST_RUBRICS:
                        del known[next(iter(known))]
        return found.get(limits, pairs=pairs)

    def _with(self, rubric: Rubric) -> Builders:
        """Return builders with this rubric, which share the prompts and what is known of the models."""
        other = copy(self)
        other._config, other._column, other._made = self._config.model_copy(update={"rubric": rubric}), None, {}
        return other

    def _decide_by(self, models: Sequence[ModelQuestions], pairs: bool) -> DecideItem:
        config = self._config
        if pairs:
            return partial(aggregate_comparisons, how=config.settle)
        if config.rubric is None:
            ends = self._parser.ends
            return partial(aggregate_scores, how=config.settle, width=None if ends is None else ends[1] - ends[0])
        sizes = tuple(len(questions) for _, questions in models for _ in range(config.samples))
        return partial(aggregate_rubrics, how=config.settle, rubric=config.rubric, sizes=sizes, bounds=config.range or (0.0, 1.0))

    def _fallback(self, models: Sequence[ModelQuestions], limits: Limits, pairs: bool) -> RequestBuilder | None:
        """Return the builder of written requests for models that may give no probabilities, with the method ``auto``. Returns None if there
        is no such model, or if it would need another number of requests for written answers."""
        undetermined = [most for model, most in zip(self._config.model, limits, strict=True) if most and not self.autos[model].works]
        if self._config.method != "auto" or not undetermined:
            return None
        others = [
            self._writing(model, pairs) if most else written
            for model, most, written in zip(self._config.model, limits, models, strict=True)
        ]
        if any(len(one.questions) != len(other.questions) for one, other in zip(models, others, strict=True)):
            return None
        return RequestBuilder(others, self._config.samples, self._decide_by(others, pairs))

    def _prompt(self, pairs: bool, *, apart: bool) -> ItemPrompt:
        if (pairs, apart) not in self._prompts:
            prompt = self._given["pair_prompt" if pairs else "prompt"]
            shows = self._config.rubric is None and shown_in(prompt, pairs=pairs) is not None
            self._prompts[pairs, apart] = ItemPrompt(prompt, self._config, pairs=pairs, apart=apart, shows=shows)
        return self._prompts[pairs, apart]

    def _writing(self, model: str, pairs: bool) -> ModelQuestions:
        config, form = self._config, self._formats[model]
        if pairs:
            parser = VerdictParser(PreferenceVerdict, form=self._given["pair_answer"])
            prompt = self._prompt(True, apart=False)
            question = WritingModel(model, parser, config, form, config.rubric, told=prompt.tells)
            return ModelQuestions(prompt, (question,))
        if config.rubric is None:
            prompt = self._prompt(False, apart=False)
            return ModelQuestions(prompt, (WritingModel(model, self._parser, config, form, told=prompt.tells),))
        questions = tuple(WritingModel(model, parser_of(each), config, form, each) for each in config.rubric.criteria)
        return ModelQuestions(self._prompt(False, apart=True), questions)

    def _deciding(self, model: str, most: int, pairs: bool) -> ModelQuestions:
        """Return the questions for decisions. The criteria of a rubric are divided evenly into as few requests as the servers allow."""
        config, auto = self._config, self.autos[model] if self._config.method == "auto" else None
        subjects: list[SingleQuestion | Sequence[Criterion]]
        if pairs:
            subjects = [preference_question(built_in=self._given["pair_prompt"] is None, rubric=config.rubric)]
        elif config.rubric is None:
            subjects = [self._point] if self._point is not None else []
        else:
            subjects = [*evenly(config.rubric.criteria, most)]
        questions = [DecidingModel(model, each, config, self._decide, auto) for each in subjects]
        return ModelQuestions(self._prompt(pairs, apart=True), questions)
