"""What a judge has spent, failures included, and its budget: when it is spent, nothing more is sent, and nothing becomes a number."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from judge_tools import (
    MODEL,
    QUESTION,
    JudgeBackend,
    Sent,
    always,
    answer,
    broken,
    client_of,
    endpoint,
    in_turn,
    judge_over,
    judging,
    score,
)

from qreward.errors import BudgetExceeded, ConfigError, InvalidResponse, RequestTimeout
from qreward.judge import Cascade, Judge
from qreward.records import Usage, added
from qreward.scheduler.outcome import Answer
from qreward.settings.policies import Endpoint
from qreward.testing.virtual_time import run_in_virtual_time

PRICED = endpoint(price=(1e6, 2e6))  # 10 prompt and 5 completion tokens cost 20 dollars
ITEMS = [("p", f"a{number}") for number in range(100)]


def test_dollars_and_tokens_count_answers_that_could_not_be_read_and_failures_whose_cost_is_not_known() -> None:
    for script, usage in (
        (always(score(7)), (15, 20.0, 0)),
        (in_turn("no verdict", score(7)), (30, 40.0, 0)),
        (in_turn(broken(), score(7)), (15, 20.0, 1)),
    ):
        verdict = judging(JudgeBackend(script), lambda judge: judge.score(*QUESTION), PRICED)
        assert (verdict.usage.tokens, verdict.usage.cost, verdict.usage.unreported) == usage

    async def failing(judge: Judge) -> Any:
        with pytest.raises(InvalidResponse) as caught:
            await judge.score(*QUESTION)
        return caught.value.usage, judge.spent

    usage, spent = judging(JudgeBackend(always("no verdict")), failing, PRICED)
    assert (usage.tokens, usage.cost) == (spent.tokens, spent.cost) == (30, 40.0)

    async def late(judge: Judge) -> Any:
        with pytest.raises(RequestTimeout) as caught:
            await judge.score(*QUESTION, timeout=5)
        return caught.value.usage

    assert judging(JudgeBackend(always(score(7), seconds=60.0)), late, PRICED).unreported == 1
    free = judging(JudgeBackend(always(score(7))), lambda judge: judge.score(*QUESTION))
    assert free.usage.cost is None, "not 0: no price is known"


def test_votes_that_are_not_waited_for_count_as_not_reported() -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1 if sent.params["seed"] < 2 else 60)
        return "?"

    with pytest.raises(InvalidResponse) as caught:
        judging(JudgeBackend(script), lambda judge: judge.score(*QUESTION), PRICED, samples=3, seed=0, reasks=0)
    assert caught.value.usage is not None
    assert (caught.value.usage.cost, caught.value.usage.unreported) == (40.0, 1)


def test_usages_are_added_with_what_is_not_known() -> None:
    one, other = Usage(1, 2, 3, cost=0.5, unreported=1), Usage(1, 1)
    assert added(one, other) == Usage(2, 3, 3, cost=0.5, unreported=1)
    assert (one.tokens, other.tokens, Usage().tokens) == (3, 2, 0)


def test_a_spent_budget_stops_a_batch_with_errors_and_what_is_in_flight_is_finished(caplog: pytest.LogCaptureFixture) -> None:
    for budget, said in ((100, r"\$100 of \$100"), ({"tokens": 75}, "75 of 75 tokens"), ({"cost": 100, "tokens": 10**6}, r"\$100 of")):
        caplog.clear()
        backend = JudgeBackend(always(score(7)))

        async def use(judge: Judge) -> Any:
            return await judge.batch_score(ITEMS)

        batch = judging(backend, use, endpoint(slots=1, price=(1e6, 2e6)), budget=budget)
        assert len(backend.sent) == 6, "one was in flight when the fifth was counted"
        assert batch.scores(default=None) == [0.7] * 6 + [None] * 94
        assert {type(error) for error in batch.errors.values()} == {BudgetExceeded}
        (record,) = caplog.records
        assert re.search(f"the budget of the judge 'judge-7b' is spent .{said}", record.getMessage())


def test_many_single_calls_stop_at_the_budget_too_and_questions_asked_again_count() -> None:
    backend = JudgeBackend(always("no verdict"))

    async def use(judge: Judge) -> Any:
        return await asyncio.gather(*(judge.score(*item) for item in ITEMS), return_exceptions=True)

    errors = judging(backend, use, endpoint(slots=1, price=(1e6, 2e6)), budget=90.0, reasks=1)
    assert len(backend.sent) == 6
    assert {type(error) for error in errors} <= {BudgetExceeded, InvalidResponse}
    assert sum((error.usage or Usage()).cost or 0.0 for error in errors) == 120.0


def test_attempts_without_a_reported_cost_count_as_the_mean_answer() -> None:
    backend = JudgeBackend(in_turn(score(7), broken(), broken(), broken(), score(7)))

    async def use(judge: Judge) -> Any:
        return await judge.batch_score(ITEMS), judge.spent

    batch, spent = judging(backend, use, endpoint(slots=1, price=(1e6, 2e6)), budget=200.0)
    assert (spent.unreported, spent.cost) == (3, 160.0), "7 answers, 3 failures that count as 3 answers, and one in flight"
    assert len(batch.errors) == len(ITEMS) - 8


def test_the_next_stage_of_a_cascade_decides_when_the_budget_of_a_stage_is_spent() -> None:
    backend = JudgeBackend(always(score(7)))

    async def run() -> Any:
        async with client_of(backend, endpoint(slots=1, price=(1e6, 2e6), models=["*"])) as client:
            first = Judge(client, model=MODEL, budget=40.0)
            cascade = Cascade({"dear": first, "cheap": Judge(client, model="judge-1b")}, min_confidence=0.0, confidence=lambda _: 1.0)
            return [(await cascade.score("p", f"a{number}")).decided_by for number in range(4)]

    assert run_in_virtual_time(run()) == ["dear", "dear", "cheap", "cheap"]


@pytest.mark.real_time
async def test_an_answer_of_the_cache_costs_nothing_and_needs_no_budget(tmp_path: Path) -> None:
    backend = JudgeBackend(always(score(7), seconds=0.0))
    async with judge_over(backend, PRICED, budget=20.0, cache=tmp_path / "cache.db") as judge:
        first, second = await judge.score(*QUESTION), await judge.score(*QUESTION)
    assert (first.score, second.score, second.usage, len(backend.sent)) == (0.7, 0.7, None, 1)


def test_wrong_budgets_are_refused_before_a_request() -> None:
    backend = JudgeBackend(always(score(7)))
    for budget, where, said in (
        (0, PRICED, "budget.cost: must be more than 0"),
        (True, PRICED, "budget"),
        ({}, PRICED, "set cost"),
        ({"dollars": 3}, PRICED, "unknown setting 'dollars'"),
        ({"tokens": 1.5}, PRICED, "budget.tokens"),
        (5.0, endpoint(), "needs the price of the endpoints"),
    ):
        with pytest.raises(ConfigError, match=said):
            judging(backend, lambda judge: judge.score(*QUESTION), where, budget=budget)
    assert backend.sent == []


def test_answers_without_token_counts_end_a_budget_in_dollars_only_if_their_endpoint_has_a_price() -> None:
    class Silent(JudgeBackend):
        async def send(self, endpoint: Endpoint, call: Any) -> Any:
            body = json.loads(answer(score(7)))
            del body["usage"]
            return Answer(call.codec.decode(json.dumps(body).encode(), call))

    async def use(judge: Judge) -> Any:
        return await judge.batch_score(ITEMS)

    priced = endpoint("priced", models=["another"], price=(1.0, 1.0))
    for price, budget, all_done in ((None, 100.0, True), ((1.0, 1.0), 100.0, False), (None, {"cost": 100, "tokens": 10**9}, False)):
        batch = judging(Silent(always("")), use, endpoint(slots=1, price=price), priced, budget=budget)
        assert (batch.stats.ok == len(ITEMS)) is all_done, (price, budget)
        assert {type(error) for error in batch.errors.values()} <= {BudgetExceeded}
