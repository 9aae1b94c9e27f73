"""verifiers 0.4 calls ``complete`` of a judge as it does here; ours asks one shared client, and never scores a failure."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import verifiers_stub
from adapter_fakes import SETTINGS
from adapter_fakes import installed as installed_scorer
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from trainers_tools import fleet_of, settings_of
from verifiers_stub import Trace

from qreward.client import QRewardClient
from qreward.errors import ConfigError, InvalidResponse, QRewardError, RequestTimeout
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency, SyntheticJudge

pytestmark = pytest.mark.real_time


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("QREWARD_CONFIG", raising=False)
    return verifiers_stub.installed(monkeypatch)


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with fleet_of() as made:
        yield made
    close_all()


@pytest.fixture
def client_file(fleet: FakeFleet, tmp_path: Path) -> Path:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(json.loads(settings_of(fleet, tmp_path, attempt=30.0).read_text())["client"]), encoding="utf-8")
    return file


def judge_of(adapter: Any, **config: Any) -> Any:
    class Correctness(adapter.FleetJudge):  # type: ignore[misc]
        prompt = "Reference answer: {answer}\nCandidate answer: {response}"

        def parse(self, response: Any) -> float:
            return float(json.loads(response.text)["score"])

    return Correctness(adapter.FleetJudgeConfig(model="judge-7b", **config))


def test_nothing_of_verifiers_is_imported_before_a_name_is_asked_for() -> None:
    import qreward.integrations.verifiers as ours

    assert "verifiers" not in sys.modules
    with pytest.raises(AttributeError, match="FleetJugde"):
        _ = ours.FleetJugde


def test_contract_complete_has_the_signature_that_verifiers_calls(adapter: Any) -> None:
    ours, theirs = (list(inspect.signature(cls.complete).parameters.values()) for cls in (adapter.FleetJudge, verifiers_stub.Judge))
    assert [(each.name, each.kind) for each in ours] == [(each.name, each.kind) for each in theirs]
    assert inspect.iscoroutinefunction(adapter.FleetJudge.complete)


async def test_contract_thirty_two_calls_go_through_one_client_at_once_and_are_recorded_as_usual(
    adapter: Any, client_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [Trace() for _ in range(32)]
    client, together = judge_of(adapter, fleet=client_file).client, asyncio.Barrier(32)
    send = client.chat_completion

    async def sent(*args: Any, **settings: Any) -> Any:
        await together.wait()
        return await send(*args, **settings)

    monkeypatch.setattr(client, "chat_completion", sent)

    async def one(at: int) -> Any:
        return await judge_of(adapter, fleet=client_file).evaluate(trace=traces[at], answer=at, response=at + at % 2)

    assert [response.parsed for response in await asyncio.gather(*map(one, range(32)))] == [float(at % 2 == 0) for at in range(32)]
    for at, trace in enumerate(traces):
        (call,) = trace.calls
        assert call["request"]["model"] == "judge-7b"
        assert call["request"]["messages"][0]["content"].startswith(f"Reference answer: {at}\n")
        assert call["response"]["usage"]["completion_tokens"] > 0


async def test_contract_sampling_and_the_requests_own_settings_reach_the_server(adapter: Any, client_file: Path, fleet: FakeFleet) -> None:
    asked: list[Any] = []
    judge = judge_of(adapter, fleet=client_file, sampling={"temperature": 0.5, "top_k": 3}, deadline=7, priority=2)

    class Client:
        async def chat_completion(self, messages: Any, model: str, **settings: Any) -> Any:
            asked.append((messages, model, settings))
            raise RequestTimeout("no answer in time")

    judge.client = Client()
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for sampling in ({}, {"temperature": 0.0, "timeout": 3.0, "extra_headers": {"X-A": "b"}}):
        with pytest.raises(RequestTimeout):
            await judge.complete(messages, **sampling)
    first, second = (settings for _, _, settings in asked)
    assert asked[0][:2] == (messages, "judge-7b")
    assert first == {"timeout": 7.0, "priority": 2, "extra_headers": None, "extra_body": {"temperature": 0.5, "top_k": 3}}
    assert (second["timeout"], second["extra_headers"], second["extra_body"]["temperature"]) == (3.0, {"X-A": "b"}, 0.0)
    with pytest.raises(ConfigError, match="extra_query"):
        await judge.complete(messages, extra_query={"a": "b"})


async def test_a_failed_judge_never_becomes_a_score(adapter: Any, client_file: Path, fleet: FakeFleet) -> None:
    fleet.set("judge-0", faults=Faults(error_500=1.0), latency=Latency())
    trace = Trace()
    with pytest.raises(QRewardError):
        await judge_of(adapter, fleet=client_file, deadline=1).evaluate(trace=trace, answer=1, response=1)
    assert trace.calls == []


async def test_an_answer_that_cannot_be_parsed_raises_and_is_recorded_for_it_was_paid(
    adapter: Any, client_file: Path, fleet: FakeFleet
) -> None:
    fleet.set("judge-0", responder=lambda messages: "I cannot say")
    trace = Trace()
    with pytest.raises(json.JSONDecodeError):
        await judge_of(adapter, fleet=client_file).evaluate(trace=trace, answer=1, response=1)
    assert trace.calls[0]["response"]["text"] == "I cannot say"


async def test_an_answer_that_is_not_whole_raises_and_is_recorded_for_it_was_paid(adapter: Any, client_file: Path) -> None:
    class Client:
        async def chat_completion(self, messages: Any, model: str, **settings: Any) -> Any:
            message = {"role": "assistant", "content": '{"score": 1}'}
            choice = {"index": 0, "finish_reason": "length", "message": message}
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
            return ChatCompletion.model_validate(whole)

    judge, trace = judge_of(adapter, fleet=client_file), Trace()
    judge.client = Client()
    with pytest.raises(InvalidResponse, match="not whole: finish_reason 'length'"):
        await judge.evaluate(trace=trace, answer=1, response=1)
    assert trace.calls[0]["response"]["text"] == '{"score": 1}'


class Opinion(BaseModel):
    reason: str = ""
    score: int


async def test_structured_output_is_an_object_of_the_schema_or_an_error(adapter: Any, client_file: Path, fleet: FakeFleet) -> None:
    judge = judge_of(adapter, fleet=client_file)
    fleet.set("judge-0", responder=lambda messages: '{"reason": "so", "score": 1}')
    assert (await judge.complete("q", schema=Opinion)).parsed == Opinion(reason="so", score=1)
    fleet.set("judge-0", responder=lambda messages: '{"reason": "so"}')
    with pytest.raises(InvalidResponse, match="not a valid Opinion"):
        await judge.complete("r", schema=Opinion)


def test_a_schema_is_strict_all_the_way_down(adapter: Any) -> None:
    class Several(BaseModel):
        opinions: list[Opinion]
        best: Opinion | None = None

    sent = adapter.strict_schema(Several)["json_schema"]
    inner = sent["schema"]["$defs"]["Opinion"]
    assert sent["strict"] is True
    assert sent["schema"]["required"] == ["opinions", "best"]
    assert inner["required"] == ["reason", "score"]
    assert sent["schema"]["additionalProperties"] is inner["additionalProperties"] is False
    assert "default" not in json.dumps(sent)


def test_without_a_fleet_the_judges_own_endpoint_is_one(adapter: Any, monkeypatch: pytest.MonkeyPatch, client_file: Path) -> None:
    (endpoint,) = judge_of(adapter, base_url="http://127.0.0.1:9/v1", headers={"X-Team": "a"}).client.config.endpoints
    assert (endpoint.base_url, endpoint.models) == ("http://127.0.0.1:9/v1", ("*",))
    assert list(endpoint.headers) == ["X-Team"]
    monkeypatch.setenv("QREWARD_CONFIG", str(client_file))
    assert adapter.FleetJudgeConfig().fleet == client_file
    with pytest.raises(ConfigError, match="takes a FleetJudgeConfig"):
        adapter.FleetJudge(verifiers_stub.JudgeConfig())


async def test_contract_a_legacy_judge_rubric_gets_its_answer_from_the_client_as_from_an_sdk(client_file: Path) -> None:
    async def main() -> str:
        async with QRewardClient.from_config(client_file) as judge_client:
            asked = [{"role": "user", "content": "Reference answer: 4\nCandidate answer: 4"}]
            answer: Any = judge_client.chat.completions.create(model="judge-7b", messages=asked, temperature=0.0, max_tokens=64)
            answer = await answer if inspect.isawaitable(answer) else answer  # as its maybe_await does
            return str(answer.choices[0].message.content)

    assert json.loads(await main())["score"] == 1


async def test_a_rollout_is_scored_by_an_adapters_settings_and_a_failure_is_no_zero(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scorer = installed_scorer(monkeypatch)

    def judge(name: str, view: str = "last_reply", **changes: Any) -> Any:
        file = tmp_path / name
        file.write_text(json.dumps({**SETTINGS, **changes}), encoding="utf-8")
        return adapter.RewardJudge(adapter.RewardJudgeConfig(settings=file, view=view))

    task = verifiers_stub.TaskData()
    assert await judge("a.json").score(task, Trace("0.5")) == 0.5
    assert {name: scorer.asked[0][name] for name in ("prompt", "response", "reference")} == {
        "prompt": "2 + 2?",
        "response": "0.5",
        "reference": "4",
    }
    with pytest.raises(RequestTimeout):
        await judge("a.json").score(task, Trace("no number"))
    assert await judge("c.json", on_failure=0.0).score(task, Trace("no number")) == 0.0
    assert await judge("d.json", view="full_trace", on_failure=-1.0).score(task, Trace("no number")) == -1.0
    assert scorer.asked[-1]["response"].startswith("user: 2 + 2?")


async def test_settings_that_verifiers_cannot_use_are_refused_with_its_configuration(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And so before a rollout is paid for. Settings that are named only later are refused before anything is asked."""
    scorer = installed_scorer(monkeypatch)
    for name, changes, said in (
        ("none.json", {"on_failure": "none"}, r"none\.json: on_failure: none is not possible with verifiers"),
        ("both.json", {"reward_model": "rm-7b"}, r"both\.json: set exactly one of judge"),
    ):
        file = tmp_path / name
        file.write_text(json.dumps({**SETTINGS, **changes}), encoding="utf-8")
        with pytest.raises(ValueError, match=said):
            adapter.RewardJudgeConfig(settings=file)
        monkeypatch.setenv("QREWARD_REWARD", str(file))
        with pytest.raises(ValueError, match=said):
            adapter.RewardJudgeConfig()
        monkeypatch.delenv("QREWARD_REWARD")
        later = adapter.RewardJudge(adapter.RewardJudgeConfig())
        monkeypatch.setenv("QREWARD_REWARD", str(file))
        with pytest.raises(ConfigError, match=said):
            await later.score(verifiers_stub.TaskData(), Trace("0.5"))
        monkeypatch.delenv("QREWARD_REWARD")
    assert scorer.asked == []


async def test_what_a_scorer_answered_is_recorded_with_its_tokens_also_if_it_was_no_verdict(
    adapter: Any, fleet: FakeFleet, tmp_path: Path
) -> None:
    settings = json.loads(settings_of(fleet, tmp_path).read_text(encoding="utf-8"))
    file = tmp_path / "votes.json"
    file.write_text(json.dumps({**settings, "judge": {**settings["judge"], "samples": 2}}), encoding="utf-8")
    judge = adapter.RewardJudge(adapter.RewardJudgeConfig(settings=file, name="grade"))
    trace = Trace("4")
    assert await judge.score(verifiers_stub.TaskData(), trace) == 1.0
    first, second = trace.calls
    assert first["name"] == second["name"] == "grade"
    assert first["request"] == {"model": "judge-7b", "prompt": "2 + 2?", "response": "4", "reference": "4"}
    assert json.loads(first["response"]["text"])["score"] == first["response"]["parsed"] == 1.0
    assert first["response"]["usage"]["completion_tokens"] > 0
    assert second["response"]["usage"] is None  # it is in the first one's

    fleet.set("judge-0", responder=lambda messages: "I cannot say")
    trace = Trace("4")
    with pytest.raises(InvalidResponse):
        await judge.score(verifiers_stub.TaskData(), trace)
    (failed,) = trace.calls
    assert failed["request"]["model"] == "judge-7b"
    assert (failed["response"]["text"], failed["response"]["parsed"]) == ("", None)
    assert failed["response"]["usage"]["prompt_tokens"] > 0

    fleet.set("judge-0", faults=Faults(error_500=1.0))
    hasty = tmp_path / "hasty.json"
    hasty.write_text(json.dumps({**settings, "deadline": 0.5}), encoding="utf-8")
    trace = Trace("4")
    with pytest.raises(QRewardError):
        await adapter.RewardJudge(adapter.RewardJudgeConfig(settings=hasty)).score(verifiers_stub.TaskData(), trace)
    assert trace.calls == []


def test_a_judge_that_sends_its_own_requests_is_not_taken_for_one_that_asks_the_fleet(adapter: Any) -> None:
    with pytest.raises(ConfigError, match="DecisionJudge posts to an evaluations API by itself"):

        class FleetDecisionJudge(adapter.FleetJudge, verifiers_stub.DecisionJudge):  # type: ignore[misc]
            pass


async def test_the_decision_judge_asks_the_fleet_for_a_decision_and_records_it(adapter: Any, tmp_path: Path) -> None:
    fakes = [FakeEndpoint("a", decisions="vllm", synthetic_judge=SyntheticJudge(label_mass=0.7))]
    async with FakeFleet(fakes) as fleet:
        file = tmp_path / "fleet.json"
        file.write_text(json.dumps({"endpoints": [{"base_url": fleet.urls["a"], "kind": "vllm"}]}), encoding="utf-8")
        given = {"model": "judge-7b", "fleet": file, "levels": ["bad", "fair", "good"]}
        judge = adapter.FleetDecisionJudge(adapter.FleetDecisionJudgeConfig(**given))
        judge.prompt = "Grade the response."
        trace = Trace()
        found = await judge.evaluate(trace=trace, question="2 + 2?", response="4 truth=0.75")
        assert found.parsed == pytest.approx(0.75, abs=0.01)
        (call,) = trace.calls
        assert call["request"]["state"] == {"question": "2 + 2?", "response": "4 truth=0.75"}
        assert call["request"]["question"] == {"instructions": "Grade the response.", "levels": ["bad", "fair", "good"]}
        assert call["response"]["usage"]["prompt_tokens"] > 0
        assert set(json.loads(found.text)["probabilities"]) == {"bad", "fair", "good"}
        fleet.set("a", synthetic_judge=SyntheticJudge(label_mass=0.2))
        with pytest.raises(InvalidResponse, match=r"all levels together have a probability of 0\.2"):
            await judge.evaluate(trace=trace, question="2 + 2?", response="4 truth=0.75")
        assert [call["response"]["parsed"] for call in trace.calls] == [found.parsed, None]
        judge.config.levels = ["1", "2"]
        with pytest.raises(ConfigError, match="servers number levels from 0"):
            await judge.evaluate(question="2 + 2?", response="4")
        close_all()
