"""The same question asked by several at once is judged once, and a call that ends harms no other."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

from judge_tools import MODEL, QUESTION, JudgeBackend, always, client_of, endpoint, judge_over, leftovers, now, score

from qreward import QRewardClient
from qreward.errors import ClientClosed, InvalidResponse, RequestTimeout
from qreward.judge import Judge


def asking(judge: Judge, *asked: Any, **how: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(judge.score(*(asked or QUESTION), **how))


async def test_equal_calls_at_the_same_time_share_one_request_and_later_ones_do_not() -> None:
    backend = JudgeBackend(always(score(8)))
    async with judge_over(backend) as judge:
        verdicts = await asyncio.gather(*(judge.score(*QUESTION) for _ in range(20)))
        assert len(backend.sent) == 1
        await judge.score(*QUESTION)
        assert len(backend.sent) == 2
    assert {verdict.score for verdict in verdicts} == {0.8}
    assert [verdict.cached for verdict in verdicts] == [False] + [True] * 19
    assert [verdict.usage.total_tokens for verdict in verdicts if verdict.usage] == [15]
    async with judge_over(backend := JudgeBackend(always(score(8))), samples=3, settle="mean") as judge:
        await asyncio.gather(judge.score(*QUESTION), judge.score(*QUESTION))
    assert len(backend.sent) == 3, "the samples of one item are not shared with each other"


async def test_what_differs_in_words_or_in_urgency_is_not_shared() -> None:
    for other in ({"priority": 0}, {"tenant": "t"}, {"reference": "42"}):
        backend = JudgeBackend(always(score(8)))
        async with judge_over(backend) as judge:
            await asyncio.gather(judge.score(*QUESTION), judge.score(*QUESTION, **other))
        assert len(backend.sent) == 2, other


async def test_calls_may_be_cancelled_and_the_request_goes_on_until_the_last_of_them_is() -> None:
    """Where its time was that of the first call, it is sent again for the others."""
    for timeout, left, when, sent in ((60, 1, 10, 1), (5, 1, 15, 2), (60, 0, 3, 1)):
        backend = JudgeBackend(always(score(8), seconds=10))
        async with judge_over(backend) as judge:
            began = now()
            first, *others = tasks = [asking(judge, timeout=timeout) for timeout in (timeout, 60, 60)]
            await asyncio.sleep(2)
            first.cancel()
            await asyncio.sleep(1)
            for task in others[left:]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [verdict.score for verdict in found if not isinstance(verdict, BaseException)] == [0.8] * left
            assert round(now() - began) == when
        assert (len(backend.sent), len(backend.cancelled)) == (sent, sent - left)


async def test_each_caller_has_its_own_time_and_goes_on_when_that_of_the_first_is_over() -> None:
    for timeouts, late, sent in (((30, 3, 60), 1, 1), ((5, 60, 60), 0, 2), ((5, None, 60), 0, 2)):
        backend = JudgeBackend(always(score(8), seconds=10))
        async with judge_over(backend) as judge:
            found: list[Any] = await asyncio.gather(*(asking(judge, timeout=timeout) for timeout in timeouts), return_exceptions=True)
        assert isinstance(found.pop(late), RequestTimeout)
        assert [verdict.score for verdict in found] == [0.8, 0.8]
        assert len(backend.sent) == sent


async def test_callers_that_limit_the_time_themselves_too_leave_no_error_on_the_event_loop() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with judge_over(JudgeBackend(always(score(8), seconds=10))) as judge:
        waits = [asyncio.wait_for(judge.score(*QUESTION, timeout=5), 5) for _ in range(8)]
        found = await asyncio.gather(*waits, return_exceptions=True)
    assert all(isinstance(each, TimeoutError) for each in found)
    assert told == []


async def test_a_failure_reaches_every_caller_as_an_error_of_its_own() -> None:
    backend = JudgeBackend(always("?"))
    async with judge_over(backend, reasks=1) as judge:
        errors = await asyncio.gather(*(judge.score(*QUESTION) for _ in range(3)), return_exceptions=True)
    assert len(backend.sent) == 2
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error, InvalidResponse) and len(error.attempts) == 2 for error in errors)
    assert [error.usage and error.usage.total_tokens for error in errors if isinstance(error, InvalidResponse)] == [30, None, None], (
        "paid by one"
    )


async def test_a_group_of_a_batch_with_equal_responses_is_judged_once_and_in_order() -> None:
    async def script(sent: Any) -> str:
        await asyncio.sleep(1)
        return score(3 if "wrong" in sent.text else 9)

    backend = JudgeBackend(script)
    items = [("q", "right"), ("q", "wrong"), ("q", "right"), ("q", "right"), ("q", "wrong")]
    async with judge_over(backend) as judge:
        batch = await judge.batch_score(items)
    assert [verdict.score for verdict in batch.values()] == [0.9, 0.3, 0.9, 0.9, 0.3]
    assert len(backend.sent) == 2
    assert batch.stats.items == batch.stats.ok == 5
    assert batch.stats.endpoints["a"].won == 2


async def test_a_batch_shares_with_no_other_call_so_that_its_end_harms_none() -> None:
    backend = JudgeBackend(always(score(8), seconds=5))
    async with judge_over(backend) as judge:
        batches = [asyncio.create_task(judge.batch_score([("q", "a"), ("q", "b"), ("q", "a")])) for _ in range(2)]
        single = asking(judge, "q", "a")
        await asyncio.sleep(1)
        batches[0].cancel()
        assert (await single).score == 0.8
        assert (await batches[1]).scores() == [0.8, 0.8, 0.8]
    assert (len(backend.sent), len(backend.cancelled)) == (5, 2)


async def test_closing_the_client_ends_every_call_and_batch_with_client_closed() -> None:
    for slots, samples in ((64, 3), (4, 1), (1, 1)):
        client = client_of(JudgeBackend(always(score(1), seconds=100)), endpoint(slots=slots))
        judge = Judge(client, model=MODEL, samples=samples)
        first = [asking(judge, "q", "c") for _ in range(3)]
        batch = asyncio.create_task(judge.batch_score([("q", "a"), QUESTION]))
        await asyncio.sleep(1)
        waiting = asking(judge, timeout=None)
        await asyncio.sleep(1)
        await client.aclose()
        results = await asyncio.gather(*first, waiting, return_exceptions=True)
        assert [type(result) for result in [*results, *(await batch).errors.values()]] == [ClientClosed] * 6
        assert leftovers(client, judge) == {}


def test_one_judge_serves_several_loops_and_threads_at_once() -> None:
    backend = JudgeBackend(always(score(8), seconds=0.02))
    scores: list[float] = []

    async def use() -> None:
        verdicts = await asyncio.gather(*(judge.score("q", str(number % 5)) for number in range(20)))
        batch = await judge.batch_score([("q", str(number)) for number in range(20)])
        scores.extend(verdict.score for verdict in [*verdicts, *batch.values()])

    client = QRewardClient([endpoint(slots=8)], backend_factory=lambda: backend, hedge=None)
    judge = Judge(client, model=MODEL)
    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scores == [0.8] * 160
    asyncio.run(client.aclose())


def test_a_loop_that_was_closed_under_a_call_leaves_nothing_that_another_would_wait_for() -> None:
    backend = JudgeBackend(always(score(8), seconds=0.02))

    async def left() -> None:
        asking(judge)
        while not backend.sent:  # noqa: ASYNC110 - the backend has no event
            await asyncio.sleep(0)

    client = QRewardClient([endpoint(slots=1)], backend_factory=lambda: backend, hedge=None)
    judge = Judge(client, model=MODEL)
    asyncio.run(left())
    assert asyncio.run(judge.score(*QUESTION)).score == 0.8
    asyncio.run(client.aclose())


def test_a_loop_that_was_closed_without_cancelling_a_call_leaves_nothing_that_another_would_wait_for() -> None:
    backend = JudgeBackend(always(score(8), seconds=0.02))
    client = QRewardClient([endpoint(slots=1)], backend_factory=lambda: backend, hedge=None)
    judge = Judge(client, model=MODEL)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the call is destroyed while it is pending

    async def left() -> None:
        judging.extend(asking(judge, "q", answer) for answer in "ab")  # the second waits in the queue
        while not backend.sent:  # noqa: ASYNC110 - the backend has no event
            await asyncio.sleep(0)

    judging: list[asyncio.Task[Any]] = []
    loop.run_until_complete(left())
    loop.close()
    judging.clear()
    gc.collect()
    assert asyncio.run(judge.score(*QUESTION)).score == 0.8
    assert leftovers(client, judge) == {}
    asyncio.run(client.aclose())


def test_the_slots_of_a_closed_loop_are_given_back_when_a_verdict_waits_in_another_closed_loop() -> None:
    backend = JudgeBackend(always(score(8), seconds=0.05))
    client = QRewardClient([endpoint(slots=2)], backend_factory=lambda: backend, hedge=None)
    judge = Judge(client, model=MODEL)
    waits, holds, works = [asyncio.new_event_loop() for _ in range(3)]

    def begin(loop: asyncio.AbstractEventLoop, answer: str) -> asyncio.Task[Any]:
        loop.set_exception_handler(lambda *_: None)  # calls are destroyed while they are pending
        task = loop.create_task(judge.score("q", answer))
        loop.run_until_complete(asyncio.sleep(0))
        return task

    waits.run_until_complete(judge.score(*QUESTION))
    busy, *left = [begin(loop, answer) for loop, answer in ((works, "a"), (holds, "b"), (waits, "c"))]
    waits.close()
    holds.close()
    works.run_until_complete(busy)  # its slot falls to the verdict that waits
    assert asyncio.run(judge.score("q", "d")).score == 0.8
    assert leftovers(client, judge) == {}
    works.run_until_complete(client.aclose())
    works.close()
    assert not any(task.done() for task in left)
