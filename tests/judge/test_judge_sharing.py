"""The same question asked by several at once is judged once, and nobody's leaving harms the others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from judge_tools import MODEL, JudgeWire, always, client_of, endpoint, in_turn, judge_over, judging, leftovers, now, refused, score

from qreward.errors import BadRequest, InvalidResponse, RequestTimeout
from qreward.judge import Judge

ASKED = ("What is 6 x 7?", "42")


def asking(judge: Judge, *asked: Any, **how: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(judge.score(*(asked or ASKED), **how))


async def test_callers_who_ask_the_same_at_the_same_time_share_one_request() -> None:
    wire = JudgeWire(always(score(8)))
    async with judge_over(wire) as judge:
        verdicts = await asyncio.gather(*(judge.score(*ASKED) for _ in range(20)))
    assert len(wire.sent) == 1
    assert {verdict.score for verdict in verdicts} == {0.8}
    assert [verdict.cached for verdict in verdicts] == [False] + [True] * 19
    assert sum(verdict.usage.total_tokens for verdict in verdicts if verdict.usage) == 15


async def test_one_after_the_other_they_are_judged_each() -> None:
    wire = JudgeWire(always(score(8)))
    async with judge_over(wire) as judge:
        await judge.score(*ASKED)
        await judge.score(*ASKED)
    assert len(wire.sent) == 2


@pytest.mark.parametrize("other", [{"priority": 0}, {"tenant": "t"}, {"reference": "42"}])
async def test_what_differs_in_words_or_in_urgency_is_not_shared(other: dict[str, Any]) -> None:
    wire = JudgeWire(always(score(8)))
    async with judge_over(wire) as judge:
        await asyncio.gather(judge.score(*ASKED), judge.score(*ASKED, **other))
    assert len(wire.sent) == 2


async def test_samples_of_one_item_are_not_shared_with_each_other_but_with_those_of_another_caller() -> None:
    wire = JudgeWire(always(score(8)))
    async with judge_over(wire, samples=3, settle="mean") as judge:
        await asyncio.gather(judge.score(*ASKED), judge.score(*ASKED))
    assert len(wire.sent) == 3


async def test_the_first_caller_may_leave_and_the_request_goes_on_for_the_others() -> None:
    wire = JudgeWire(always(score(8), seconds=10))
    async with judge_over(wire) as judge:
        first, second, third = asking(judge), asking(judge), asking(judge)
        await asyncio.sleep(4)
        first.cancel()
        await asyncio.sleep(1)
        third.cancel()
        value, when = (await second).score, now()
    assert (value, round(when)) == (0.8, 10)
    assert len(wire.sent) == 1
    assert wire.cancelled == []


async def test_when_the_last_caller_leaves_the_request_is_cancelled() -> None:
    wire = JudgeWire(always(score(8), seconds=10))
    async with judge_over(wire) as judge:
        tasks = [asking(judge) for _ in range(3)]
        await asyncio.sleep(4)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0.1)
        assert len(wire.cancelled) == 1


def test_each_caller_has_its_own_time() -> None:
    wire = JudgeWire(always(score(8), seconds=10))

    async def use(judge: Judge) -> list[Any]:
        return await asyncio.gather(
            *(judge.score(*ASKED, timeout=timeout) for timeout in (30, 3, 60)),
            return_exceptions=True,
        )

    first, second, third = judging(wire, use)
    assert isinstance(second, RequestTimeout)
    assert (first.score, third.score) == (0.8, 0.8)
    assert len(wire.sent) == 1


async def test_if_the_time_of_the_first_is_over_the_others_go_on_in_theirs() -> None:
    wire = JudgeWire(always(score(8), seconds=10))
    async with judge_over(wire) as judge:
        tasks = [asking(judge, timeout=timeout) for timeout in (5, 60, 60)]
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, RequestTimeout)
    assert (second.score, third.score) == (0.8, 0.8)
    assert len(wire.sent) == 2


async def test_a_request_that_was_taken_over_does_not_end_with_the_time_of_who_began_it() -> None:
    wire = JudgeWire(always(score(8), seconds=10))
    async with judge_over(wire) as judge:
        first, second = asking(judge, timeout=5), asking(judge, timeout=60)
        await asyncio.sleep(2)
        first.cancel()
        assert float((await second).score) == 0.8


async def test_a_failure_is_told_to_all_each_with_an_error_of_its_own() -> None:
    wire = JudgeWire(always("?"))
    async with judge_over(wire, reasks=1) as judge:
        errors = await asyncio.gather(*(judge.score(*ASKED) for _ in range(3)), return_exceptions=True)
    assert len(wire.sent) == 2
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error, InvalidResponse) and len(error.attempts) == 2 for error in errors)


async def test_a_group_of_a_batch_with_equal_responses_is_judged_once_and_in_order() -> None:
    async def script(sent: Any) -> str:
        await asyncio.sleep(1)
        return score(3 if "wrong" in sent.text else 9)

    wire = JudgeWire(script)
    items = [("q", "right"), ("q", "wrong"), ("q", "right"), ("q", "right"), ("q", "wrong")]
    async with judge_over(wire) as judge:
        batch = await judge.batch_score(items)
    assert [verdict.score for verdict in batch.values()] == [0.9, 0.3, 0.9, 0.9, 0.3]
    assert len(wire.sent) == 2
    assert batch.stats.items == batch.stats.ok == 5
    assert batch.stats.endpoints["a"].won == 2


async def test_a_batch_and_single_calls_share_in_both_ways() -> None:
    wire = JudgeWire(always(score(8), seconds=5))
    async with judge_over(wire) as judge:
        single = asking(judge, "q", "a")
        await asyncio.sleep(1)
        batch = asyncio.create_task(judge.batch_score([("q", "a"), ("q", "b")]))
        await asyncio.sleep(1)
        assert (await asking(judge, "q", "b")).score == 0.8
        assert (await single).score == 0.8
        assert [verdict.score for verdict in (await batch).values()] == [0.8, 0.8]
    assert len(wire.sent) == 2


@pytest.mark.parametrize("slots", [4, 1])
async def test_a_batch_that_is_cancelled_leaves_to_a_single_call_what_that_waits_for_sent_or_not(slots: int) -> None:
    wire = JudgeWire(always(score(8), seconds=5))
    async with judge_over(wire, endpoint(slots=slots)) as judge:
        batch = asyncio.create_task(judge.batch_score([("q", "a"), ("q", "b")]))
        await asyncio.sleep(1)
        single = asking(judge, "q", "b")
        await asyncio.sleep(1)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert float((await single).score) == 0.8
    assert [sent.text.count("b\n```") for sent in wire.sent if sent not in wire.cancelled] == [1]


async def test_a_deadline_of_a_batch_does_not_end_what_a_single_call_waits_for() -> None:
    wire = JudgeWire(always(score(8), seconds=5))
    async with judge_over(wire) as judge:
        batch = asyncio.create_task(judge.batch_score([("q", "a")], deadline=3))
        await asyncio.sleep(1)
        single = asking(judge, "q", "a")
        assert [type(error).__name__ for error in (await batch).errors.values()] == ["DeadlineExceeded"]
        assert (await single).score == 0.8
    assert len(wire.sent) == 1


def test_a_single_call_that_leaves_hands_its_request_to_the_batch_that_waits_for_it() -> None:
    wire = JudgeWire(in_turn("?", score(8), seconds=5))

    async def use(judge: Judge) -> Any:
        single = asking(judge, "q", "a", timeout=7)
        await asyncio.sleep(1)
        batch = asyncio.create_task(judge.batch_score([("q", "a"), ("q", "c")], timeout=60))
        await asyncio.sleep(1)
        single.cancel()
        return (await batch).values()

    assert [verdict.score for verdict in judging(wire, use, reasks=1)] == [0.8, 0.8]


async def test_a_form_that_is_refused_is_settled_for_all_who_wait() -> None:
    async def script(sent: Any) -> Any:
        await asyncio.sleep(1)
        return refused("response_format?") if "response_format" in sent.params else score(5)

    wire = JudgeWire(script)
    async with judge_over(wire, endpoint(slots=5)) as judge:
        batch = await judge.batch_score([("q", str(number)) for number in range(30)])
    assert batch.stats.ok == 30
    assert sum("response_format" in sent.params for sent in wire.sent) <= 15  # two steps of what is in flight; the rest is sent rightly


def test_closing_the_client_ends_all_who_wait_with_client_closed() -> None:
    from qreward.errors import ClientClosed
    from qreward.testing import run_in_virtual_time

    async def run() -> None:
        client = client_of(JudgeWire(always(score(1), seconds=100)))
        judge = Judge(client, model=MODEL, samples=3)
        tasks = [asking(judge) for _ in range(3)]
        batch = asyncio.create_task(judge.batch_score([ASKED, ("q", "b")]))
        await asyncio.sleep(1)
        await client.aclose()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, ClientClosed) for result in results), results
        assert [type(error) for error in (await batch).errors.values()] == [ClientClosed] * 2
        assert leftovers(judge, client) == {}

    run_in_virtual_time(run())


@pytest.mark.parametrize("slots", [4, 1])
async def test_a_batch_that_is_cancelled_leaves_to_another_batch_what_that_waits_for_sent_or_not(slots: int) -> None:
    wire = JudgeWire(always(score(8), seconds=5))
    async with judge_over(wire, endpoint(slots=slots)) as judge:
        first = asyncio.create_task(judge.batch_score([("q", "a"), ("q", "b")]))
        await asyncio.sleep(1)
        second = asyncio.create_task(judge.batch_score([("q", "b"), ("q", "c")]))
        await asyncio.sleep(1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert ([verdict.score for verdict in (await second).values()]) == [0.8, 0.8]
    assert len([sent for sent in wire.sent if sent not in wire.cancelled]) == 2


@pytest.mark.parametrize("slots", [4, 1])
def test_closing_the_client_ends_a_single_call_that_waits_for_a_request_of_a_batch(slots: int) -> None:
    from qreward.errors import ClientClosed
    from qreward.testing import run_in_virtual_time

    async def run() -> None:
        client = client_of(JudgeWire(always(score(1), seconds=100)), endpoint(slots=slots))
        judge = Judge(client, model=MODEL)
        batch = asyncio.create_task(judge.batch_score([("q", "a"), ASKED]))
        await asyncio.sleep(1)
        single = asking(judge, timeout=None)
        await asyncio.sleep(1)
        await client.aclose()
        with pytest.raises(ClientClosed):
            await single
        assert [type(error) for error in (await batch).errors.values()] == [ClientClosed] * 2
        assert leftovers(judge, client) == {}

    run_in_virtual_time(run())


def test_one_judge_serves_several_loops_and_threads_at_once() -> None:
    wire = JudgeWire(always(score(8), seconds=0.02))
    scores: list[float] = []

    async def all_of(judge: Judge) -> None:
        verdicts = await asyncio.gather(*(judge.score("q", str(number % 5)) for number in range(20)))
        scores.extend(verdict.score for verdict in verdicts)
        batch = await judge.batch_score([("q", str(number)) for number in range(20)])
        scores.extend(verdict.score for verdict in batch.values())

    async def made() -> Any:
        return client_of(wire, endpoint(slots=8))

    client = asyncio.run(made())
    judge = Judge(client, model=MODEL)
    threads = [threading.Thread(target=lambda: asyncio.run(all_of(judge))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scores == [0.8] * 160
    asyncio.run(client.aclose())


def test_a_loop_that_was_closed_under_a_call_leaves_nothing_that_another_would_wait_for() -> None:
    wire = JudgeWire(always(score(8), seconds=0.02))

    async def left(judge: Judge) -> None:
        asking(judge)
        await asyncio.sleep(0.005)

    async def asked(judge: Judge) -> float:
        return float((await judge.score(*ASKED)).score)

    client = asyncio.run(asyncio.sleep(0, client_of_now(wire)))
    judge = Judge(client, model=MODEL)
    asyncio.run(left(judge))
    assert asyncio.run(asked(judge)) == 0.8
    asyncio.run(client.aclose())


def client_of_now(wire: JudgeWire) -> Any:
    from qreward import QRewardClient

    return QRewardClient([endpoint(slots=1)], wire_factory=lambda: wire, hedge=None)


async def test_an_error_of_the_arguments_is_told_to_who_made_it_alone() -> None:
    wire = JudgeWire(always(score(8)))

    def build(fields: Any) -> Any:
        return fields["prompt"] if isinstance(fields["prompt"], list) else [{"role": "user", "content": "x"}]

    async with judge_over(wire, prompt=build) as judge:
        good = asking(judge)
        with pytest.raises(BadRequest):
            await judge.score([{"role": 7}], "x", reference=[{"role": "user", "content": "a"}], timeout=5)
        assert (await good).score == 0.8
