"""``/v1/decisions`` of a fake endpoint, in OpenAI's form. The synthetic judge of the endpoint answers the questions."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from qreward.errors import ConfigError
from qreward.testing.kinds import ErrorResponse, Job, Route, RouteCall
from qreward.testing.synthetic_judge import Asked, JudgeRead
from qreward.testing.text import canonical, count_tokens, encode, text_of


class DecisionCall(NamedTuple):
    model: str | None
    input: str
    asked: Sequence[Asked]
    answer: Callable[[list[JudgeRead], int, int], Any]
    together: bool = False


def decision_job(call: RouteCall, decision: DecisionCall) -> Job:
    """Return the job for a decision request. The job takes the time of a chat with one output token per question."""
    judge, count = call.spec.synthetic_judge, len(decision.asked)
    try:
        reads = [judge.read(decision.input, asked) for asked in decision.asked]
    except ConfigError as error:
        raise ErrorResponse(500, f"the synthetic judge: {error}", "responder", "server_error") from None
    written = [_written(asked) for asked in decision.asked]
    prompts = [
        f"{decision.input}\n\n{text}".encode(errors="replace") for text in (["\n\n".join(written)] if decision.together else written)
    ]
    tokens = sum(map(count_tokens, prompts))
    return Job(
        decision.model,
        sha256(canonical([decision.input, written])).digest(),
        tokens,
        call.spec.latency.seconds(count),
        items=count,
        completion=count,
        prompts=prompts,
        body=lambda cached: encode(decision.answer(reads, tokens, cached or 0)),
    )


def _written(asked: Asked) -> str:
    labels = ("yes", "no") if asked.kind == "yes_no" else string.digits if asked.kind == "score" else string.ascii_uppercase
    lines = [f"{label}: {option}" for label, option in zip(labels, asked.options, strict=False)]
    return "\n".join([f"Question: {asked.text}", *lines])


def asked_of(question: Mapping[str, Any]) -> Asked:
    text, name = question["instructions"], question.get("name")
    if not isinstance(text, str):
        text = "\n".join(part["text"] for part in text)
    if question["type"] == "predicate":
        return Asked("yes_no", text, (True, False), name)
    if question["type"] == "choice":
        return Asked("choice", text, tuple(each["value"] for each in question["choices"]), name)
    return Asked("score", text, tuple(each["label"] for each in question["levels"]), name)


def expected_level(read: JudgeRead) -> float:
    return math.fsum(level * number for level, number in enumerate(read.probabilities))


def answer_of(asked: Asked, read: JudgeRead) -> dict[str, Any]:
    if asked.kind == "yes_no":
        return {"type": "predicate", "name": asked.name, "probability": read.probabilities[0]}
    confidence = max(read.probabilities) * read.label_mass
    pairs = list(zip(asked.options, read.probabilities, strict=True))
    if asked.kind == "choice":
        probabilities: list[dict[str, Any]] = [{"value": option, "probability": number} for option, number in pairs]
        decided: dict[str, Any] = {"choice": asked.options[read.place]}
    else:
        probabilities = [{"value": level, "label": option, "probability": number} for level, (option, number) in enumerate(pairs)]
        decided = {"score": expected_level(read)}
    return {"type": asked.kind, "name": asked.name, **decided, "probabilities": probabilities, "confidence": confidence}


def openai_job(call: RouteCall, model: Any, given: str, asked: list[Asked], *, refuses: bool = True) -> Job:
    """Return the job for a request in OpenAI's form. vLLM has this form too: a prompt for each question, and no refusals (``refuses``)."""

    def answer(reads: list[JudgeRead], tokens: int, cached: int) -> Any:
        answers = [
            {"type": "refusal", "name": each.name} if refuses and read.refused else answer_of(each, read)
            for each, read in zip(asked, reads, strict=True)
        ]
        used = {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": len(asked),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens + len(asked),
        }
        return {"model": model, "answers": answers, "usage": used}

    return decision_job(call, DecisionCall(model, given, asked, answer, together=refuses))


def _decisions(call: RouteCall) -> Job:
    try:
        asked = [asked_of(question) for question in call.data["questions"]]
        given = text_of(call.data["input"])
    except (KeyError, TypeError, AttributeError) as error:
        raise call.invalid(f"'input' and 'questions' must have the form of OpenAI's decisions: {error!r}") from None
    return openai_job(call, call.data.get("model"), given, asked, refuses=call.spec.kind != "vllm")


DECISIONS: Mapping[str, Route] = {"/v1/decisions": _decisions}
