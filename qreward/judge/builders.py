"""Makes the ``RequestBuilder`` of a judge from its settings: for single responses or pairs, written or decided, with a rubric or without.

Sends nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from qreward.codecs.decisions.operation import Decide
from qreward.deciding.parts import evenly
from qreward.errors import ConfigError
from qreward.judge.config import JudgeConfig
from qreward.judge.deciding import WRITING_ONLY, AutoMethod, DecidingModel, SingleQuestion, preference_question, question_of
from qreward.judge.parsing import PreferenceVerdict
from qreward.judge.requests import ItemPrompt, ModelQuestions, RequestBuilder, by_rubric, compared, scored
from qreward.judge.rubric import Criterion
from qreward.judge.verdict_parser import VerdictParser
from qreward.judge.writing import FormatLadder, WritingModel, criterion_models

Limits = tuple[int, ...]
"""For each model the most questions of a request for decisions; 0 if the model writes."""


class Builders:
    """The request builders of one judge. They are made when they are needed, and kept.

    Args:
        config: the settings.
        given: ``prompt``, ``pair_prompt``, ``verdict`` and ``score`` of the judge.
        parser: parser of a written verdict without a rubric.
        decide: the codec of the client's decisions.
        calibrate: see :class:`~qreward.judge.requests.RequestBuilder`.

    Attributes:
        autos: for each model what is known of its answers, with the method ``auto``.

    Raises:
        ConfigError: a setting is invalid, or does not fit the method or the rubric.
    """

    def __init__(
        self,
        config: JudgeConfig,
        given: dict[str, Any],
        parser: VerdictParser,
        decide: Decide,
        calibrate: Callable[[float], float] | None = None,
    ) -> None:
        self._config, self._given, self._parser, self._decide, self._calibrate = config, given, parser, decide, calibrate
        self.autos = {model: AutoMethod(model) for model in config.model}
        self._ladders = {model: FormatLadder(config) for model in config.model}
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
        """The builder for these limits."""
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
        decide = compared(config) if pairs else scored(config, self._width) if config.rubric is None else by_rubric(config, models)
        return RequestBuilder(models, config.samples, decide, self._instead(models, limits, pairs), self._calibrate)

    def _instead(self, models: Sequence[ModelQuestions], limits: Limits, pairs: bool) -> RequestBuilder | None:
        """The builder of written requests, as long as a model may turn out to give no probabilities."""
        open_ = [most for model, most in zip(self._config.model, limits, strict=True) if most and not self.autos[model].works]
        if self._config.method != "auto" or not open_:
            return None
        others = [
            self._writing(model, pairs) if most else written
            for model, most, written in zip(self._config.model, limits, models, strict=True)
        ]
        if any(len(one.questions) != len(other.questions) for one, other in zip(models, others, strict=True)):
            return None
        return RequestBuilder(others, self._config.samples, compared(self._config))

    @property
    def _width(self) -> float | None:
        """The width of the range of rewards; None if it is not known."""
        ends = self._parser.ends
        return None if ends is None else ends[1] - ends[0]

    def _prompt(self, pairs: bool, *, apart: bool) -> ItemPrompt:
        if (pairs, apart) not in self._prompts:
            self._prompts[pairs, apart] = ItemPrompt(
                self._given["pair_prompt" if pairs else "prompt"], self._config, pairs=pairs, apart=apart
            )
        return self._prompts[pairs, apart]

    def _writing(self, model: str, pairs: bool) -> ModelQuestions:
        config, ladder = self._config, self._ladders[model]
        if pairs:
            question = WritingModel(model, VerdictParser(PreferenceVerdict), config, ladder, config.rubric)
            return ModelQuestions(self._prompt(True, apart=False), (question,))
        if config.rubric is None:
            return ModelQuestions(self._prompt(False, apart=False), (WritingModel(model, self._parser, config, ladder),))
        return ModelQuestions(self._prompt(False, apart=True), criterion_models(model, config.rubric, config, ladder))

    def _deciding(self, model: str, most: int, pairs: bool) -> ModelQuestions:
        """The questions for decisions; those of a rubric in as few requests as the servers of the model allow, of about the same size."""
        config, auto = self._config, self.autos[model] if self._config.method == "auto" else None
        asks: list[SingleQuestion | Sequence[Criterion]]
        if pairs:
            asks = [preference_question(built_in=self._given["pair_prompt"] is None, rubric=config.rubric)]
        elif config.rubric is None:
            asks = [self._point] if self._point is not None else []
        else:
            asks = [*evenly(config.rubric.criteria, most)]
        return ModelQuestions(self._prompt(pairs, apart=True), [DecidingModel(model, each, config, self._decide, auto) for each in asks])
