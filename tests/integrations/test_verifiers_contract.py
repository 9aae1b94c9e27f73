"""verifiers 0.4 calls ``complete`` of a judge as it does here; ours asks one shared client, and never scores a failure."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import verifiers_stub
from adapter_fakes import SETTINGS
from adapter_fakes import installed as installed_scorer
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from shared_tools import completion
from trainers_tools import settings_of
from verifiers_stub import Trace

from qreward.errors import ConfigError, InvalidResponse, QRewardError, RequestTimeout
from qreward.testing import FakeFleet, Faults, Latency

pytestmark = pytest.mark.real_time


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("QREWARD_CONFIG", raising=False)
    return verifiers_stub.installed(monkeypatch)


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


def test_contract_complete_has_the_signature_that_verifiers_calls_and_the_base_classes_are_checked(adapter: Any) -> None:
    ours, theirs = (list(inspect.signature(cls.complete).parameters.values()) for cls in (adapter.FleetJudge, verifiers_stub.Judge))
    assert [(each.name, each.kind) for each in ours] == [(each.name, each.kind) for each in theirs]
    assert inspect.iscoroutinefunction(adapter.FleetJudge.complete)
    with pytest.raises(ConfigError, match="takes a FleetJudgeConfig"):
        adapter.FleetJudge(verifiers_stub.JudgeConfig())
    with pytest.raises(ConfigError, match="DecisionJudge posts to an evaluations API by itself"):
        type("OurDecisionJudge", (adapter.FleetJudge, verifiers_stub.DecisionJudge), {})


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


async def test_a_failed_judge_never_becomes_a_score_and_what_was_paid_is_recorded(
    adapter: Any, client_file: Path, fleet: FakeFleet
) -> None:
    async def refused(kind: type[Exception], said: str, judge: Any) -> list[Any]:
        trace = Trace()
        with pytest.raises(kind, match=said):
            await judge.evaluate(trace=trace, answer=1, response=1)
        return [call["response"]["text"] for call in trace.calls]

    class Cut:
        async def chat_completion(self, messages: Any, model: str, **settings: Any) -> Any:
            return ChatCompletion.model_validate(completion('{"score": 1}', choices=[choice]))

    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": '{"score": 1}'}}
    judge = judge_of(adapter, fleet=client_file)
    judge.client = Cut()
    assert await refused(InvalidResponse, "not whole: finish_reason 'length'", judge) == ['{"score": 1}']
    fleet.set("judge-0", responder=lambda messages: "I cannot say")
    assert await refused(json.JSONDecodeError, "Expecting value", judge_of(adapter, fleet=client_file)) == ["I cannot say"]
    fleet.set("judge-0", faults=Faults(error_500=1.0), latency=Latency())
    assert await refused(QRewardError, "500", judge_of(adapter, fleet=client_file, deadline=1)) == []


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
    assert (endpoint.base_url, endpoint.models, list(endpoint.headers)) == ("http://127.0.0.1:9/v1", ("*",), ["X-Team"])
    monkeypatch.setenv("QREWARD_CONFIG", str(client_file))
    assert adapter.FleetJudgeConfig().fleet == client_file


def reward_judge(adapter: Any, folder: Path, settings: dict[str, Any], **config: Any) -> Any:
    """One with a settings file of its own."""
    file = folder / f"reward{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps(settings), encoding="utf-8")
    return adapter.RewardJudge(adapter.RewardJudgeConfig(settings=file, **config))


async def test_a_rollout_is_scored_by_an_adapters_settings_and_a_failure_is_no_zero(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scorer, task = installed_scorer(monkeypatch), verifiers_stub.TaskData()
    judge = reward_judge(adapter, tmp_path, SETTINGS)
    assert await judge.score(task, Trace("0.5")) == 0.5
    assert scorer.asked[0].items() >= {"prompt": "2 + 2?", "response": "0.5", "reference": "4"}.items()
    with pytest.raises(RequestTimeout):
        await judge.score(task, Trace("no number"))
    for chosen, view in ((0.0, "last_reply"), (-1.0, "full_trace")):
        judge = reward_judge(adapter, tmp_path, {**SETTINGS, "on_failure": chosen}, view=view)
        assert await judge.score(task, Trace("no number")) == chosen
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
    settings, task = json.loads(settings_of(fleet, tmp_path).read_text(encoding="utf-8")), verifiers_stub.TaskData()
    judge = reward_judge(adapter, tmp_path, {**settings, "judge": {**settings["judge"], "samples": 2}}, name="grade")
    trace = Trace("4")
    assert await judge.score(task, trace) == 1.0
    first, second = trace.calls
    assert first["name"] == second["name"] == "grade"
    assert first["request"] == {"model": "judge-7b", "prompt": "2 + 2?", "response": "4", "reference": "4"}
    assert json.loads(first["response"]["text"])["score"] == first["response"]["parsed"] == 1.0
    assert first["response"]["usage"]["completion_tokens"] > 0
    assert second["response"]["usage"] is None  # it is in the first one's

    fleet.set("judge-0", responder=lambda messages: "I cannot say")
    trace = Trace("4")
    with pytest.raises(InvalidResponse):
        await judge.score(task, trace)
    (failed,) = trace.calls
    assert (failed["request"]["model"], failed["response"]["text"], failed["response"]["parsed"]) == ("judge-7b", "", None)
    assert failed["response"]["usage"]["prompt_tokens"] > 0

    fleet.set("judge-0", faults=Faults(error_500=1.0))
    trace = Trace("4")
    with pytest.raises(QRewardError):
        await reward_judge(adapter, tmp_path, {**settings, "deadline": 0.5}).score(task, trace)
    assert trace.calls == []
