"""What we send is valid for the models of openai, vLLM and SGLang, and what those models and servers answer is read as it was meant."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from decision_tools import CLEAR, QUESTIONS, RIGHT, SCORING, TONE, TYPED, body_of, call, completion
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Decision as OpenAIDecision
from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.decision_create_params import DecisionCreateParams
from pydantic import TypeAdapter, ValidationError
from server_models import module

from qreward.codecs.decisions import CHATS, DIALECTS, OPENAI, PROBE, SGLANG, SYSTEMONE, SYSTEMONE_OF_SGLANG, VLLM, Dialect, labels_of
from qreward.decisions import Choice, Decision, Question, Score, YesNo
from qreward.settings.policies import Endpoint

pytestmark = pytest.mark.timeout(900)  # the first test downloads the wheels
DESCRIBED = YesNo("Is it polite?", yes="no insult in it", no="one insult or more")
ALL_QUESTIONS: tuple[Question, ...] = (*QUESTIONS, DESCRIBED, Choice("Which?", choices=["Yes", "yes", "two\nlines", "\x1b"]))
TALK = [{"role": "system", "content": "Be strict."}, {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
MASS = 0.75

TEXTS = st.text(min_size=1).filter(str.strip)
NAMES = TEXTS.filter(lambda text: len(text.strip()) > 1 and not text.strip().isdecimal())  # no label of another option
OPTIONS = st.lists(NAMES, min_size=2, max_size=10, unique=True)
ANY_QUESTION = st.one_of(
    st.builds(YesNo, TEXTS, yes=st.text(), no=st.text()),
    st.builds(lambda text, levels: Score(text, levels=levels), TEXTS, OPTIONS | st.dictionaries(NAMES, st.text(), min_size=2, max_size=10)),
    st.builds(lambda text, options: Choice(text, choices=[True, False, *options]), TEXTS, OPTIONS),
)


def numbers_for(question: Question) -> list[float]:
    weights = [2.0**place for place in range(len(question.options))]
    return [weight / sum(weights) for weight in weights]


def consumed(value: Any) -> Any:
    """A validated value, with the iterators that pydantic makes of ``Iterable`` read to their end, which validates what they hold."""
    if isinstance(value, dict):
        return {key: consumed(each) for key, each in value.items()}
    return value if isinstance(value, str) or not hasattr(value, "__iter__") else [consumed(each) for each in value]


def check_openai(body: dict[str, Any]) -> None:
    assert consumed(TypeAdapter(DecisionCreateParams).validate_python(body)) == body


def vllm_answer(body: dict[str, Any], questions: tuple[Question, ...]) -> Any:
    """What vLLM answers to a body, by its own models and functions, if the model finds the distributions of ``numbers_for``."""
    protocol, adapters = module("vllm.entrypoints.openai.decisions.protocol"), module("vllm.entrypoints.openai.decisions.adapters")
    request = protocol.DecisionRequest.model_validate(body)
    assert adapters.input_text(request.input)
    answers = []
    for place, (question, asked) in enumerate(zip(questions, request.questions, strict=True)):
        read = adapters.make_read_question(place, asked)
        numbers = numbers_for(question)
        answers.append(adapters.make_answer(asked, numbers[::-1] if isinstance(question, YesNo) else numbers, MASS))
        assert len(read.labels) == len(numbers)
    usage = protocol.OpenAIDecisionUsage(
        input_tokens=40,
        output_tokens=4,
        total_tokens=44,
        input_tokens_details=protocol.InputTokensDetails(cached_tokens=16),
        output_tokens_details=protocol.OutputTokensDetails(),
    )
    return protocol.DecisionResponse(model="served", answers=answers, usage=usage)


def vllm_systemone_answer(body: dict[str, Any], questions: tuple[Question, ...]) -> Any:
    protocol = module("vllm.entrypoints.generate.structured_decisions.protocol")
    types = module("vllm.entrypoints.openai.decisions.question_types")
    request, answers, diagnostics = protocol.StructuredDecisionRequest.model_validate(body), {}, {}
    for (name, spec), question in zip(request.questions.items(), questions, strict=True):
        assert not spec.model_extra
        built = types.build_question(name, spec.type, spec.instructions, spec.criteria, 26)
        answers[name] = built.type.answer(built, numbers_for(question), MASS)
        diagnostics[name] = protocol.QuestionDiagnostics(label_mass=MASS, argmax_is_label=True)
    usage = protocol.DecisionUsage(input_tokens=40, output_tokens=4)
    return protocol.StructuredDecisionResponse(id="decision-1", model="served", answers=answers, usage=usage, diagnostics=diagnostics)


def logprobs_for(question: Question) -> list[float]:
    return [math.log(number * MASS) for number in numbers_for(question)]


def sglang_answer(body: dict[str, Any], questions: tuple[Question, ...]) -> Any:
    protocol, serving = module("sglang.srt.entrypoints.openai.protocol"), module("sglang.srt.entrypoints.openai.serving_decisions")
    request, answers = protocol.DecisionRequest.model_validate(body), {}
    for question, asked in zip(questions, request.questions, strict=True):
        view = serving._decision_view(asked)
        assert serving.render_question(request.input, view, serving.default_labels(view))
        answers[asked.id] = serving._build_answer(asked, view, numbers_for(question), logprobs_for(question))
    usage = protocol.UsageInfo(prompt_tokens=40, total_tokens=40)
    return protocol.DecisionResponse(model="served", prompt_format_version=1, answers=answers, usage=usage)


def sglang_systemone_answer(body: dict[str, Any], questions: tuple[Question, ...]) -> Any:
    protocol, serving = module("sglang.srt.entrypoints.systemone.protocol"), module("sglang.srt.entrypoints.systemone.serving")
    request, answers = protocol.SystemOneRequest.model_validate(body), {}
    for question, (name, asked) in zip(questions, request.questions.items(), strict=True):
        answers[name] = serving._answer(view=serving._view(asked), probabilities=numbers_for(question), mass=MASS, question_id=name)
    return protocol.SystemOneResponse(model="served", answers=answers, usage=protocol.SystemOneUsage(input_tokens=40))


SERVERS = {VLLM: vllm_answer, SYSTEMONE: vllm_systemone_answer, SGLANG: sglang_answer, SYSTEMONE_OF_SGLANG: sglang_systemone_answer}


def check_answers(dialect: Dialect, questions: tuple[Question, ...], response: bytes) -> Decision:
    decision = dialect.decode(response, call(dialect, questions)).build()
    for question, found in zip(questions, decision, strict=True):
        assert list(found.probabilities.values()) == pytest.approx(numbers_for(question)), question
        if not (dialect is VLLM and isinstance(question, YesNo)) and dialect is not OPENAI:
            assert found.label_mass == pytest.approx(MASS), question
    assert decision.model == "served"
    assert decision.usage is not None
    assert decision.usage.prompt_tokens == 40
    return decision


def test_openai_takes_our_requests() -> None:
    for given_input in ("2 + 2 = 4", TALK):
        check_openai(body_of(OPENAI, ALL_QUESTIONS, given_input, prompt_cache_key="k"))


def test_we_read_answers_of_openai_s_own_model() -> None:
    answers: list[Any] = [{"type": "refusal", "name": "right"}]
    for question in (CLEAR, TONE, TYPED):
        numbers, score = numbers_for(question), isinstance(question, Score)
        extra = {"score": 1.0} if score else {"choice": question.options[-1]}
        rows = [
            {"value": at if score else option, "probability": numbers[at]} | ({"label": option} if score else {})
            for at, option in enumerate(question.options)
        ]
        answers.append({"type": "score" if score else "choice", "name": question.name, "confidence": 0.5, "probabilities": rows, **extra})
    answers.append({"type": "predicate", "probability": 1 / 3})
    usage = {"input_tokens": 40, "output_tokens": 4, "total_tokens": 44, "output_tokens_details": {"reasoning_tokens": 0}}
    details = {"input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0}}
    model = OpenAIDecision.model_validate({"model": "served", "answers": answers, "usage": usage | details}, strict=True)
    questions = (RIGHT, CLEAR, TONE, TYPED, DESCRIBED)
    reply = OPENAI.decode(model.model_dump_json().encode(), call(OPENAI, questions))
    assert "declined" in str(reply.answers[0].error)
    for question, found in zip(questions[1:], reply.answers[1:], strict=True):
        assert list(found.probabilities.values()) == pytest.approx(numbers_for(question))
    assert reply.usage is not None
    assert reply.usage.cached_tokens == 16


def test_servers_take_our_requests_and_we_read_their_answers() -> None:
    for dialect, server in SERVERS.items():
        for given_input in ("2 + 2 = 4", TALK):
            response = server(body_of(dialect, ALL_QUESTIONS, given_input), ALL_QUESTIONS)
            for options in ({}, {"exclude_none": True}):
                check_answers(dialect, ALL_QUESTIONS, json.dumps(response.model_dump(**options)).encode())


@settings(deadline=None)
@given(st.lists(ANY_QUESTION, min_size=1, max_size=4), TEXTS)
def test_any_question_is_valid_for_every_server_and_its_answer_is_read(questions: list[Question], text: str) -> None:
    asked = tuple(questions)
    check_openai(body_of(OPENAI, asked, text))
    for dialect, server in SERVERS.items():
        response = server(body_of(dialect, asked, text), asked)
        check_answers(dialect, asked, json.dumps(response.model_dump()).encode())


def test_generative_scoring_takes_our_request_and_we_read_its_answer() -> None:
    serving, protocol = module("vllm.entrypoints.generate.generative_scoring.serving"), module("vllm.entrypoints.serve.engine.protocol")
    questions = (RIGHT, DESCRIBED)
    request = serving.GenerativeScoringRequest.model_validate(body_of(SCORING, questions))
    assert (len(request.items), request.label_token_ids, request.model_extra) == (2, [9693, 2201], {})
    logprobs = dict(zip(request.label_token_ids, logprobs_for(RIGHT), strict=True))
    score = serving.ServingGenerativeScoring._compute_probabilities(None, logprobs, request.apply_softmax)[9693]
    data = [serving.GenerativeScoringItemResult(index=place, score=score) for place in range(2)]
    usage = protocol.UsageInfo(prompt_tokens=40, total_tokens=42, completion_tokens=2)
    response = serving.GenerativeScoringResponse(model="served", data=data, usage=usage)
    for found in SCORING.decode(json.dumps(response.model_dump()).encode(), call(SCORING, questions)).answers:
        assert found.probability == pytest.approx(1 / 3)


def test_chat_requests_and_answers_are_those_of_openai() -> None:
    for question in ALL_QUESTIONS:
        body = body_of(CHATS[0], [question])
        assert consumed(TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body)) == body
        tokens = [(label, number * MASS) for label, number in zip(labels_of(question), numbers_for(question), strict=True)]
        rest = [(f"word{at}", (1 - MASS) / 20) for at in range(20)]
        model = ChatCompletion.model_validate(completion([*tokens, *rest]))
        check_answers(CHATS[0], (question,), model.model_dump_json().encode())


# which dialect a server takes


def takes(model: Any, body: dict[str, Any]) -> bool:
    try:
        model.model_validate(body)
    except ValidationError:
        return False
    return True


def test_each_server_takes_the_probe_in_its_own_dialects_only() -> None:
    servers = {
        "vllm": module("vllm.entrypoints.openai.decisions.protocol").DecisionRequest,
        "sglang": module("sglang.srt.entrypoints.openai.protocol").DecisionRequest,
    }
    check_openai(body_of(OPENAI, PROBE.questions, PROBE.input))
    assert takes(module("vllm.entrypoints.generate.structured_decisions.protocol").StructuredDecisionRequest, probe("systemone"))
    assert takes(module("sglang.srt.entrypoints.systemone.protocol").SystemOneRequest, probe("systemone"))
    taken = {name: [server for server, model in servers.items() if takes(model, probe(name))] for name in ("openai", "vllm", "sglang")}
    assert taken == {"openai": [], "vllm": ["vllm"], "sglang": ["sglang"]}


def probe(name: str) -> dict[str, Any]:
    return body_of(DIALECTS[name](Endpoint("http://a"))[0], PROBE.questions, PROBE.input)


def test_no_server_takes_a_question_of_the_other_for_one_of_its_own() -> None:
    vllm = module("vllm.entrypoints.openai.decisions.protocol").DecisionRequest
    sglang = module("sglang.srt.entrypoints.openai.protocol").DecisionRequest
    for question in ALL_QUESTIONS:
        assert not takes(sglang, body_of(VLLM, [question])), question
        assert not takes(vllm, body_of(SGLANG, [question])), question
