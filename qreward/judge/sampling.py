"""One request of a judge until its vote or error: what is sent, how an answer is evaluated, when the request is sent again.

Pure: it decides from the outcome of a request what comes next. ``singleflight`` and ``runner`` do the sending.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import ChatAnswer
from qreward.codecs.finish_reason import LENGTH
from qreward.errors import BadRequest, ConfigError, InvalidResponse, QRewardError
from qreward.judge.config import JudgeConfig, ResponseFormat
from qreward.judge.parsing import Unreadable
from qreward.judge.prompts import Messages
from qreward.judge.reply import ModelReply, hear
from qreward.judge.response_format import JUDGE, Formats
from qreward.judge.types import Vote
from qreward.judge.verdict_parser import ScoreFunctionError, VerdictParser
from qreward.options import preparer
from qreward.results import AttemptRecord, Usage, with_trail
from qreward.scheduler.outcome import Answer
from qreward.scheduler.state import Source, Task
from qreward.transport.error_mapping import one_line

SHOWN = 200
"""Characters of an unreadable answer in its error message."""
SENT_BACK = 4000
"""Characters of an unreadable answer that are sent back to the model: its end, where the verdict is."""


class JudgeModel:
    """One model of a judge.

    Args:
        model: name of the model.
        form: parser of its answers.
        config: response format, repeated requests and parameters of each request. A ``seed`` is increased by one for each sample, so
            that samples differ.

    Attributes:
        cached_as: name of the model in the cache, including the namespace.

    Raises:
        ConfigError: the parameters cannot be sent.
    """

    def __init__(self, model: str, form: VerdictParser, config: JudgeConfig) -> None:
        self.model, self.form, self.reasks = model, form, config.reasks
        self.cached_as = json.dumps([config.cache_namespace, model])
        self.formats = Formats(config.response_format, form.schema, form.model.__name__)
        self._headers, self._body = config.params.get("extra_headers"), config.params.get("extra_body")
        self._params = {name: value for name, value in config.params.items() if name not in ("extra_headers", "extra_body", "hedge")}
        seed = self._params.get("seed")
        self._seed = seed if isinstance(seed, int) else None
        self._prepare: dict[tuple[ResponseFormat, int], Callable[[Any], WireRequest]] = {}
        try:
            self.prepare(self.formats.current, 0)
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    def prepare(self, form: ResponseFormat, sample: int) -> Callable[[Any], WireRequest]:
        """The function that makes a request from messages. Raises ``ConfigError`` or ``BadRequest`` for invalid parameters."""
        key = form, sample if self._seed is not None else 0
        found = self._prepare.get(key)
        if found is None:
            seed = {} if self._seed is None else {"seed": self._seed + sample}
            params = {**self.formats.params(form), **self._params, **seed}
            found = preparer(JUDGE, self.model, params, self._headers, self._body)
            self._prepare[key] = found
        return found


class SampleRequest:
    """One sample of one model for one item, until there is a vote or a final error. It may take several requests.

    Args:
        juror: the judge model.
        messages: the messages to send.
        sample: number of the sample, from 0.
        swapped: the responses of a pair are shown in reverse order, so the model's score is that of the second.

    Attributes:
        usage: tokens of all answers; None if no server reported usage.
        trail: the failed attempts, oldest first.
        endpoint: name of the endpoint that answered or failed last.
        heard: the last answer; None before the first.
        error: the last error.
    """

    __slots__ = (
        "_answers", "_cut", "_form", "_judge_model", "_messages", "_reasks", "_sample", "_swapped", "endpoint", "error", "heard", "trail",
        "usage",
    )  # fmt: skip

    def __init__(self, judge_model: JudgeModel, messages: Messages, sample: int = 0, *, swapped: bool = False) -> None:
        self._judge_model, self._messages, self._sample, self._swapped = judge_model, messages, sample, swapped
        self.heard: ModelReply | None = None
        self.error: QRewardError | None = None
        self._reasks = judge_model.reasks
        self._form = judge_model.formats.current
        self._answers = 0
        self._cut = False
        self.usage: Usage | None = None
        self.trail: tuple[AttemptRecord, ...] = ()
        self.endpoint: str | None = None

    def call(self) -> WireRequest:
        """The next request, in the response format that is used now."""
        self._form = self._judge_model.formats.current
        return self._judge_model.prepare(self._form, self._sample)(self._messages)

    def is_stale(self) -> bool:
        """True if the response format for this model has changed since the request was created."""
        return self._form != self._judge_model.formats.current

    def hear(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> Vote | QRewardError | None:
        """Evaluate the outcome of a request.

        Args:
            outcome: the answer, or the error of the last attempt.
            source: the endpoint that answered.
            seconds: latency of the answer; recorded in ``trail`` if it cannot be parsed.

        Returns:
            A vote, a final error, or None if the request is to be sent again.
        """
        if task.trail:
            self.trail += tuple(task.trail)
            self.endpoint = self.trail[-1].endpoint
        if not isinstance(outcome, Answer):
            self.error = with_trail(outcome, self.trail)
            return None if self._judge_model.formats.fall_back(self._form, outcome, self._judge_model.model) else self.error
        assert source is not None
        self.endpoint = source.name
        answer: ChatAnswer = outcome.value
        self._answers += 1
        self.usage = added(self.usage, answer.usage)
        heard = self.heard = hear(answer)
        try:
            return self.vote(heard)
        except Unreadable as error:
            return self._unread(heard, error.why, answer.usage, seconds)
        except ScoreFunctionError as error:
            return self._users(str(error), error.__cause__)
        except (KeyboardInterrupt, SystemExit):  # they must end the event loop
            raise
        except BaseException as error:  # the user's own model
            return self._users(f"reading as {self._judge_model.form.model.__name__} raised {type(error).__name__}: {error}", error)

    def vote(self, heard: ModelReply) -> Vote:
        """The answer as a vote. Raises ``Unreadable``, and whatever the user's own code raises."""
        score, verdict = self._judge_model.form.read(heard)
        return Vote(1 - score if self._swapped else score, verdict, heard.text, self._judge_model.model, self._swapped)

    def _unread(self, heard: ModelReply, why: str, usage: Usage | None, seconds: float) -> QRewardError | None:
        tokens = "" if usage is None or usage.total_tokens is None else f" ({usage.total_tokens} tokens)"
        self.trail += (AttemptRecord(self.endpoint or "", "unreadable", seconds, 200, why + tokens),)
        hopeless = heard.ending == LENGTH and self._cut
        self._cut = self._cut or heard.ending == LENGTH
        self.error = self._failed(why, heard)
        if self._reasks <= 0 or hopeless:
            return self.error
        self._reasks -= 1
        self._messages = asked_again(self._messages, heard, why, self._judge_model.form.instruction)
        return None

    def _users(self, why: str, cause: BaseException | None) -> InvalidResponse:
        """The error for the user's own code that failed on an answer. Another request would not help."""
        model = self._judge_model.model
        error = InvalidResponse(
            f"{why}; the answer of model {model!r} could be read, the fault is in your code (see __cause__)",
            endpoint=self.endpoint,
            model=model,
        )
        error.attempts = self.trail
        error.__cause__ = cause
        return error

    def _failed(self, why: str, heard: ModelReply) -> InvalidResponse:
        model, times = self._judge_model.model, "" if self._answers == 1 else f" in {self._answers} answers"
        error = InvalidResponse(
            f"no verdict could be read from model {model!r}{times}: {why}{_beginning(heard)}", endpoint=self.endpoint, model=model
        )
        error.attempts = self.trail
        return error


def _beginning(heard: ModelReply) -> str:
    text = one_line(heard.refusal or heard.text)
    if not text:
        return "; the answer is empty"
    return f"; the answer begins: {text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}"


def asked_again(messages: Messages, heard: ModelReply, why: str, instruction: str) -> Messages:
    """The messages of a repeated request, after an answer that could not be parsed.

    The conversation continues with the answer and the reason why it was rejected. The model can then correct the form of its own answer.
    This succeeds more often than a new sample, also at temperature 0, and the server can reuse its prefix cache. An answer that is empty,
    refused or incomplete leaves nothing to correct: the original messages are sent again, with a note at the end of the last one.
    """
    if heard.whole and not heard.refusal and heard.text.strip():
        word = f"This answer cannot be read: {why}. Give your verdict again. {instruction}"
        return [*messages, {"role": "assistant", "content": heard.text[-SENT_BACK:]}, {"role": "user", "content": word}]
    return noted(messages, f"(An earlier answer could not be used: {why}. Be brief. {instruction})")


def noted(messages: Messages, note: str) -> Messages:
    """The messages with a note: appended to the last message, or as a new one if the last is not a user message."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": note}]
    more = f"{content}\n\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    return [*messages[:-1], {**last, "content": more}]


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """The sum of two usages."""
    if one is None or other is None:
        return other if one is None else one
    pairs = zip(
        (one.prompt_tokens, one.completion_tokens, one.total_tokens),
        (other.prompt_tokens, other.completion_tokens, other.total_tokens),
        strict=True,
    )
    return Usage(*(a if b is None else b if a is None else a + b for a, b in pairs))
