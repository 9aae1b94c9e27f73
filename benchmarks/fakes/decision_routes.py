"""The decision routes of fake servers: ``/v1/decisions`` of OpenAI, vLLM and SGLang, ``/v1/systemone``, and ``/generative_scoring``.

The :class:`~qreward.testing.responders.SyntheticJudge` of the endpoint answers the questions. Paths, bodies and limits follow the
packages ``openai`` 3.54, vLLM 0.33 and SGLang 0.5.23. Errors have the form of their server, but words of their own. This module uses
JSON, but no sockets, time or slots.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from fakes import decision_schemas as schemas
from fakes.decision_schemas import Body, InvalidBody
from fakes.next_token import TOKENIZER, score_labels
from fakes.vllm import VLLM
from qreward.decisions import Option
from qreward.errors import ConfigError
from qreward.testing import bodies
from qreward.testing.bodies import canonical, count_tokens, encode, text_of
from qreward.testing.kinds import SERVER_KINDS, ErrorResponse, Job, Route, RouteCall, asked_of, decision_job, expected_level, openai_job
from qreward.testing.responders import Asked, JudgeRead

DECISIONS, SYSTEM_ONE, SCORING, TOKENIZE = "/v1/decisions", "/v1/systemone", "/generative_scoring", "/tokenize"
VLLM_QUESTIONS, VLLM_OPTIONS = 64, 26
_USE_SYSTEM_ONE = (
    "/v1/decisions does not serve decision checkpoints, use /v1/systemone, which renders the prompt and answer codes they were trained with"
)


class FakeDecisions(NamedTuple):
    """Holds the decision routes of one kind of server.

    Attributes:
        routes: path of POST requests -> function that serves them.
        error: function that writes the body of an error on these routes.
    """

    routes: Mapping[str, Route]
    error: Callable[[str, ErrorResponse], bytes]


# OpenAI and vLLM: /v1/decisions


def _openai_decisions(call: RouteCall) -> Job:
    request = _parsed(call, schemas.OpenAiDecision)
    given = request.input if isinstance(request.input, str) else [message.model_dump() for message in request.input]
    return openai_job(call, text_of(given), [asked_of(question.model_dump()) for question in request.questions])


def _vllm_decisions(call: RouteCall) -> Job:
    request = _parsed(call, schemas.VllmDecision)
    if len(request.questions) > VLLM_QUESTIONS:
        raise _bad(f"questions: at most {VLLM_QUESTIONS} for this model")
    asked = [asked_of(question.model_dump()) for question in request.questions]
    if any(len(each.options) > VLLM_OPTIONS for each in asked):
        raise _bad(f"This model supports at most {VLLM_OPTIONS} choices per question")
    _refuse_joint(request.joint)
    text = request.input if isinstance(request.input, str) else "\n\n".join(message.text for message in request.input)
    return openai_job(call, text.strip(), asked, refuses=False)


# vLLM: /v1/systemone and /generative_scoring


def _vllm_system_one(call: RouteCall) -> Job:
    request = _parsed(call, schemas.VllmSystemOne)
    if not request.questions:
        raise _bad("questions: needs at least one question")
    if len(request.questions) > VLLM_QUESTIONS:
        raise _bad(f"questions: at most {VLLM_QUESTIONS} for this model")
    asked = [_vllm_noul(name, question) for name, question in request.questions.items()]
    _refuse_joint(request.joint)

    def answer(reads: list[JudgeRead], tokens: int, cached: int) -> Any:  # noqa: ARG001 - not reported
        return {
            "id": f"decision-{request.request_id or '1'}",
            "object": "structured_decision",
            "created": 1,
            "model": request.model or "fake",
            "answers": {each.name: _vllm_noul_answer(each, read) for each, read in zip(asked, reads, strict=True)},
            "usage": {"input_tokens": tokens, "output_tokens": len(asked)},
            "diagnostics": {
                each.name: {"label_mass": read.label_mass, "argmax_is_label": read.label_mass > 0.5}
                for each, read in zip(asked, reads, strict=True)
            },
            "joint": None,
        }

    return decision_job(call, _as_text(request.state).strip(), asked, answer)


def _vllm_noul(name: str, question: schemas.VllmSystemOneQuestion) -> Asked:
    """Check a question of vLLM's ``/v1/systemone`` in the same way as vLLM's ``decisions/question_types.py``, and return it."""
    if question.model_extra:
        raise _bad(f"question {name!r}: unknown field(s) {sorted(question.model_extra)}")
    if not name:
        raise _bad("question ids must be non-empty")
    criteria, text = question.criteria, "" if question.instructions is None else str(question.instructions)
    if question.type == "noul":
        if criteria is not None and not (isinstance(criteria, dict) and criteria.keys() <= {"true", "false"}):
            raise _bad(f"question {name!r}: noul criteria must be an object with true and false")
        return Asked("yes_no", text, (True, False), name)
    if question.type == "choice":
        if not isinstance(criteria, dict) or not criteria:
            raise _bad(f"question {name!r}: choice criteria must map option names to a description or null")
        return _limited(Asked("choice", text, tuple(criteria), name), VLLM_OPTIONS)
    if question.type == "score":
        if not isinstance(criteria, list) or len(criteria) < 2:
            raise _bad(f"question {name!r}: score criteria must be an ordered list of levels")
        return _limited(Asked("score", text, tuple(map(str, criteria)), name), 10)
    raise _bad(f"unknown question type {question.type!r}; supported: ['choice', 'noul', 'score']")


def _limited(asked: Asked, most: int) -> Asked:
    if len(set(asked.options)) < len(asked.options):
        raise _bad(f"question {asked.name!r}: duplicate option names")
    if len(asked.options) > most:
        raise _bad(f"question {asked.name!r}: at most {most} options for this model")
    return asked


def _vllm_noul_answer(asked: Asked, read: JudgeRead) -> dict[str, Any]:
    confidence = max(read.probabilities) * read.label_mass
    if asked.kind == "yes_no":
        yes, no = read.probabilities
        return {"type": "noul", "noul": yes, "probabilities": {"yes": yes, "no": no}, "confidence": confidence}
    if asked.kind == "choice":
        probabilities = dict(zip(asked.options, read.probabilities, strict=True))
        return {"type": "choice", "choice": asked.options[read.place], "probabilities": probabilities, "confidence": confidence}
    return {
        "type": "score",
        "score": expected_level(read),
        "legend": {str(level): option for level, option in enumerate(asked.options)},
        "probabilities": {str(level): number for level, number in enumerate(read.probabilities)},
        "confidence": confidence,
    }


def _generative_scoring(call: RouteCall) -> Job:
    request = _parsed(call, schemas.VllmScoring)
    labels, judge = request.label_token_ids, call.spec.synthetic_judge
    for each in labels:
        if not 0 <= each < TOKENIZER.size:
            size = TOKENIZER.size
            raise _bad(f"label_token_id {each} is out of vocabulary range [0, {size}). Please provide valid token IDs.")
    if not labels:
        raise _bad("label_token_ids must contain at least one token ID.")
    if not request.items:
        raise _bad("items must contain at least one item.")
    query, items = _detokenized(request.query), [_detokenized(item) for item in request.items]
    prompts = [item + query if request.item_first else query + item for item in items]
    try:
        found = [score_labels(prompt, labels, judge) for prompt in prompts]
    except ConfigError as error:
        raise ErrorResponse(500, f"the synthetic judge: {error}", "responder", "server_error") from None
    scores = [numbers[0] / (math.fsum(numbers) or 1.0) if request.apply_softmax else numbers[0] for numbers in found]
    encoded = [prompt.encode(errors="replace") for prompt in prompts]
    tokens, count = sum(map(count_tokens, encoded)), len(prompts)

    def body(_cached: int | None) -> bytes:
        data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
        used: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens + count, "completion_tokens": count}
        used |= {"prompt_tokens_details": None, "completion_tokens_details": None}
        made = {"id": "generative-scoring-1", "object": "list", "created": 1, "model": request.model or "fake", "data": data, "usage": used}
        return encode(made)

    digest = sha256(canonical([prompts, labels])).digest()
    service = call.spec.latency.seconds(count)
    return Job(request.model, digest, tokens, service, items=count, completion=count, prompts=encoded, body=body)


def _detokenized(given: str | list[int]) -> str:
    return given if isinstance(given, str) else TOKENIZER.text(given)


def _tokenize(call: RouteCall) -> Job:
    request = _parsed(call, schemas.VllmTokenize)
    given = request.messages if request.prompt is None else request.prompt
    if given is None:
        raise _bad("prompt or messages: Field required")
    ids = TOKENIZER.ids(text_of(given))
    strings = [TOKENIZER.text([each]) for each in ids] if request.return_token_strs else None
    made = {"count": len(ids), "max_model_len": 32768, "tokens": ids, "token_strs": strings}
    return Job(request.model, sha256(call.body).digest(), 0, 0.0, body=lambda _cached: encode(made))


def _unsupported(what: str) -> Route:
    """Return a route that refuses all requests, as vLLM does if the model does not support the route."""

    def refuse(call: RouteCall) -> Job:
        _parsed(call, schemas.VllmDecision if call.path == DECISIONS else schemas.VllmSystemOne)
        raise ErrorResponse(501, f"The model does not support the {what} API", "bad_request", "NotImplementedError")

    return refuse


# SGLang: /v1/decisions and /v1/systemone


def _sglang_decisions(call: RouteCall) -> Job:
    request = _parsed(call, schemas.SglangDecision)
    if request.prompt_format_version not in (None, 1):
        raise _bad(f"prompt_format_version {request.prompt_format_version} is not served, this server uses version 1", "BadRequestError")
    asked = [_sglang_asked(question) for question in request.questions]

    def answer(reads: list[JudgeRead], tokens: int, cached: int) -> Any:  # noqa: ARG001 - not reported
        answers = {each.name: _sglang_answer(each, read, request.temperature) for each, read in zip(asked, reads, strict=True)}
        used = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "reasoning_tokens": 0}
        return {"object": "decisions", "model": request.model, "prompt_format_version": 1, "answers": answers, "usage": used}

    return decision_job(call, _as_text(request.input).strip(), asked, answer)


def _sglang_asked(question: Any) -> Asked:
    text = _as_text(question.question)
    if question.type == "yes_no":
        return Asked("yes_no", text, (True, False), question.id)
    if question.type == "choice":
        return Asked("choice", text, tuple(option.name for option in question.options), question.id)
    return Asked("score", text, tuple(map(_as_text, question.levels)), question.id)


def _sglang_answer(asked: Asked, read: JudgeRead, temperature: float) -> dict[str, Any]:
    powers = [number ** (1 / temperature) for number in read.probabilities]
    read = read._replace(probabilities=tuple(power / math.fsum(powers) for power in powers))
    answer: dict[str, Any] = {"type": asked.kind, "probabilities": _sglang_names(asked, read), "label_mass": read.label_mass}
    if asked.kind == "choice":
        answer["choice"] = asked.options[read.place]
    elif asked.kind == "score":
        answer["score"] = expected_level(read)
    return answer


def _sglang_names(asked: Asked, read: JudgeRead) -> dict[Option, float]:
    """Return a mapping from option to probability.

    The options are ``yes`` and ``no`` in a yes/no question, the numbers of the levels in a score, and the names of the choices in a choice.
    """
    names: Sequence[Option] = asked.options
    if asked.kind != "choice":
        names = ("yes", "no") if asked.kind == "yes_no" else [str(level) for level in range(len(asked.options))]
    return dict(zip(names, read.probabilities, strict=True))


def _sglang_checkpoint(call: RouteCall) -> Job:
    """Refuse a request at ``/v1/decisions``, as SGLang does with a checkpoint that was trained for decisions."""
    _parsed(call, schemas.SglangDecision)
    raise _bad(_USE_SYSTEM_ONE, "BadRequestError")


def _sglang_system_one(*, checkpoint: bool) -> Route:
    """Return the route ``/v1/systemone``.

    Args:
        checkpoint: whether the model is a checkpoint that was trained for decisions. Such a model reports no label mass.
    """

    def serve(call: RouteCall) -> Job:
        request = _parsed(call, schemas.SglangSystemOne)
        asked = [_sglang_noul(name, question) for name, question in request.questions.items()]
        if any(len(each.options) > 26 for each in asked) and checkpoint:
            raise _bad("this checkpoint has 26 answer codes", "BadRequest")

        def answer(reads: list[JudgeRead], tokens: int, cached: int) -> Any:  # noqa: ARG001 - not reported
            answers = {each.name: _sglang_noul_answer(each, read) for each, read in zip(asked, reads, strict=True)}
            for each, read in zip(asked, reads, strict=True):
                if not checkpoint:
                    answers[each.name]["x_label_mass"] = read.label_mass
            return {"model": "fake", "answers": answers, "usage": {"input_tokens": tokens, "output_tokens": 0}}

        return decision_job(call, _as_text(request.state).strip(), asked, answer)

    return serve


def _sglang_noul(name: str, question: Any) -> Asked:
    text = "" if question.instructions is None else _as_text(question.instructions)
    if question.type == "noul":
        return Asked("yes_no", text, (True, False), name)
    if question.type == "choice":
        return Asked("choice", text, tuple(question.criteria), name)
    return Asked("score", text, tuple(map(_as_text, question.criteria)), name)


def _sglang_noul_answer(asked: Asked, read: JudgeRead) -> dict[str, Any]:
    if asked.kind == "yes_no":
        return {"type": "noul", "noul": read.probabilities[0]}
    confidence = (_above_uniform if asked.kind == "choice" else _near_top)(read)
    answer = {"type": asked.kind, "confidence": confidence, "probabilities": _sglang_names(asked, read)}
    if asked.kind == "choice":
        return {**answer, "choice": asked.options[read.place]}
    return {**answer, "score": expected_level(read), "legend": {str(level): option for level, option in enumerate(asked.options)}}


def _above_uniform(read: JudgeRead) -> float:
    """Return SGLang's confidence in a choice: 0 for a uniform distribution, 1 for a certain option."""
    count = len(read.probabilities)
    return 1.0 if count == 1 else min(1.0, max(0.0, (count * max(read.probabilities) - 1) / (count - 1)))


def _near_top(read: JudgeRead) -> float:
    """Return SGLang's confidence in a score.

    The spread around the most probable level is divided by the spread of a uniform distribution. The confidence is 1 minus this quotient.
    """
    count = len(read.probabilities)
    if count == 1:
        return 1.0
    spread = math.fsum(number * abs(level - read.place) for level, number in enumerate(read.probabilities))
    return max(0.0, 1 - spread / (math.fsum(abs(level - (count - 1) / 2) for level in range(count)) / count))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# Errors


def _parsed(call: RouteCall, kind: type[Body]) -> Body:
    try:
        return schemas.parse(kind, call.body)
    except InvalidBody as invalid:
        status, type_ = (422 if kind is schemas.SglangSystemOne else 400), "Bad Request"
        if kind is schemas.OpenAiDecision:
            type_ = "invalid_request_error"
        raise ErrorResponse(status, str(invalid), "bad_request", type_) from None


def _bad(message: str, type_: str = "BadRequestError") -> ErrorResponse:
    return ErrorResponse(400, message, "bad_request", type_)


def _refuse_joint(joint: bool) -> None:
    if joint:
        raise _bad("joint: this model reads each question on its own; joint reads need DiffusionGemma")


def _openai_error(_path: str, error: ErrorResponse) -> bytes:
    return bodies.error(error.message, error.type, error.code)


def _vllm_error(path: str, error: ErrorResponse) -> bytes:
    if error.status in (400, 501):
        return bodies.error(error.message, error.type, error.status)
    return VLLM.error(path, error)


def _sglang_error(path: str, error: ErrorResponse) -> bytes:
    if path == SYSTEM_ONE and error.status == 422:
        return encode({"detail": [{"loc": ["body"], "msg": error.message, "type": "value_error"}]})
    return SERVER_KINDS["sglang"].error(path, error)


_VLLM_ALWAYS = {SCORING: _generative_scoring, TOKENIZE: _tokenize}
FAKE_DECISIONS: Mapping[str | None, FakeDecisions] = {
    None: FakeDecisions({}, _openai_error),
    "openai": FakeDecisions({DECISIONS: _openai_decisions}, _openai_error),
    "vllm": FakeDecisions({DECISIONS: _vllm_decisions, SYSTEM_ONE: _vllm_system_one, **_VLLM_ALWAYS}, _vllm_error),
    "vllm_unsupported": FakeDecisions(
        {DECISIONS: _unsupported("Decisions"), SYSTEM_ONE: _unsupported("structured decision"), **_VLLM_ALWAYS}, _vllm_error
    ),
    "generative_scoring": FakeDecisions(_VLLM_ALWAYS, _vllm_error),
    "sglang": FakeDecisions({DECISIONS: _sglang_decisions, SYSTEM_ONE: _sglang_system_one(checkpoint=False)}, _sglang_error),
    "systemone": FakeDecisions({DECISIONS: _sglang_checkpoint, SYSTEM_ONE: _sglang_system_one(checkpoint=True)}, _sglang_error),
}
"""The decision routes for each value of ``FakeEndpoint.decisions``."""
