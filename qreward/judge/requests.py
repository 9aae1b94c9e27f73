"""What a judge asks about an item, and the requests for it: one for each model, question, sample, and order of a pair. This module must not
send anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from hashlib import blake2b
from itertools import product
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, create_model

from qreward.codecs.chat import CHAT
from qreward.codecs.decisions import DecisionCodec
from qreward.deciding import evenly
from qreward.decisions import Choice, Option, Score, YesNo
from qreward.errors import BadRequest, ConfigError
from qreward.judge import prompts
from qreward.judge.aggregation import Aggregate, Decide, aggregate_comparisons, aggregate_rubrics, aggregate_scores
from qreward.judge.calls import AnswerFormat, DecidedQuestion, JudgeCall, SingleQuestion, WrittenQuestion, encoded, noted
from qreward.judge.config import JudgeConfig, is_of_preset
from qreward.judge.loop import Invalid, ItemCalls
from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, VerdictParser, YesNoVerdict
from qreward.judge.parsing.forms import shown_in
from qreward.judge.prompts import Messages, Prompt
from qreward.judge.rubric import Criterion, Rubric, rubric_of_item
from qreward.judge.types import Comparison, Preference, Verdict
from qreward.results import Usage
from qreward.scheduler.pool import Pool

ANSWER_FORM = "answer_form"
"""The placeholder of a template that is replaced by the question and the description of how to answer."""
POINT_NAMES = ("prompt", "response", "reference")
PAIR_NAMES = ("prompt", "first", "second", "reference")


def fields_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any]:
    """Return an item as a mapping of fields. A tuple holds the values of ``names``; the last value may be left out. Raises
    ``ConfigError``."""
    if isinstance(item, Mapping):
        if missing := [name for name in names[:-1] if name not in item]:
            raise ConfigError(f"the item has no {missing[0]!r}: it has {', '.join(map(repr, item)) or 'nothing'}")
        return item
    if prompts.is_conversation(item):
        raise ConfigError("an item is not a conversation: give (messages, response), with the response apart from the messages before it")
    if isinstance(item, tuple | list) and len(names) - 1 <= len(item) <= len(names):
        return dict(zip(names, item, strict=False))
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


class ItemPrompt(Prompt):
    """The prompt of a judge. With ``apart``, each request has a question of its own at the end."""

    def __init__(self, config: JudgeConfig, given: Mapping[str, Any], *, pairs: bool, apart: bool) -> None:
        names, what = (PAIR_NAMES, "pair_prompt") if pairs else (POINT_NAMES, "prompt")
        prompt = given[what]
        says = config.response_format == "none" or is_of_preset(prompt, given["answer"]) or shown_in(prompt, pairs=pairs) is not None
        super().__init__(
            partial(prompts.built_in, pairs=pairs, asks=not apart) if prompt is None else prompt,
            config.system,
            needed=names[:-1] if prompt is None else names[1:-1],  # built-in prompts also need the task
            known=None if callable(prompt) else (*names, *filter(None, [config.rubric_column])),
            what=what,
        )
        self.has_place = ANSWER_FORM in self.names
        self.appends = not self.has_place and (apart or prompt is None or config.has_criteria or not says)
        self.tells = self.has_place or self.appends  # how to answer, in the words of the judge


Questions = Sequence[WrittenQuestion | DecidedQuestion]


class ItemQuestions(NamedTuple):
    """What all items with the same rubric are asked. ``models`` has for each model its prompt and its questions, one request each.
    ``decide`` aggregates the answers. ``grouped`` is True if a model has several questions."""

    models: Sequence[tuple[ItemPrompt, Questions]]
    decide: Decide
    grouped: bool


WRITING_ONLY = frozenset({
    "frequency_penalty", "logprobs", "max_completion_tokens", "max_tokens", "min_p", "min_tokens", "n", "presence_penalty",
    "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop", "temperature", "top_k", "top_logprobs", "top_p",
})  # fmt: skip
"""Parameters that have no effect on a decision."""
MOST_RUBRICS = 1024
"""Number of rubrics of items, in all their spellings, whose requests are kept."""
_ANY = Rubric([Criterion("any", "It meets the criterion.")])  # the settings of a judge whose items have rubrics are checked with it

QuestionLimits = tuple[int, ...]
"""For each model, the largest number of questions in a request for decisions; 0 for a model that answers in writing."""


class RequestBuilder:
    """Makes the calls for the items of one judge: single responses or ``pairs``. It keeps the prompts, and what items are asked.

    The HTTP request of a call is made when the call is sent, by ``request`` of its question.
    """

    def __init__(
        self,
        config: JudgeConfig,
        given: dict[str, Any],
        parser: VerdictParser,
        decide: DecisionCodec,
        calibrate: Callable[[float], float] | None = None,
    ) -> None:
        self._config, self._parser, self._calibrate, self._given, self._decide = config, parser, calibrate, given, decide
        self._formats = {model: AnswerFormat(config.response_format) for model in config.model}
        self._prompt: Callable[..., ItemPrompt] = cache(partial(ItemPrompt, config, given))
        usual = config.rubric or (_ANY if config.rubric_column else None)  # the rubric of an item that has none of its own
        self._usual: Callable[..., ItemQuestions] = cache(partial(self._make, usual))
        self._of_rubric: dict[tuple[QuestionLimits, bool, str | bytes], ItemQuestions] = {}  # by a rubric as an item has it, or as settings
        self.written: QuestionLimits = (0,) * len(config.model)
        self.checked: QuestionLimits = self.written if config.method == "write" else (1,) * len(config.model)  # without asking the servers
        is_one = config.method != "write" and not config.has_criteria
        if is_one and given["score"] is not None:
            raise ConfigError("score is a function of a written verdict, which a decision does not have; use a rubric, or method='write'")
        built_in = given["prompt"] is None
        self._point = question_of(given["verdict"], parser.scale, config.range, built_in=built_in) if is_one else None
        if config.method == "decide" and (unused := sorted(WRITING_ONLY & config.params.keys())):
            raise ConfigError(f"{unused[0]} has no effect with method='decide', as nothing is written; leave it out, or use method='write'")
        if config.method != "write":
            self._usual((1,) * len(config.model), pairs=False)
        if config.method != "decide":
            self._usual(self.written, pairs=False)
        if given["pair_prompt"] is not None:
            self._usual(self.written, pairs=True)  # so that an invalid pair_prompt raises now

    def counts(self, pools: Iterable[Pool], limits: QuestionLimits, *, pairs: bool) -> dict[Pool, int | None]:
        """Return the number of calls for an item by the pools of the models; None if items have rubrics of their own."""
        counts: dict[Pool, int | None] = {}
        for pool, (_, questions) in zip(pools, self._usual(limits, pairs=pairs).models, strict=True):
            calls = (counts.get(pool) or 0) + len(questions) * self._config.samples * (2 if pairs else 1)
            counts[pool] = None if self._config.rubric_column else calls
        return counts

    def item(
        self, fields: Mapping[str, Any], extra: Mapping[str, Any] | None = None, *, limits: QuestionLimits, pairs: bool, strict: bool = True
    ) -> ItemCalls:
        """Make the calls for an item. ``strict`` refuses fields that no template names."""
        column = self._config.rubric_column
        asked = self._usual(limits, pairs=pairs) if column is None else self._of_item(fields, column, limits, pairs=pairs)
        group = None
        if asked.grouped:
            group = tuple(blake2b(encoded(each), digest_size=16).digest() for each in (fields.get("prompt"), fields))
        orders = [fields, {**fields, "first": fields["second"], "second": fields["first"]}] if pairs else [fields]
        calls: list[JudgeCall] = []
        for prompt, questions in asked.models:
            bases = [[] if prompt.has_place else CHAT.validate(prompt.messages(shown, extra=not strict)) for shown in orders]
            made: dict[tuple[str, int], tuple[Messages, bytes]] = {}  # messages that several requests share are made once
            for sample, question, order in product(range(self._config.samples), questions, range(len(orders))):
                words = question.words
                if (words, order) not in made:
                    messages = bases[order]
                    if prompt.has_place:
                        messages = CHAT.validate(prompt.messages({**orders[order], ANSWER_FORM: words}, extra=not strict))
                    elif words and prompt.appends:
                        messages = noted(messages, words)
                    made[words, order] = messages, blake2b(encoded(messages), digest_size=16).digest()
                messages, digest = made[words, order]
                inputs = messages if question.input_of is None else question.input_of(messages)
                key = blake2b(question.identity + sample.to_bytes(4, "big") + digest, digest_size=16).digest()
                calls.append(JudgeCall(question, inputs, key, sample, order > 0, question.reasks, group))
        return ItemCalls(calls, asked.decide, self._comparison if pairs else self._verdict, extra)

    def _verdict(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Verdict:
        score, calibrate = decided.score, self._calibrate
        calibrated = score if calibrate is None else calibrate(score)
        return Verdict(calibrated, decided.votes, None, usage, cached, decided.confidence, calibrated=calibrate is not None)

    def _comparison(self, decided: Aggregate, usage: Usage | None, *, cached: bool) -> Comparison:
        preference: Preference = "first" if decided.score > 0.5 else "second" if decided.score < 0.5 else "tie"
        return Comparison(preference, decided.score, decided.votes, usage, cached, decided.confidence)

    def _of_item(self, fields: Mapping[str, Any], column: str, limits: QuestionLimits, *, pairs: bool) -> ItemQuestions:
        """Return what an item is asked, by the rubric in its field."""
        value: Any = fields.get(column)
        if self._config.rubric is not None and prompts.is_absent("reference", value):  # which holds for a blank text too
            return self._usual(limits, pairs=pairs)
        if prompts.is_absent("rubric", value):
            has = "has no value" if column in fields else "is missing"
            raise ConfigError(f"the item has no rubric: its field {column!r} {has}, and the judge has no rubric for such items")
        if hasattr(value, "tolist"):
            value = value.tolist()
        key = value if isinstance(value, str) else encoded(value.settings() if isinstance(value, Rubric) else value)
        found = self._of_rubric.get((limits, pairs, key))
        if found is None:
            try:
                rubric = rubric_of_item(value)
            except BadRequest as error:
                raise BadRequest(f"the rubric in {column!r} is wrong: {error}") from None
            same = encoded(rubric.settings())
            found = self._of_rubric.get((limits, pairs, same)) or self._make(rubric, limits, pairs=pairs)
            while len(self._of_rubric) >= MOST_RUBRICS:
                self._of_rubric.pop(next(iter(tuple(self._of_rubric))), None)  # another thread may change it meanwhile
            self._of_rubric[limits, pairs, key] = self._of_rubric[limits, pairs, same] = found
        return found

    def _make(self, rubric: Rubric | None, limits: QuestionLimits, *, pairs: bool) -> ItemQuestions:
        config, ends = self._config, self._parser.ends
        made = [self._questions(model, most, rubric, pairs=pairs) for model, most in zip(config.model, limits, strict=True)]
        decide: Decide
        if pairs:
            decide = partial(aggregate_comparisons, how=config.settle)
        elif rubric is None:
            decide = partial(aggregate_scores, how=config.settle, width=None if ends is None else ends[1] - ends[0])
        else:
            sizes = tuple(len(questions) for _, questions in made for _ in range(config.samples))
            bounds = config.range or (0.0, 1.0)
            decide = partial(aggregate_rubrics, how=config.settle, rubric=rubric, sizes=sizes, bounds=bounds)
        return ItemQuestions(made, decide, any(len(questions) > 1 for _, questions in made))

    def _questions(self, model: str, most: int, rubric: Rubric | None, *, pairs: bool) -> tuple[ItemPrompt, Questions]:
        """Return the prompt and the questions for one model. The criteria of a rubric are questions of their own, which are divided evenly
        into requests with at most ``most`` decisions."""
        config, given, answer_format = self._config, self._given, self._formats[model]
        apart = bool(most) or not (rubric is None or pairs)
        prompt = self._prompt(pairs=pairs, apart=apart)
        if not apart:
            parser = VerdictParser(PreferenceVerdict, form=given["pair_answer"]) if pairs else self._parser
            return prompt, [WrittenQuestion(model, parser, config, answer_format, rubric, told=prompt.tells)]
        if rubric is not None and not most:
            return prompt, [WrittenQuestion(model, parser_of(each), config, answer_format, each) for each in rubric.criteria]
        subjects: Sequence[Any]
        if pairs:
            subjects = [preference_question(built_in=given["pair_prompt"] is None, rubric=rubric)]
        else:
            subjects = [self._point] if rubric is None else evenly(rubric.criteria, most)
        return prompt, [DecidedQuestion(model, each, config, self._decide) for each in subjects]


def parser_of(criterion: Criterion) -> VerdictParser:
    """Return the parser of written answers to a criterion, whose scores are from 0 to 1."""
    return _parser_of(len(criterion.levels or ()), () if criterion.choices is None else tuple(criterion.option_values))


@lru_cache(maxsize=256)
def _parser_of(levels: int, options: tuple[float, ...]) -> VerdictParser:
    if levels:
        return VerdictParser(ScoreVerdict, scale=(0.0, levels - 1.0))
    if not options:
        return VerdictParser(YesNoVerdict)
    values = dict(zip(ascii_uppercase, options, strict=False))
    return VerdictParser(_choice_verdict(len(values)), score=lambda verdict: values[verdict.choice])


@lru_cache(maxsize=32)
def _choice_verdict(count: int) -> type[BaseModel]:
    """Return the model of a choice. It is written as a letter, because labels may be long, or differ only in upper and lower case."""
    letters: Any = Literal[tuple(ascii_uppercase[:count])]
    fields: Any = {"reason": (str, Field(default="", description="why, in a few sentences")), "choice": (letters, ...)}
    return create_model(f"ChoiceOf{count}", __doc__="One of the options, and why.", **fields)


LEVELS = 10
"""Maximum number of levels of a ``Score``. Servers do not accept more levels, and chat models answer with one digit."""
MOST_SCORES = 20
"""Maximum number of scores of a scale. Every model accepts a ``Choice`` with this number of options."""


def question_of(verdict: type[Any], scale: tuple[float, float], bounds: tuple[float, float] | None, *, built_in: bool) -> SingleQuestion:
    if verdict is YesNoVerdict:
        low, high = bounds or (0.0, 1.0)
        text = "The candidate answer is a good answer to the task." if built_in else "The verdict on what is asked above is yes."
        return SingleQuestion(YesNo(text), (high, low), (True, False))
    if verdict is not ScoreVerdict:
        raise ConfigError(
            f"a decision has no form for the verdict {verdict.__name__}; use ScoreVerdict or YesNoVerdict (in settings score or yes_no), "
            "a rubric, or method='write'"
        )
    first, last = scale
    if not (first.is_integer() and last.is_integer() and last - first < MOST_SCORES):
        count = f"{last - first + 1:g} scores" if first.is_integer() and last.is_integer() else "an end that is not a whole number"
        raise ConfigError(
            f"a decision needs a scale of at most {MOST_SCORES} whole numbers, and scale=({first:g}, {last:g}) has {count}; "
            "set scale to (1, 5) or (0, 10), use a rubric, or method='write'"
        )
    names = tuple(str(number) for number in range(int(first), int(last) + 1))
    subject = "How good is the candidate answer to the task?" if built_in else "What is the score that is asked for above?"
    low, high = bounds or scale
    steps = len(names) - 1
    rewards = tuple(low + (high - low) * (place / steps) for place in range(steps + 1))
    if (built_in or first == 0) and steps < LEVELS:
        places = tuple(map(str, range(steps + 1)))
        return SingleQuestion(Score(f"{subject} 0 is the lowest level, {steps} the highest.", places), rewards, names)
    return SingleQuestion(Choice(f"{subject} {names[0]} is the lowest score, {names[-1]} the highest.", names), rewards, names)


def preference_question(*, built_in: bool, rubric: Rubric | None) -> SingleQuestion:
    """Return the question that compares a pair. The prompt shows the responses as A and B."""
    subject = (
        "Which answer to the task is better? Their order means nothing." if built_in else "Which one is better, by what is asked above?"
    )
    if rubric is not None:
        subject = f"{subject}\n{rubric.in_words()}"
    choices: dict[Option, str] = {"A": "A is better", "B": "B is better", "tie": "both are equally good"}
    return SingleQuestion(Choice(subject, choices), (1.0, 0.0, 0.5), ("first", "second", "tie"))
