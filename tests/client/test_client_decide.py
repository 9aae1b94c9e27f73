"""``decide`` and ``batch_decide`` of a client: arguments, errors, and every dialect of the fake servers, found out or set."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from client_tools import MODEL, Recorder, endpoint, use
from fakes.endpoint import ModelEndpoint
from fakes.faulty_judge import distribution
from fakes.next_token import TOKENIZER

from qreward import (
    BadRequest,
    Choice,
    ConfigError,
    Decision,
    Endpoint,
    InvalidResponse,
    NoEndpoint,
    QRewardClient,
    Score,
    SyncQRewardClient,
    YesNo,
)
from qreward.decisions import Question
from qreward.observers import CallEnded, Observer
from qreward.testing import FakeFleet, Latency, SyntheticJudge

TEXT = "The capital of France is Paris. truth=0.75"
RIGHT = YesNo("The text is right.", name="right")
CLEAR = Score("How clear is the text?", levels=["unclear", "readable", "clear"], name="clear")
TONE = Choice("What is the tone?", choices={"calm": "factual", "rude": ""}, name="tone")
ALL: list[Question] = [RIGHT, CLEAR, TONE]
SPEAKS = {
    "openai": ("openai", "openai"),
    "vllm": ("vllm", "vllm"),
    "sglang": ("sglang", "sglang"),
    "systemone": ("sglang", "systemone"),
    "vllm_unsupported": ("vllm", "chat"),
    "generative_scoring": ("vllm", "chat"),
    None: ("openai", "chat"),
}
"""Routes of a fake server -> the kind of its endpoint, and the dialect in which it should be asked."""


def answer(request: httpx.Request) -> httpx.Response:
    """A server of OpenAI's dialect."""
    body = json.loads(request.content)
    answers = [{"type": "predicate", "probability": 0.25} for _ in body["questions"]]
    return httpx.Response(
        200, json={"model": MODEL, "answers": answers, "usage": {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}}
    )


def recorded(**settings: Any) -> tuple[Recorder, QRewardClient]:
    recorder = Recorder(answer)
    return recorder, QRewardClient([endpoint(recorder, decisions="openai", **settings)])


@asynccontextmanager
async def fake(decisions: Any, count: int = 1, kind: str = "openai", **settings: Any) -> AsyncIterator[tuple[FakeFleet, QRewardClient]]:
    fakes = [ModelEndpoint(f"gpu-{number}", dialect=decisions, latency=Latency(), **settings) for number in range(count)]
    async with FakeFleet(fakes) as fleet, QRewardClient([each.model_copy(update={"kind": kind}) for each in fleet.endpoints]) as client:
        yield fleet, client


# what goes out


def test_input_questions_and_parameters_are_in_the_body() -> None:
    recorder, client = recorded(model_names={MODEL: "served"})
    use(client, lambda client: client.decide("text", [RIGHT], model=MODEL, prompt_cache_key="k", extra_body={"seed": 3}))
    question = {"type": "predicate", "name": "right", "instructions": "The text is right."}
    assert recorder.bodies == [{"model": "served", "input": "text", "prompt_cache_key": "k", "seed": 3, "questions": [question]}]
    assert recorder.requests[0].url == "http://gpu-0.example/v1/decisions"


def test_an_argument_that_is_wrong_is_told_before_anything_is_sent() -> None:
    recorder, client = recorded()
    cases: list[tuple[str, type[Exception], dict[str, Any]]] = [
        ("questions must be a list, such as [YesNo(...)]", ConfigError, {"questions": RIGHT}),
        ("questions must be a list with at least one", ConfigError, {"questions": []}),
        ("questions must be a list with at least one", ConfigError, {"questions": None}),
        ("questions[1] must be a YesNo, Score or Choice, not a str", ConfigError, {"questions": [RIGHT, "clear?"]}),
        ("questions[1] has the name 'right'", ConfigError, {"questions": [RIGHT, RIGHT]}),
        ("the input is empty", BadRequest, {"input": " "}),
        ("the input is a int", BadRequest, {"input": 3}),
        ("messages[0] has no content that is a text", BadRequest, {"input": [{"role": "user", "content": None}]}),
        ("model must be the name of a model", ConfigError, {"model": ""}),
        ("'deadline' is an option of other calls", ConfigError, {"deadline": 3}),
        ("timeout must be a positive number", ConfigError, {"timeout": 0}),
        ("min_label_mass must be a number from 0 to 1, not 50", ConfigError, {"min_label_mass": 50}),
        ("min_label_mass must be a number from 0 to 1, not None", ConfigError, {"min_label_mass": None}),
        ("'input' cannot be set in extra_body", ConfigError, {"extra_body": {"input": "other"}}),
        ("'questions' is set by decide()", BadRequest, {"extra_body": {"questions": []}}),
    ]
    wrong = []

    async def run(client: QRewardClient) -> None:
        for words, kind, given in cases:
            try:
                await client.decide(**{"input": "text", "questions": [RIGHT], "model": MODEL, **given})
                wrong.append(f"{words}: nothing was raised")
            except (ConfigError, BadRequest) as error:
                if words not in str(error) or not isinstance(error, kind):
                    wrong.append(f"{words}: {type(error).__name__}: {error}")

    use(client, run)
    assert not wrong, "\n".join(wrong)
    assert recorder.requests == []


def test_a_model_without_a_route_and_wrong_arguments_of_a_batch_are_errors_before_anything_is_sent() -> None:
    recorder, client = recorded(models=["judge-*"])
    cases: list[tuple[str, type[Exception], dict[str, Any]]] = [
        ("inputs must be a list", ConfigError, {"inputs": "text"}),
        ("questions must be a list, such as [YesNo(...)]", ConfigError, {"questions": RIGHT}),
        ("deadline must be a positive number", ConfigError, {"deadline": -1}),
        ("'other'", NoEndpoint, {"model": "other"}),
    ]

    async def run(client: QRewardClient) -> None:
        for words, kind, given in cases:
            with pytest.raises(kind, match=re.escape(words)):
                await client.batch_decide(**{"inputs": ["text"], "questions": [RIGHT], "model": MODEL, **given})

    use(client, run)
    assert recorder.requests == []


def test_a_group_is_of_the_input_and_its_function_receives_the_input_alone() -> None:
    seen: list[object] = []
    recorder, client = recorded(group_header="X-Session-ID")

    def group(given: object) -> str:
        seen.append(given)
        return "one"

    async def run(client: QRewardClient) -> None:
        await client.decide("text", [RIGHT], model=MODEL, group=group)
        await client.batch_decide(["first", "second"], [RIGHT], model=MODEL, group="one")

    use(client, run)
    assert seen == ["text"]
    assert len({request.headers["x-session-id"] for request in recorder.requests}) == 1


# settings


def test_the_settings_of_an_endpoint_are_checked() -> None:
    cases = {
        "must be 'openai', 'vllm', 'sglang', 'systemone', 'generative_scoring' or 'chat'": {"decisions": "opena"},
        "needs decision_labels": {"decisions": "generative_scoring"},
        "have an effect only with decisions='generative_scoring'": {"decision_labels": (1, 2)},
        "decision_labels.1: is required": {"decisions": "generative_scoring", "decision_labels": [1]},
        "must be a valid integer, not 'yes'": {"decisions": "generative_scoring", "decision_labels": ["yes", "no"]},
    }
    for words, settings in cases.items():
        with pytest.raises(ConfigError) as caught:
            Endpoint("http://gpu-0:8000/v1", **settings)  # type: ignore[arg-type]
        assert words in str(caught.value), str(caught.value)


# answers


async def test_every_dialect_is_found_out_with_a_few_requests_more_with_and_without_the_kind_and_answers_alike() -> None:
    faults = []
    cases = [(routes, kind, name) for routes, (kind, name) in SPEAKS.items()]
    for routes, kind, name in [*cases, *((routes, "openai", name) for routes, _, name in cases)]:
        async with fake(routes, kind=kind) as (fleet, client):
            single = await client.decide(TEXT, ALL, model=MODEL)
            batch = await client.batch_decide([TEXT] * 5, ALL, model=MODEL)
            requests = fleet.seen("gpu-0").requests
            found = client._runtime.dialects.known(client.config.endpoints[0], MODEL)
        each = 3 if name == "chat" else 1
        if found is None or found.name != name:
            faults.append(f"{routes} of kind {kind}: asked as {found}")
        if not 6 * each <= requests <= 6 + 6 * each:  # a route that the server does not have is not counted
            faults.append(f"{routes} of kind {kind}: {requests} requests for 6 decisions")
        for decision in [single, *batch.values()]:
            values = [decision["right"].probability, decision["clear"].score, *decision["tone"].probabilities.values()]
            wanted = [*distribution(SyntheticJudge(), TEXT, RIGHT)[:1], 1.5, *distribution(SyntheticJudge(), TEXT, TONE)]
            if [round(value, 2) for value in values] != [round(value, 2) for value in wanted]:
                faults.append(f"{routes}: {values} instead of {wanted}")
    assert not faults, "\n".join(faults)


async def test_endpoints_of_different_dialects_serve_one_batch() -> None:
    fakes = [ModelEndpoint(f"gpu-{routes}", dialect=routes, latency=Latency()) for routes in SPEAKS]  # type: ignore[arg-type]
    async with FakeFleet(fakes) as fleet:
        kinds = zip(fleet.endpoints, SPEAKS.values(), strict=True)
        client = QRewardClient([endpoint.model_copy(update={"kind": kind}) for endpoint, (kind, _) in kinds], hedge=None)
        async with client:
            batch = await client.batch_decide([TEXT] * 60, [RIGHT], model=MODEL)
        requests = {name: fleet.seen(name).requests for name in fleet.names}
    assert [round(result.value[0].probability, 2) for result in batch] == [0.75] * 60
    assert sum(requests.values()) <= 60 * 3, "the first decisions of an endpoint go through the dialects"
    assert all(stats.failed == 0 for stats in batch.stats.endpoints.values())


async def test_a_hundred_questions_are_divided_by_the_limit_of_the_server_also_if_only_a_refusal_tells_it() -> None:
    questions = [YesNo(f"Criterion {number} is met.", name=f"c{number}") for number in range(100)]
    async with fake("vllm", kind="vllm") as (fleet, client):
        decision = await client.decide(TEXT, questions, model=MODEL)
        assert fleet.seen("gpu-0").requests == 3
    assert [answer.question for answer in decision] == questions
    assert {round(decision[f"c{number}"].probability, 2) for number in range(100)} == {0.75}
    async with fake("vllm") as (_, client):
        batch = await client.batch_decide([TEXT] * 3, questions, model=MODEL)
    assert [(len(each), each.errors) for each in batch.values()] == [(100, {})] * 3


async def test_a_question_with_more_options_than_an_endpoint_takes_goes_to_another_one_or_fails_alone_with_the_limit() -> None:
    wide = Choice("Which letter?", choices=[f"option {number}" for number in range(40)])
    async with fake("sglang", kind="sglang") as (_, client):
        decision = await client.decide(TEXT, [RIGHT, wide], model=MODEL)
        assert round(decision[0].probability, 2) == 0.75
        with pytest.raises(BadRequest, match="40 choices; an endpoint with decisions='sglang' takes 26"):
            await client.decide(TEXT, [wide], model=MODEL)
        assert "40 choices" in str(decision[1].error)
    fakes = [ModelEndpoint("narrow", dialect="sglang", latency=Latency()), ModelEndpoint("wide", dialect="openai", latency=Latency())]
    async with FakeFleet(fakes) as fleet, QRewardClient(fleet.endpoints) as client:
        batch = await client.batch_decide([TEXT] * 20, [wide], model=MODEL)
    assert not batch.errors
    assert {result.endpoint for result in batch} == {"wide"}


async def test_a_chat_server_without_log_probabilities_is_an_error_that_says_so() -> None:
    async with fake(None, logprobs=False) as (_, client):
        decision = await client.decide(TEXT, [RIGHT], model=MODEL)
    with pytest.raises(InvalidResponse) as caught:
        decision.raise_for_errors()
    assert "endpoint 'gpu-0', model 'judge-7b': no answer to 'right': the server returned no log probabilities" in str(caught.value)
    assert caught.value.endpoint == "gpu-0"


async def test_an_answer_that_the_model_would_hardly_give_is_an_error_and_its_numbers_are_told_if_they_are_asked_for() -> None:
    judge = SyntheticJudge(label_mass=0.01)
    for settings in ({}, {"decisions": "chat"}):
        server = ModelEndpoint("gpu-0", kind="vllm", dialect="vllm_unsupported", latency=Latency(), synthetic_judge=judge)
        async with FakeFleet([server]) as fleet, QRewardClient([fleet.endpoints[0].model_copy(update=settings)]) as client:
            for question in ALL:
                decision = await client.decide(TEXT, [question], model=MODEL)
                batch = await client.batch_decide([TEXT], [question], model=MODEL)
                for found in (decision[0], batch[0].value[0]):
                    with pytest.raises(InvalidResponse, match=r"probability of 0\.0(1|097), which is less than min_label_mass=0\.5"):
                        _ = found.probabilities
                exact = await client.decide(TEXT, [question], model=MODEL, min_label_mass=0)
                assert list(exact[0].probabilities.values()) == pytest.approx(distribution(judge, TEXT, question), abs=1e-5), question
                pairs = await client.batch_decide([(TEXT, [question])], model=MODEL, min_label_mass=0.005)
                assert pairs[0].value[0].label_mass == pytest.approx(0.01, rel=0.05)
    async with fake("sglang", kind="sglang", synthetic_judge=judge) as (_, client):
        assert [type(answer.error) for answer in await client.decide(TEXT, ALL, model=MODEL)] == [InvalidResponse] * 3
        assert (await client.decide(TEXT, ALL, model=MODEL, min_label_mass=0)).errors == {}


async def test_generative_scoring_is_used_where_it_is_set() -> None:
    labels = [TOKENIZER.ids(word)[0] for word in ("yes", "no")]
    async with FakeFleet([ModelEndpoint("gpu-0", dialect="generative_scoring", latency=Latency())]) as fleet:
        told = {"base_url": fleet.endpoints[0].base_url, "decisions": "generative_scoring", "decision_labels": labels}
        async with QRewardClient.from_config({"endpoints": [told]}) as client:
            decision = await client.decide(TEXT, [RIGHT, YesNo("The text is short.")], model=MODEL)
        assert fleet.seen("gpu-0").requests == 1
    assert [round(answer.probability, 2) for answer in decision] == [0.75, 0.75]


# around a call


def test_the_blocking_twins_do_the_same() -> None:
    with FakeFleet([ModelEndpoint("gpu-0", dialect="sglang", latency=Latency())]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        decision: Decision = client.decide(TEXT, ALL, model=MODEL)
        batch = client.batch_decide([TEXT] * 3, ALL, model=MODEL)
    assert {round(each["right"].probability, 2) for each in [decision, *batch.values()]} == {0.75}


def test_an_observer_is_told_of_an_operation_named_decide_with_its_tokens() -> None:
    ended: list[CallEnded] = []

    class Ears(Observer):
        def call_ended(self, event: CallEnded) -> None:
            ended.append(event)

    recorder = Recorder(answer)
    client = QRewardClient([endpoint(recorder, decisions="openai")], observers=[Ears()])
    use(client, lambda client: client.decide("text", [RIGHT], model=MODEL))
    assert [(event.operation, event.model, event.outcome, event.prompt_tokens) for event in ended] == [("decide", MODEL, "ok", 7)]


async def test_decisions_about_inputs_that_begin_alike_go_to_the_endpoint_that_has_the_beginning() -> None:
    stories = [f"Story {number}. " + f"{number} " * 1500 for number in range(8)]
    async with fake("openai", count=4, max_concurrency=2) as (_, client):
        batch = await client.batch_decide(
            [f"{stories[number % 8]} Ending {number}. truth=0.5" for number in range(160)], [RIGHT], model=MODEL
        )
    homes = {(result.index % 8, result.endpoint) for result in batch}
    assert len(homes) <= 16


def test_a_fork_begins_to_find_out_anew() -> None:
    recorder, client = recorded()

    async def run(client: QRewardClient) -> None:
        await client.decide("text", [RIGHT], model=MODEL)
        before = client._runtime.dialects
        client._runtime._restart()
        assert client._runtime.dialects is not before
        await client.decide("text", [RIGHT], model=MODEL)

    asyncio.run(run(client))
    assert len(recorder.requests) == 2
