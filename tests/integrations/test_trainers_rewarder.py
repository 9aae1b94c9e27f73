"""A rewarder keeps its deadline whatever the scorer does, tells failures from faults of code, and makes no number of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from adapter_fakes import FakeScorer, installed
from fakes.endpoint import ModelEndpoint
from shared_tools import each

from qreward.errors import BadRequest, BudgetExceeded, ConfigError, InvalidResponse, QRewardError, RequestTimeout
from qreward.integrations import verl
from qreward.integrations.roll import metrics_of
from qreward.integrations.trainers import Adapter, RewardConfig, Rewarder, Scored, rewarder
from qreward.integrations.trainers.rewarder import close_all
from qreward.integrations.trl import reward
from qreward.judge import CascadeConfig
from qreward.judge.types import Verdict, Vote
from qreward.results import Usage
from qreward.settings.client import ClientConfig
from qreward.testing import FakeEndpoint, FakeFleet

FAILED = Scored(None, RequestTimeout("no reward within 5 s"), 5.0)


class Deaf(FakeScorer):
    """A user's scorer that knows no time-outs."""

    async def score(self, prompt: Any, response: Any, **fields: Any) -> Verdict:
        await asyncio.sleep(3600)
        return Verdict(0.0, (Vote(0.0),))


async def test_a_scorer_of_the_users_needs_no_more_than_its_methods() -> None:
    scorer = FakeScorer()
    scored = await Rewarder(scorer, 5.0, RewardConfig(reward_model="rm", priority=3)).score("2 + 2?", "0.25", reference="4", topic="sums")
    assert (scored.ok, scored.score(None), scored.reason) == (True, 0.25, "")
    assert scorer.asked == [{"prompt": "2 + 2?", "response": "0.25", "reference": "4", "topic": "sums"}]
    assert (scorer.timeouts, scorer.priorities) == ([5.0], [3])


async def test_a_scorer_that_keeps_no_deadline_is_left_a_little_after_it_and_at_once_with_its_caller() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    scored, seconds = await Rewarder(Deaf(), deadline=5.0).score("p", "r"), loop.time() - begun
    assert isinstance(scored.error, RequestTimeout)
    assert scored.reason == "RequestTimeout: no reward within 5 s"
    assert (scored.ok, scored.score(None)) == (False, None)
    assert 5.0 <= seconds <= 6.001
    task = asyncio.create_task(Rewarder(Deaf(), deadline=5.0).score("p", "r"))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_failure_is_a_result_with_its_reason_and_raises_nothing() -> None:
    error = InvalidResponse("no verdict in the answer\nsecond line", model="judge-7b")
    scored = await Rewarder(FakeScorer(lambda _: error), deadline=5.0).score("p", "r")
    assert scored.verdict is None
    assert scored.error is error
    assert scored.reason == "InvalidResponse: no verdict in the answer"


async def test_tokens_are_counted_whatever_came_of_them() -> None:
    paid, unpaid = InvalidResponse("no verdict in the answer"), InvalidResponse("no verdict in the answer")
    paid.usage = Usage(20, 10, None)
    verdict = Verdict(1.0, (Vote(1.0),), usage=Usage(total_tokens=7))
    scored = [Scored(verdict, None, 0.1), Scored(None, paid, 0.1), Scored(None, unpaid, 0.1), Scored(Verdict(1.0, ()), None, 0.1)]
    assert [each.tokens for each in scored] == [7, 30, 0, 0]
    assert verl.result_of(scored[1], RewardConfig(reward_model="rm", on_failure=-1.0))["judge_tokens"] == 30.0
    assert metrics_of(scored)["judge/tokens"] == [7.0, 30.0, 0.0, 0.0]
    told: dict[str, float] = {}
    await reward(judge=FakeScorer(lambda _: paid))(["p"] * 2, ["r"] * 2, log_metric=told.__setitem__)
    assert told["judge/tokens"] == 60.0


async def test_a_fault_of_code_and_settings_that_do_not_fit_the_data_are_no_failures_of_a_judge() -> None:
    for error in (KeyError("answer"), ConfigError("the prompt names {rubric}, but the item has no 'rubric'")):
        scorer = FakeScorer({"r": error}.__getitem__)
        with pytest.raises(type(error)):
            await Rewarder(scorer, deadline=5.0).score("p", "r")


async def test_a_response_that_is_missing_is_a_failed_item_and_the_scorer_is_not_asked() -> None:
    scorer = FakeScorer()
    items: list[dict[str, Any]] = [
        {"prompt": "p", "response": "1"},
        {"prompt": "p", "response": None},
        {"prompt": "p"},
        {"prompt": "p", "response": "0.5"},
    ]
    scored = await Rewarder(scorer, deadline=5.0).score_many(items)
    assert [each.score(None) for each in scored] == [1.0, None, None, 0.5]
    assert all(isinstance(each.error, BadRequest) and "no response" in each.reason for each in scored[1:3])
    assert len(scorer.asked) == 2


@each("reads, bad, kind", [(lambda said: len(said.encode()), "\ud83d", "UnicodeEncodeError"), (float, "one \ud83d", "ValueError")])
async def test_an_item_whose_text_the_scorer_cannot_take_fails_alone_and_is_logged(
    reads: Callable[[str], float], bad: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    items = [{"prompt": "p", "response": response} for response in ("1", bad, bad, "2")]
    scored = await Rewarder(FakeScorer(reads), deadline=5.0).score_many(items)
    assert [each.ok for each in scored] == [True, False, False, True]
    error = scored[1].error
    assert isinstance(error, BadRequest)
    assert type(error.__cause__).__name__ == kind
    assert kind in scored[1].reason
    scored[1].reason.encode()
    caplog.text.encode()  # which a file takes
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]  # the first shows where
    assert all(kind in record.getMessage() for record in caplog.records)


async def test_a_field_that_only_some_items_have_is_the_failure_of_the_others() -> None:
    class NeedsReference(FakeScorer):
        async def score(self, prompt: Any, response: Any, **given: Any) -> Verdict:
            if given["reference"] is None:
                raise ConfigError("the prompt names {reference}, but the item has no 'reference'")
            return await super().score(prompt, response, **given)

    without = {"prompt": "p", "response": "1", "reference": None}
    for absent in (None, "", " ", nan):  # also alone, as the data has the field
        assert not (await Rewarder(NeedsReference(), deadline=5.0).score(**{**without, "reference": absent})).ok
    made = Rewarder(NeedsReference(), deadline=5.0)
    scored = await made.score_many([without, {**without, "reference": "1"}, {"prompt": "p", "response": "2"}])
    assert [each.ok for each in scored] == [False, True, False]
    assert "reference" in scored[0].reason
    with pytest.raises(ConfigError, match="reference"):  # no item has the field, whatever came before
        await made.score_many([{"prompt": "p", "response": "1"}, {"prompt": "p", "response": "2"}])


async def test_a_score_that_is_no_finite_number_is_the_error_of_its_item(caplog: pytest.LogCaptureFixture) -> None:
    for odd in (nan, inf, -inf, 10**400, "0.5", None):
        numbers: dict[str, Any] = {"good": 1.0, "odd": odd}
        made = Rewarder(FakeScorer(numbers.__getitem__), deadline=5.0)
        good, bad = await made.score_many([{"prompt": "p", "response": response} for response in numbers])
        assert (good.ok, bad.ok, type(bad.error), bad.tokens) == (True, False, InvalidResponse, 7), odd
        assert "is not a finite number" in bad.reason
    (bad,) = await Rewarder(FakeScorer(float, {"helpfulness": nan}), deadline=5.0).score_many([{"prompt": "p", "response": "1"}])
    assert "as 'helpfulness', which is not a finite number" in bad.reason
    assert await reward(judge=FakeScorer(lambda _: nan), on_failure=-1.0)(["p"], ["r"]) == [-1.0]
    with pytest.raises(InvalidResponse):
        await reward(judge=FakeScorer(lambda _: inf), on_failure="raise")(["p"], ["r"])


async def test_many_are_scored_at_once_and_come_back_in_their_order() -> None:
    scorer, begun = FakeScorer(), asyncio.get_running_loop().time()
    scored = await Rewarder(scorer, deadline=5.0).score_many({"prompt": "p", "response": str(at / 100)} for at in range(100))
    assert [each.score(None) for each in scored] == [at / 100 for at in range(100)]
    assert scorer.peak == 100
    assert asyncio.get_running_loop().time() - begun < 1


@pytest.mark.real_time
async def test_a_cascade_of_the_settings_asks_its_stages_and_says_which_one_decided() -> None:
    fakes = [ModelEndpoint(name, models=[model], dialect="vllm") for name, model in (("small", "judge-7b"), ("strong", "judge-70b"))]
    judge = {"method": "decide", "verdict": "yes_no"}
    cascade: dict[str, Any] = {
        "stages": {"quick": {"model": "judge-7b", **judge}, "good": {"model": "judge-70b", **judge}},
        "min_confidence": 0.75,
    }
    async with FakeFleet(fakes) as fleet:
        made = rewarder(
            RewardConfig(client=ClientConfig(endpoints=tuple(fleet.endpoints)), cascade=CascadeConfig(**cascade)), deadline=10.0
        )
        found = await made.score_many({"prompt": "q", "response": f"a truth={truth}"} for truth in (0.95, 0.6))
        close_all()
    assert [(each.verdict.decided_by, round(each.verdict.score, 2)) for each in found if each.verdict] == [("quick", 0.95), ("good", 0.6)]


def test_the_settings_deadline_goes_before_the_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    settings = {"client": {"endpoints": [{"base_url": "http://127.0.0.1:9/v1"}]}, "reward_model": "rm-7b"}
    assert rewarder(settings, deadline=12.0).deadline == 12.0
    assert rewarder({**settings, "deadline": 3.0}, deadline=12.0).deadline == 3.0


def reward_of(scored: Scored, on_failure: Any, default: Any) -> float | None:
    """What an adapter with this default makes of it."""
    return Adapter("mine", 5.0, {"response": ("text",)}, default).reward(scored, RewardConfig(reward_model="rm", on_failure=on_failure))


def test_a_failure_is_what_was_chosen_for_it_and_a_reward_is_what_was_scored() -> None:
    chosen = {("none", "raise"): None, ("default", "none"): None, (-1.0, "raise"): -1.0, (0.0, "raise"): 0.0, ("default", -999.0): -999.0}
    assert {each: reward_of(FAILED, *each) for each in chosen} == chosen
    raising: list[tuple[Any, Any]] = [("raise", "none"), ("default", "raise"), ("raise", 0.0)]
    for make in (RequestTimeout, InvalidResponse, QRewardError):
        failed = Scored(None, make("failed"), 1.0)
        assert failed.score(None) is None
        assert reward_of(failed, "default", "none") is None
        for chosen_and_default in raising:
            with pytest.raises(make) as raised:
                reward_of(failed, *chosen_and_default)
            assert raised.value is failed.error
    scored = Scored(Verdict(0.0, (Vote(0.0),)), None, 0.1)
    assert [reward_of(scored, on_failure, "raise") for on_failure in ("none", "raise", "default", -1.0)] == [0.0] * 4


@pytest.mark.real_time
async def test_rows_have_rubrics_of_their_own_and_a_wrong_one_is_the_failure_of_its_row() -> None:
    async with FakeFleet([FakeEndpoint("gpu-0", kind="vllm", decisions=True)]) as fleet:
        client = {"endpoints": [{"base_url": url, "kind": "vllm", "proxy": ""} for url in fleet.urls.values()]}
        judge = {"model": "judge-7b", "method": "decide", "rubric_column": "rubric"}
        made = rewarder({"client": client, "judge": judge, "columns": {"rubric": "meta.criteria"}}, deadline=30.0)
        rows: list[Any] = [
            {"prompt": "p", "completion": "truth=0.9", "meta": {"criteria": criteria}}
            for criteria in ("It is right.", '[{"name": "a"}]', None, [{"instructions": "It is right.", "gate": 0.95}], " ")
        ]
        adapter = Adapter("mine", 30.0, {"prompt": ("prompt",), "response": ("completion",)}, missing="none")
        scored = await adapter.score(made, rows)
        assert [None if each.verdict is None else round(each.verdict.score, 3) for each in scored] == [0.9, None, None, 0.0, None]
        assert [type(each.error) for each in scored] == [type(None), BadRequest, ConfigError, type(None), BadRequest]
        assert "the rubric in 'rubric' is wrong: 0.instructions: " in scored[1].reason
        with pytest.raises(ConfigError, match=r"columns: rubric is mapped to 'meta\.criteria', which the data does not have"):
            await adapter.score(made, [{"prompt": "p", "completion": "r"}])
        await made.aclose()
    close_all()


@pytest.mark.real_time
async def test_dollars_and_the_budget_of_a_judge_reach_the_metrics_and_a_spent_budget_is_a_failure() -> None:
    async with FakeFleet([FakeEndpoint("gpu-0", responder="judge")]) as fleet:
        client = {"endpoints": [{"base_url": url, "price": [1, 2], "proxy": ""} for url in fleet.urls.values()]}
        judge = {"model": "judge-7b", "scale": [0, 1], "budget": {"tokens": 1}}
        made = rewarder({"client": client, "judge": judge}, deadline=30.0)
        first = await made.score("6 x 7?", "42", reference="42")
        second = await made.score("6 x 7?", "41", reference="42")
        await made.aclose()
    close_all()
    assert (first.score(None), second.score(None)) == (1.0, None)
    assert isinstance(second.error, BudgetExceeded)
    spent = {name: value for name, value in first.metrics().items() if name not in ("judge_ok", "judge_seconds")}
    assert first.verdict is not None
    assert first.verdict.usage is not None
    used = first.verdict.usage
    assert spent == {"judge_tokens": used.total_tokens, "judge_cost": used.cost, "judge_unreported": 0.0}
    assert used.cost == pytest.approx(((used.prompt_tokens or 0) + 2 * (used.completion_tokens or 0)) / 1e6)
    none = {"judge_ok": 0.0, "judge_seconds": second.seconds, "judge_tokens": 0.0, "judge_cost": 0.0, "judge_unreported": 0.0}
    assert second.metrics() == none
