"""A backend that answers decisions, as OpenAI does or as a chat model with log probabilities, and writes verdicts. On virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from math import log
from typing import Any, NamedTuple

from judge_tools import answer, client_of, endpoint
from leftovers import leftovers
from msgspec.structs import replace

from qreward import Endpoint
from qreward.codecs.base import Malformed
from qreward.codecs.decisions import DecisionCodec, as_text, labels_of
from qreward.decisions import Question, Score, YesNo
from qreward.errors import BadRequest, InvalidResponse
from qreward.judge import Criterion, Judge, Rubric
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.testing.virtual_time import run_in_virtual_time

TEN = Rubric([Criterion(f"c{number}", f"It meets condition {number}.") for number in range(10)])
MIXED = Rubric(
    [
        Criterion("right", "It is right.", weight=3),
        Criterion("clear", "How clear is it?", levels=["bad", "fair", "good"]),
        Criterion("tone", "What is the tone?", choices={"calm": 1.0, "dry": 0.5, "rude": 0.0}),
        Criterion("rude", "It insults.", weight=-1),
    ]
)

Says = Callable[[Question, str], Any]
"""From a question and the input to its probabilities, ``(probabilities, label mass)``, None for a refusal, or a whole row as a dict."""


class Asked(NamedTuple):
    """A request for decisions or for a written verdict."""

    endpoint: str
    path: str
    at: float
    input: Any
    questions: tuple[Question, ...]
    body: dict[str, Any]
    group: Any
    headers: Any

    @property
    def text(self) -> str:
        """The input as one text; of a written verdict all messages."""
        return self.input if isinstance(self.input, str) else as_text(self.input)


def by_text(numbers: dict[str, Any], default: Any = (1.0, 0.0)) -> Says:
    """The numbers under the instructions of a question, else the default."""
    return lambda question, _text: numbers.get(question.instructions, default)


def always(numbers: Any) -> Says:
    return lambda _question, _text: numbers


class DecisionBackend:
    """Notes what it is asked. ``writes`` is the text of a written answer; it and ``logprobs`` may be functions of the request."""

    def __init__(self, says: Says, writes: Any = "", seconds: float = 1.0, logprobs: Any = True) -> None:
        self._says, self._writes, self._seconds, self._logprobs = says, writes, seconds, logprobs
        self.sent: list[Asked] = []
        self.cancelled = 0

    async def send(self, endpoint: Endpoint, call: Any) -> Any:
        codec = call.codec.dialect_at(endpoint, call.model) if isinstance(call.codec, DecisionCodec) else call.codec
        call, path = replace(call, codec=codec), codec.path
        try:
            body = json.loads(call.codec.encode(call, call.model))
        except BadRequest as error:  # as ``HttpBackend`` does
            return Failure(FailureKind.UNSUITABLE, error)
        decides = hasattr(call.inputs, "questions")
        questions: tuple[Question, ...] = call.inputs.questions if decides else ()
        given = call.inputs.input if decides else "\n\n".join(str(message["content"]) for message in call.inputs)
        at = round(asyncio.get_running_loop().time(), 3)
        asked = Asked(str(endpoint.name), path, at, given, questions, body, call.group, call.headers)
        self.sent.append(asked)
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if not decides:
            written = self._writes(asked) if callable(self._writes) else self._writes
            return written if isinstance(written, Failure) else Answer(call.codec.decode(answer(written), call), 10, 5)
        rows: list[Any] = [self._says(question, asked.text) for question in questions]
        if failure := next((row for row in rows if isinstance(row, Failure)), None):
            return failure
        logprobs = self._logprobs(asked) if callable(self._logprobs) else self._logprobs
        reply = chat_reply(questions[0], rows[0], logprobs) if path == "/chat/completions" else openai_reply(questions, rows)
        try:
            return Answer(call.codec.decode(reply, call), 10, len(rows))
        except Malformed as error:
            return Failure(FailureKind.TRANSIENT, InvalidResponse(str(error)))

    async def aclose(self) -> None:
        """Nothing is open."""


def openai_reply(questions: Sequence[Question], rows: Sequence[Any], model: str = "m") -> bytes:
    answers = [row if isinstance(row, dict) else _row(question, row) for question, row in zip(questions, rows, strict=True)]
    usage = {"input_tokens": 10, "output_tokens": len(rows), "total_tokens": 10 + len(rows)}
    return json.dumps({"id": "d", "object": "decision", "model": model, "answers": answers, "usage": usage}).encode()


def _row(question: Question, row: Any) -> dict[str, Any]:
    if row is None:
        return {"type": "refusal", "refusal": "I would rather not."}
    if isinstance(question, YesNo):
        return {"type": "predicate", "probability": row[0]}
    values = range(len(row)) if isinstance(question, Score) else question.options
    numbers = [{"value": value, "probability": number} for value, number in zip(values, row, strict=True)]
    shared = {"probabilities": numbers, "confidence": max(row)}
    return {"type": "score", "score": 0.0, **shared} if isinstance(question, Score) else {"type": "choice", "choice": "", **shared}


def chat_reply(question: Question, row: Any, logprobs: bool) -> bytes:
    """``row`` are the probabilities, or the probabilities and the label mass."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "?"}}
    if row is None:
        choice["message"]["refusal"] = "I would rather not."
    elif logprobs:
        numbers, mass = row if isinstance(row[0], tuple) else (row, 1.0)
        found = {label: number * mass for label, number in zip(labels_of(question), numbers, strict=True)} | {"Well": 1.0 - mass}
        top = [{"token": token, "logprob": log(number)} for token, number in found.items() if number > 0]
        choice["logprobs"] = {"content": [{**max(top, key=lambda each: each["logprob"]), "top_logprobs": top}]}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}).encode()


def deciding(backend: DecisionBackend, use: Callable[[Judge], Any], dialect: str = "openai", **settings: Any) -> Any:
    """Run one use of a judge whose endpoint speaks a dialect."""

    async def run() -> Any:
        async with client_of(backend, endpoint("a", 64, decisions=dialect)) as client:
            judge = Judge(client, **{"model": "judge-7b", "method": "decide", **settings})
            try:
                return await use(judge)
            finally:
                assert leftovers(client, judge) == {}

    return run_in_virtual_time(run())
