"""Many items: order, laziness, time, failures, outages and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, always, broken, endpoint, in_turn, judge_over, judging, now, number_of, score

from qreward import Cascade
from qreward.errors import BadRequest, ConfigError, ConnectionFailed, DeadlineExceeded, RequestTimeout
from qreward.results import BatchFailed, BatchInterrupted
from qreward.scheduler.outcome import Failure, FailureKind


def items(count: int) -> list[tuple[str, str]]:
    return [(f"q{number}", f"a{number}") for number in range(count)]


def batched(backend: JudgeBackend, given: Any, *endpoints: Any, how: Any = None, **settings: Any) -> Any:
    return judging(backend, lambda judge: judge.batch_score(given, **(how or {})), *endpoints, **settings)


def test_results_come_in_the_order_of_the_input_whatever_the_order_of_the_answers() -> None:
    async def script(sent: Sent) -> str:
        number = number_of(sent)
        await asyncio.sleep(100 - number)
        return score(number % 10)

    batch = batched(JudgeBackend(script), items(100), endpoint(slots=100))
    assert [verdict.score for verdict in batch.values()] == [number % 10 / 10 for number in range(100)]
    assert [result.index for result in batch] == list(range(100))
    assert batch.texts()[3] == score(3)


def test_items_may_be_pairs_triples_or_mappings_and_a_wrong_one_fails_alone() -> None:
    right = [("q", "a1"), ("q", "a2", "ref"), {"prompt": "q", "response": "a3"}, {"prompt": "q", "response": "a4", "reference": None}]
    wrong = [{"prompt": "q"}, {"prompt": "q", "response": "a6", "refrence": "x"}, ("q",), "text", 7]
    batch = batched(JudgeBackend(always(score(5))), right + wrong)
    assert [result.ok for result in batch] == [True] * 4 + [False] * 5
    errors = list(batch.errors.values())
    assert {type(error) for error in errors} == {ConfigError}
    assert "'response'" in str(errors[0])
    assert "'refrence'" in str(errors[1])
    assert (batch.stats.items, batch.stats.failed) == (9, 5)


async def test_what_is_no_collection_of_items_is_refused_and_an_empty_one_is_an_empty_result() -> None:
    async with judge_over(JudgeBackend(always(score(1)))) as judge:
        for given in ("text", {"prompt": "q", "response": "a"}, 7):
            with pytest.raises(ConfigError):
                await judge.batch_score(given)  # type: ignore[arg-type]
        batch = await judge.batch_score([])
        assert (len(batch), batch.stats.items) == (0, 0)


async def test_the_input_is_read_no_faster_than_it_is_sent_and_memory_is_not_a_task_an_item() -> None:
    read = most = 0

    def endless() -> Iterator[tuple[str, str]]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield f"q{number}", "a"

    def told(_result: Any) -> None:
        nonlocal most
        most = max(most, read - (len(backend.sent) - backend.now), len(asyncio.all_tasks()))

    backend = JudgeBackend(always(score(5)))
    async with judge_over(backend, endpoint(slots=8)) as judge:
        batch = await judge.batch_score(endless(), on_result=told, keep_results=False)
    assert (len(batch), batch.stats.ok) == (0, 1000)
    assert most <= 8 + 2 * 32


async def test_the_slots_of_the_fleet_are_kept_full() -> None:
    backend = JudgeBackend(always(score(5)))
    async with judge_over(backend, endpoint("a", slots=12), endpoint("b", slots=8)) as judge:
        await judge.batch_score(items(200))
        assert now() == pytest.approx(10, abs=0.2)
    assert backend.peak == 20


async def test_models_of_different_routes_are_asked_side_by_side() -> None:
    async def script(sent: Sent) -> str:
        await asyncio.sleep(4 if sent.model == "slow" else 1)
        return score(5)

    fleet = endpoint("s", slots=6, models=["slow"]), endpoint("f", slots=2, models=["fast"])
    for samples in (1, 3):
        backend = JudgeBackend(script)
        async with judge_over(backend, *fleet, model=("fast", "slow"), samples=samples, settle="mean") as judge:
            began = now()
            batch = await judge.batch_score(items(60))
            seconds = now() - began
        assert (batch.stats.ok, len(backend.sent)) == (60, 120 * samples)
        assert seconds == pytest.approx(samples * 40, rel=0.15)  # 60 x 4 s over 6 slots; the quick one needs 30


async def test_the_latency_of_an_item_begins_with_its_first_request_although_another_is_answered_first() -> None:
    async def script(sent: Sent) -> str:
        await asyncio.sleep(10 if sent.model == "slow" else 4)
        return score(5)

    fleet = endpoint("s", slots=2, models=["slow"]), endpoint("f", slots=1, models=["fast"])
    async with judge_over(JudgeBackend(script), *fleet, model=("slow", "fast"), settle="mean") as judge:
        batch = await judge.batch_score(items(2))
    assert [result.latency for result in batch] == pytest.approx([10, 10])


async def test_a_quick_model_does_not_run_away_from_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qreward.judge.loop.MOST_AHEAD", 256)
    read = 0

    def many() -> Iterator[tuple[str, str]]:
        nonlocal read
        for number in range(5_000):
            read += 1
            yield f"q{number}", "a"

    async def script(sent: Sent) -> str:
        await asyncio.sleep(500 if sent.model == "slow" else 0.01)
        return score(5)

    fleet = endpoint("s", slots=1, models=["slow"]), endpoint("f", slots=64, models=["fast"])
    async with judge_over(JudgeBackend(script), *fleet, model=("fast", "slow"), settle="mean") as judge:
        batch = await judge.batch_score(many(), deadline=400, keep_results=False)
    assert read < 256 + 500
    assert batch.stats.failed == batch.stats.items < 256 + 500


def test_what_fails_is_a_value_and_never_a_number() -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return "?" if "a3\n" in sent.question else broken() if "a5\n" in sent.question else score(5)

    batch = batched(JudgeBackend(script), items(8), reasks=1)
    assert {index: type(error).__name__ for index, error in batch.errors.items()} == {3: "InvalidResponse", 5: "ServerError"}
    assert batch.values()[3] is None
    assert [record.outcome for record in batch[3].attempts] == ["unreadable", "unreadable"]
    assert batch.stats.endpoints["a"].won == 8  # 6 and two that could not be read
    assert batch.stats.endpoints["a"].prompt_tokens == 80


def test_an_item_that_is_asked_again_goes_before_what_was_not_begun() -> None:
    backend = JudgeBackend(in_turn("?", score(5)))
    batch = batched(backend, items(40), endpoint(slots=1))
    assert (batch.stats.ok, len(backend.sent)) == (40, 41)
    assert [len(sent.messages) for sent in backend.sent[:4]].index(3) <= 2
    assert [(record.outcome, round(record.latency, 3)) for record in batch[0].attempts] == [("unreadable", 1.0), ("ok", 1.0)]
    assert batch[0].latency > 1.9  # of the item, as both attempts are part of it


async def test_an_items_time_begins_when_it_could_be_sent_and_holds_for_all_its_requests() -> None:
    async def script(sent: Sent) -> str:
        await asyncio.sleep(4)
        return "?" if "a1\n" in sent.question else score(5)

    async with judge_over(JudgeBackend(script), endpoint(slots=1), reasks=9) as judge:
        batch = await judge.batch_score(items(3), timeout=5)
    assert [result.ok for result in batch] == [True, False, True]
    assert isinstance(batch[1].error, RequestTimeout)
    assert batch[1].attempts[0].outcome == "unreadable"
    async with judge_over(JudgeBackend(always(score(5), seconds=6)), endpoint(slots=1), samples=3, settle="mean") as judge:
        began = now()
        batch = await judge.batch_score([("q", "a")], timeout=10)
        assert now() - began == pytest.approx(10, abs=0.1)
    assert isinstance(batch[0].error, RequestTimeout)


async def test_at_the_deadline_items_that_were_never_read_have_a_result_too() -> None:
    backend = JudgeBackend(always(score(5), seconds=3))
    async with judge_over(backend, endpoint(slots=4)) as judge:
        batch = await judge.batch_score(items(200), deadline=5)
        assert now() == pytest.approx(5, abs=0.05)
    assert len(backend.cancelled) == 4
    assert [result.index for result in batch] == list(range(200))
    assert [result.ok for result in batch] == [True] * 4 + [False] * 196
    assert {type(error) for error in batch.errors.values()} == {DeadlineExceeded}
    assert (batch.stats.items, batch.stats.failed) == (200, 196)


async def test_at_the_deadline_items_of_a_slow_input_that_were_not_read_are_an_error_so_that_scores_raises() -> None:
    async def rollouts() -> AsyncIterator[Any]:
        for item in items(30):
            await asyncio.sleep(1)
            yield item

    async with judge_over(JudgeBackend(always(score(5), seconds=0.2)), endpoint(slots=4)) as judge:
        for scorer in (judge, Cascade([judge, judge], confidence=lambda _: 1.0)):
            batch = await scorer.batch_score(rollouts(), deadline=5.5)
            assert [result.ok for result in batch] == [True] * 5 + [False]
            with pytest.raises(BatchFailed, match=r"item 5: DeadlineExceeded: .* not read to its end"):
                batch.scores()


async def test_an_input_or_on_result_that_raises_stops_the_batch_and_what_is_under_way_is_finished() -> None:
    def faulty() -> Iterator[tuple[str, str]]:
        yield from items(5)
        raise LookupError("no such row")

    def show(result: Any) -> None:
        told.append(result)
        raise LookupError("no such file")

    for given, how, samples, least, most in (
        (faulty(), {}, 1, 5, 5),
        (items(30), {"on_result": show}, 1, 1, 12),
        (items(30), {"on_result": show}, 3, 1, 12),
    ):
        told: list[Any] = []
        async with judge_over(JudgeBackend(always(score(5))), endpoint(slots=6), samples=samples, settle="mean") as judge:
            with pytest.raises(BatchInterrupted) as caught:
                await judge.batch_score(given, **how)  # type: ignore[arg-type]
        assert isinstance(caught.value.__cause__, LookupError)
        assert len(told) == len(how)
        assert caught.value.results is not None
        assert least <= caught.value.results.stats.ok <= most
        assert caught.value.results.stats.failed == 0


async def test_a_batch_that_is_given_up_cancels_what_is_under_way_and_says_how_far_it_came() -> None:
    backend = JudgeBackend(always(score(5), seconds=4))
    async with judge_over(backend, endpoint(slots=3)) as judge:
        task = asyncio.create_task(judge.batch_score(items(10)))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "3 of 10 items were done" in caught.value.__notes__[0]
    assert len(backend.cancelled) == 3


async def test_on_result_is_called_when_a_result_is_there_and_progress_counts_items_and_not_votes() -> None:
    shown: list[Any] = []
    seen: list[tuple[int, float]] = []
    async with judge_over(JudgeBackend(always(score(5))), endpoint(slots=6), samples=3, settle="mean") as judge:
        tell: Any = {"progress": shown.append, "on_result": lambda result: seen.append((result.index, round(now())))}
        await judge.batch_score(one_by_one(items(4)), **tell)
    assert (shown[-1].done, shown[-1].total, shown[-1].ok, shown[-1].retried) == (4, None, 4, 0)
    assert sorted(seen) == [(0, 1), (1, 1), (2, 2), (3, 2)]


async def test_priority_reaches_the_scheduler() -> None:
    backend = JudgeBackend(always(score(5)))
    async with judge_over(backend, endpoint(slots=1)) as judge:
        late = asyncio.create_task(judge.batch_score(items(6), priority=9))
        await asyncio.sleep(0.5)
        await asyncio.gather(late, judge.score("urgent", "x", priority=0))
    assert [place for place, sent in enumerate(backend.sent) if "urgent" in sent.text] == [1]


def test_an_item_whose_prompt_function_fails_is_an_error_of_its_own() -> None:
    def build(fields: Any) -> list[dict[str, str]]:
        if fields["response"] == "a1":
            raise RuntimeError("odd")
        return [{"role": "user", "content": "x"}]

    batch = batched(JudgeBackend(always(score(5))), items(3), prompt=build)
    assert [result.ok for result in batch] == [True, False, True]
    assert isinstance(batch[1].error, BadRequest)
    assert isinstance(batch[1].error.__cause__, RuntimeError)


MANY = 300


def unreachable(name: str) -> Failure:
    return Failure(FailureKind.UNREACHABLE, ConnectionFailed(f"endpoint {name!r} refused the connection", endpoint=name))


async def refuses(sent: Sent) -> Any:
    return unreachable(sent.endpoint)


async def hangs(_: Sent) -> Any:
    await asyncio.sleep(10**6)


async def b_refuses(sent: Sent) -> Any:
    return unreachable("b") if sent.endpoint == "b" else score(5)


async def one_by_one(given: list[Any]) -> AsyncIterator[Any]:
    for item in given:
        yield item


async def test_all_items_fail_about_one_timeout_after_an_endpoint_that_they_need_has_died() -> None:
    """A quarter of the timeout more, if one was sent last; where endpoints hang, that is known after one timeout more."""
    of_two_models: Any = {"model": ["x", "y"]}
    cases = [(kind, refuses, {}, 5) for kind in (list, iter, one_by_one)] + [
        (kind, b_refuses, of_two_models, 5) for kind in (list, iter, one_by_one)
    ]
    for kind, script, settings, after in [*cases, (iter, refuses, {"samples": 3}, 5), (list, hangs, {}, 10)]:
        backend = JudgeBackend(script)
        models = (["x"], ["y"]) if settings is of_two_models else (["*"], ["*"])
        fleet = [endpoint(name, 8, models=model) for name, model in zip("ab", models, strict=True)]
        async with judge_over(backend, *fleet, **settings) as judge:
            began = now()
            batch = await judge.batch_score(kind(items(MANY)), timeout=5)
            assert after <= now() - began < after + 1.5, (kind, script, settings)
        assert (len(batch), len(batch.errors)) == (MANY, MANY)
        if script is refuses:
            assert {type(error) for error in batch.errors.values()} == {RequestTimeout}
            assert len(backend.sent) < 100
