"""Calls in a dialect, and answers as its servers write them, from given distributions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions import (
    CHATS,
    OPENAI,
    SGLANG,
    SYSTEMONE,
    SYSTEMONE_OF_SGLANG,
    VLLM,
    DecisionInput,
    Dialect,
    GenerativeScoringDialect,
    labels_of,
)
from qreward.decisions import Choice, Question, Score, YesNo

SCORING = GenerativeScoringDialect((9693, 2201))
ALL: tuple[Dialect, ...] = (OPENAI, VLLM, SGLANG, SYSTEMONE, SYSTEMONE_OF_SGLANG, SCORING, CHATS[0])
RIGHT = YesNo("The sum is right.", name="right")
CLEAR = Score("How clear is it?", levels={"bad": "nobody understands it", "fair": "", "good": "a child does"}, name="clear")
TONE = Choice("Which tone?", choices={"calm": "factual", "rude": ""}, name="tone")
TYPED = Choice("Which value?", choices=[True, "true", False, "True"])
QUESTIONS: tuple[Question, ...] = (RIGHT, CLEAR, TONE, TYPED)
USAGE = {"input_tokens": 40, "output_tokens": 4, "total_tokens": 44, "input_tokens_details": {"cached_tokens": 16}}


def call(dialect: Dialect, questions: Sequence[Question], given: Any = "2 + 2 = 4", /, **params: Any) -> WireRequest:
    """A call with valid inputs."""
    return WireRequest(dialect, "judge-7b", dialect.validate(DecisionInput(given, tuple(questions))), params, None)


def body_of(dialect: Dialect, questions: Sequence[Question], given: Any = "2 + 2 = 4", /, **params: Any) -> dict[str, Any]:
    """The body that is sent, decoded."""
    body: dict[str, Any] = json.loads(dialect.encode(call(dialect, questions, given, **params), "served"))
    return body


def in_groups(dialect: Dialect, questions: Sequence[Question] = QUESTIONS) -> list[tuple[Question, ...]]:
    """The questions that a dialect takes, as it takes them: all in one request, or one a request."""
    taken = tuple(question for question in questions if type(question) in dialect.types)
    return [taken] if dialect.most_questions > 1 else [(question,) for question in taken]


def answer(dialect: Dialect, questions: Sequence[Question], numbers: Sequence[Sequence[float]], mass: float = 1.0) -> dict[str, Any]:
    """The body with which a server of a dialect answers when it has found these distributions."""
    pairs = list(zip(questions, numbers, strict=True))
    match dialect.name:
        case "openai" | "vllm":
            return {"model": "served", "usage": USAGE, "answers": [_openai(*pair, mass) for pair in pairs]}
        case "sglang":
            usage = {"prompt_tokens": 40, "total_tokens": 40, "completion_tokens": 0}
            answers = {str(place): _sglang(*pair, mass) for place, pair in enumerate(pairs)}
            return {"object": "decisions", "model": "served", "prompt_format_version": 1, "answers": answers, "usage": usage}
        case "systemone" if dialect is SYSTEMONE:
            told = {str(place): {"label_mass": mass, "argmax_is_label": True} for place in range(len(pairs))}
            answers = {str(place): _systemone(*pair) for place, pair in enumerate(pairs)}
            usage = {"input_tokens": 40, "output_tokens": 4}
            return {
                "id": "decision-1",
                "object": "structured_decision",
                "model": "served",
                "answers": answers,
                "usage": usage,
                "diagnostics": told,
            }
        case "systemone":
            answers = {str(place): _systemone(*pair) | {"x_label_mass": mass} for place, pair in enumerate(pairs)}
            return {"model": "served", "answers": answers, "usage": {"input_tokens": 40, "output_tokens": 0}}
        case "generative_scoring":
            data = [{"index": place, "object": "score", "score": each[0]} for place, each in enumerate(numbers)]
            return {
                "object": "list",
                "model": "served",
                "data": data,
                "usage": {"prompt_tokens": 40, "total_tokens": 44, "completion_tokens": 4},
            }
    tokens = [(label, number * mass) for label, number in zip(labels_of(questions[0]), numbers[0], strict=True)]
    return completion([*tokens, *rest(1.0 - mass)])


def rest(mass: float) -> list[tuple[str, float]]:
    """Tokens that are no label, each of little probability."""
    return [(f"word{at}", mass / 20) for at in range(20)] if mass > 0 else []


def completion(tokens: Sequence[tuple[str, float]], **choice: Any) -> dict[str, Any]:
    """A chat completion whose first token has these alternatives, with their probabilities."""
    top: list[dict[str, Any]] = [
        {"token": token, "logprob": math.log(number) if number > 0 else -9999.0, "bytes": None} for token, number in tokens
    ]
    first = max(top, key=lambda each: each["logprob"]) if top else {"token": "", "logprob": 0.0}
    logprobs = {"content": [{**first, "top_logprobs": top}]}
    message = {"role": "assistant", "content": first["token"], "refusal": None}
    chosen = {"index": 0, "message": message, "finish_reason": "length", "logprobs": logprobs, **choice}
    usage = {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "served", "choices": [chosen], "usage": usage}


def _openai(question: Question, numbers: Sequence[float], mass: float) -> dict[str, Any]:
    base = {"name": question.name}
    if isinstance(question, YesNo):
        return {"type": "predicate", **base, "probability": numbers[0]}
    top = max(numbers)
    if isinstance(question, Score):
        rows: list[Any] = [{"value": at, "label": label, "probability": numbers[at]} for at, label in enumerate(question.options)]
        score = sum(at * number for at, number in enumerate(numbers))
        return {"type": "score", **base, "score": score, "probabilities": rows, "confidence": top * mass}
    rows = [{"value": value, "probability": number} for value, number in zip(question.options, numbers, strict=True)]
    choice = question.options[list(numbers).index(top)]
    return {"type": "choice", **base, "choice": choice, "probabilities": rows, "confidence": top * mass}


def _names(question: Question) -> list[str]:
    if isinstance(question, YesNo):
        return ["yes", "no"]
    if isinstance(question, Score):
        return [str(level) for level in range(len(question.options))]
    return ["true", "true (2)", "false", "True (3)"] if question == TYPED else [str(option) for option in question.options]


def _sglang(question: Question, numbers: Sequence[float], mass: float) -> dict[str, Any]:
    kind = {YesNo: "yes_no", Score: "score", Choice: "choice"}[type(question)]
    return {"type": kind, "probabilities": dict(zip(_names(question), numbers, strict=True)), "label_mass": mass}


def _systemone(question: Question, numbers: Sequence[float]) -> dict[str, Any]:
    if isinstance(question, YesNo):
        return {"type": "noul", "noul": numbers[0]}
    named = dict(zip(_names(question), numbers, strict=True))
    if isinstance(question, Score):
        legend = {str(level): label for level, label in enumerate(question.options)}
        return {"type": "score", "score": 0.0, "confidence": 0.123, "legend": legend, "probabilities": named}
    return {"type": "choice", "choice": max(named, key=named.__getitem__), "confidence": 0.123, "probabilities": named}
