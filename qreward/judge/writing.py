"""Ask a model to write its verdict: build the request, find the response format that its servers accept, and read the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

from qreward.codecs.base import LENGTH, WireRequest, ending_of, is_failure
from qreward.codecs.error_body import one_line
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.answers import JSON
from qreward.judge.codec import JUDGE, LOG, ModelReply, Reply, encoded, log_unknown, parse_reply, refuses_format
from qreward.judge.config import JudgeConfig, ResponseFormat
from qreward.judge.parsing import ScoreVerdict, YesNoVerdict
from qreward.judge.prompts import Messages
from qreward.judge.rubric import Criterion, Rubric
from qreward.judge.types import CriterionResult, CriterionResults, Vote
from qreward.judge.verdict_parser import VerdictParser
from qreward.options import preparer

SENT_BACK = 4000
"""Maximum number of characters of an unreadable answer, the last ones, that are sent back to the model."""
SHOWN = 200
"""Maximum number of characters of an unreadable answer in an error message."""
MOST_TOKENS = 16_384
"""The limit of tokens up to which a limit is doubled after an answer that was cut off."""
LIMITS = ("max_tokens", "max_completion_tokens")
BUDGETS = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "budget_tokens")
"""The limit of tokens for thinking: Gemini and Qwen, vLLM, llama.cpp, Anthropic. It may be inside other parameters."""
FORMATS: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "none")
"""Response formats, the strictest first. Every server accepts the last format."""


class AnswerFormat:
    """The response format that the servers of a model accept. With ``auto``, it is the next of ``FORMATS`` when a server rejects it."""

    def __init__(self, config: JudgeConfig) -> None:
        self.is_auto = config.response_format == "auto"
        self.format: ResponseFormat = FORMATS[0] if self.is_auto else config.response_format
        self.written: set[str] = set()
        self.was_cut = False

    def reject(self, form: str) -> None:
        if self.format == form:  # otherwise another request has already changed it
            self.format = FORMATS[FORMATS.index(self.format) + 1]


class WritingModel:
    """Asks one model a question that the model answers in writing."""

    def __init__(
        self,
        model: str,
        parser: VerdictParser,
        config: JudgeConfig,
        form: AnswerFormat,
        about: Criterion | Rubric | None = None,
        *,
        told: bool = True,
    ) -> None:
        self.model, self.cached_as = model, json.dumps([config.cache_namespace, model])
        self._again = (parser.instruction if told or parser.form is not JSON else "") or "Answer in the form that was asked for."
        self.reasks, self._parser, self._form = config.reasks, parser, form
        self._accepted = frozenset(map(ending_of, config.finish_reasons)) - {None}
        self._criterion = about if isinstance(about, Criterion) else None
        self.reads = "" if self._criterion is None else self._criterion.reads
        words = about.in_words() if isinstance(about, Rubric) else in_words(about) if about else ""
        self.question = f"{words}\n\n{parser.instruction}" if words else parser.instruction
        schema = {"name": parser.model.__name__, "schema": parser.schema, "strict": True}
        self._formats = {"json_schema": {"type": "json_schema", "json_schema": schema}, "json_object": {"type": "json_object"}}
        self._params = {name: value for name, value in config.params.items() if name not in ("extra_headers", "hedge")}
        declared = [] if parser.form is JSON else [parser.form.name, parser.form.values]
        self.identity = encoded([self.cached_as, config.response_format, self._params, parser.schema, parser.scale, *declared])
        self._headers, self._body = config.params.get("extra_headers"), self._params.pop("extra_body", None)
        merged = {**self._params, **(self._body if isinstance(self._body, Mapping) else {})}
        self._limits = {name: limit for name in LIMITS if type(limit := merged.get(name)) is int and limit > 0}
        self._thinking = _budget_in(merged)
        seed = self._params.get("seed")
        self._seed = seed if isinstance(seed, int) else None
        self._blanks: dict[tuple[str, int, int, int], WireRequest] = {}
        try:
            self.blank(0)
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    @property
    def format(self) -> str:
        return self._form.format if self._parser.form is JSON else FORMATS[-1]

    def input_of(self, messages: Messages) -> Messages:
        return messages

    def criterion_of(self, inputs: Messages) -> str:  # noqa: ARG002 - always the same
        return "" if self._criterion is None else self._criterion.name

    def blank(self, sample: int, room: int = 1, cut_at: int = 0) -> WireRequest:
        """Return a request without messages. A ``seed`` is increased by one for each sample. ``room`` is the factor by which a limit of
        tokens is raised: the user's limit, or ``cut_at`` if the user set none."""
        form = self.format
        key = form, sample if self._seed is not None else 0, room, cut_at if room > 1 else 0
        if key not in self._blanks:
            shape = {"response_format": self._formats[form]} if form in self._formats else {}
            seed = {} if self._seed is None else {"seed": self._seed + sample}
            body, room_for = self._body, {} if room == 1 else self._limits_for(room, cut_at)
            if isinstance(body, Mapping):
                body = {name: value for name, value in body.items() if name not in room_for}
            make = preparer(JUDGE, self.model, {**shape, **self._params, **seed, **room_for}, self._headers, body)
            self._blanks[key] = make([{"role": "user", "content": ""}])
        return self._blanks[key]

    def _limits_for(self, room: int, cut_at: int) -> dict[str, int]:
        """Return the raised limits of tokens. An answer fits after all the thinking that is allowed."""
        if room == 1:
            return self._limits
        limits = self._limits or ({LIMITS[0]: cut_at} if 0 < cut_at < MOST_TOKENS else {})
        return {name: max(limit, min(max(limit * room, self._thinking + limit * room // 2), MOST_TOKENS)) for name, limit in limits.items()}

    def has_more_room(self, room: int, cut_at: int) -> bool:
        return self._limits_for(2 * room, cut_at) != self._limits_for(room, cut_at)

    def fall_back(self, form: str, error: QRewardError, reply: Reply | None = None) -> bool:
        """Return whether a server rejected this format, so that the request must be sent again in the next one."""
        said = reply is None or reply.text.strip() or reply.reasoning or reply.refusal or not reply.whole
        empty = not said and form not in self._form.written
        if not self._form.is_auto or form == FORMATS[-1] or not (empty or refuses_format(error, self.model)):
            return False
        self._form.reject(form)
        return True

    def parse(self, answer: Any) -> ModelReply:
        """Return the reply, in which an ending that the settings accept counts as ``stop``."""
        reply = parse_reply(answer)
        if reply.text.strip():
            self._form.written.add(self.format)
        if reply.ending == LENGTH and not self._form.was_cut:
            self._form.was_cut = True
            begun = bool(reply.text.strip())
            LOG.warning(
                "an answer of the judge %r was cut off at its token limit%s, so it is not read; it is asked for again with more "
                "room, up to reasks=%d times; raise max_tokens%s",
                self.model,
                "" if begun else " before the verdict began",
                self.reasks,
                "" if begun else ", or limit the thinking of the model",
            )
        if reply.ending in self._accepted:
            return reply._replace(ending="stop")
        if not (reply.whole or reply.ending == LENGTH or is_failure(reply.ending)):
            log_unknown(str(reply.ending))
        return reply

    def vote(self, reply: Reply, *, swapped: bool) -> Vote:
        assert isinstance(reply, ModelReply)
        score, verdict = self._parser.read(reply)
        if (each := self._criterion) is None:
            return Vote(1 - score if swapped else score, verdict, reply.text, self.model, swapped)
        reason = getattr(verdict, "reason", None) or None
        result = CriterionResult(score, each.weight, text=reply.text, gate=each.gate, reason=reason)
        return Vote(score, verdict, reply.text, self.model, criteria=CriterionResults({each.name: result}))

    def repeated(self, inputs: Messages, reply: Reply, reason: str) -> Messages:
        reason, form = reason.rstrip("."), self._again
        if reply.whole and not reply.refusal and reply.text.strip():
            note = f"This answer cannot be read: {reason}. Give your verdict again. {form}"
            return [*inputs, {"role": "assistant", "content": reply.text[-SENT_BACK:]}, {"role": "user", "content": note}]
        return noted(inputs, f"(An earlier answer could not be used: {reason}. Be brief. {form})")

    def without_verdict(self, reply: Reply, reason: str, times: str) -> str:
        text = one_line(reply.refusal or reply.text)
        shown = f"the answer begins: {text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}" if text else "the answer is empty"
        return f"no verdict could be read from model {self.model!r}{times}: {reason}; {shown}"


def _budget_in(params: Mapping[str, Any]) -> int:
    found = [value for name, value in params.items() if name in BUDGETS and type(value) is int]
    return max([0, *found, *(_budget_in(value) for value in params.values() if isinstance(value, Mapping))])


def parser_of(criterion: Criterion) -> VerdictParser:
    """Return the parser of written answers to a criterion, whose scores are from 0 to 1."""
    if criterion.levels is not None:
        return VerdictParser(ScoreVerdict, scale=(0.0, len(criterion.levels) - 1.0))
    if criterion.choices is None:
        return VerdictParser(YesNoVerdict)
    values = dict(zip(ascii_uppercase, criterion.option_values, strict=False))
    return VerdictParser(_choice_verdict(len(values)), score=lambda verdict: values[verdict.choice])


@lru_cache(maxsize=32)
def _choice_verdict(count: int) -> type[BaseModel]:
    """Return the model of a choice. It is written as a letter, because labels may be long, or differ only in upper and lower case."""
    letters: Any = Literal[tuple(ascii_uppercase[:count])]
    fields: Any = {"reason": (str, Field(default="", description="why, in a few sentences")), "choice": (letters, ...)}
    return create_model(f"ChoiceOf{count}", __doc__="One of the options, and why.", **fields)


def in_words(criterion: Criterion) -> str:
    question = criterion.question
    marks = map(str, range(10)) if criterion.levels is not None else ascii_uppercase if criterion.choices is not None else ()
    lines = [
        f"{mark}: {option} ({meaning})" if meaning else f"{mark}: {option}"
        for mark, option, meaning in zip(marks, question.options, question.descriptions, strict=False)
    ]
    return "\n".join([f"Question{'' if lines else ', to be answered yes or no'}: {question.instructions}", *lines])


def noted(messages: Messages, note: str) -> Messages:
    """Return the messages with a note at the end of the last message, or in a new one if the last is not the user's."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": note}]
    more = f"{content}\n\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    return [*messages[:-1], {**last, "content": more}]
