"""RewardBuffer: queries merged, scored and given back; what its model, MolGenDocking's buffer, does wrong is right here, a to k."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from server_tools import Lengths
from shared_tools import each, run

from qreward.batching.reward_buffer import BatchAnswer, RewardBuffer, SingletonAnswer
from qreward.errors import BadRequest, ClientClosed, ConfigError, QueueFull
from qreward.testing.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.filterwarnings("error")


run_async_test = run_in_virtual_time


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def query(*completions: str, **members: Any) -> dict[str, Any]:
    return {"query": list(completions), "metadata": [{} for _ in completions], **members}


async def test_the_answer_has_the_shape_of_the_query_unless_the_mode_fixes_it() -> None:
    scorer, one, many = Lengths(), SingletonAnswer(3.0, None, {}, None), BatchAnswer([3.0], None, [None], [{}], None)
    single, listed = {"query": "abc", "metadata": {}}, query("abc")
    attributes = SimpleNamespace(query=["abc"], metadata=[{}], prompts=None)
    for mode, expected in (("auto", [one, many, many]), ("singleton", [one] * 3), ("batch", [many] * 3)):
        async with RewardBuffer(scorer, server_mode=mode) as buffer:  # type: ignore[arg-type]
            assert [await buffer.add_query(each) for each in (single, listed, attributes)] == expected
            if mode == "singleton":
                continue
            calls = len(scorer.batches)
            assert await buffer.add_query({"query": [], "metadata": []}) == BatchAnswer([], None, [], [], None)
            assert len(scorer.batches) == calls


async def test_queries_share_batches_each_gets_its_own_rewards_and_a_larger_one_is_split_and_put_together_again() -> None:
    scorer = Lengths(1.0)
    async with RewardBuffer(scorer, max_batch_size=5) as buffer:
        first = asyncio.ensure_future(buffer.add_query(query("x")))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(buffer.add_query(query(*("y" * n for n in range(at, at + 3)))) for at in (1, 4, 7)))
        assert (await first).rewards == [1.0]
        assert [answer.rewards for answer in answers] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
        assert [len(batch) for batch in scorer.batches] == [1, 5, 4]
        assert (await buffer.add_query(query(*("z" * n for n in range(12))))).rewards == [float(n) for n in range(12)]
        assert max(map(len, scorer.batches)) == 5


async def test_metadata_and_prompts_reach_the_scorer_with_their_completion() -> None:
    scorer = Lengths()
    async with RewardBuffer(scorer) as buffer:
        await buffer.add_query({"query": ["a", "b"], "metadata": [{"k": 1}, {"prompt": "mine"}], "prompts": ["p", "q"]})
        await buffer.add_query({"query": "c", "prompts": "r"})
        assert scorer.metadata == [{"k": 1, "prompt": "p"}, {"prompt": "mine"}, {"prompt": "r"}]


# the defects of the buffer that this one replaces


async def test_defect_a_a_lone_query_waits_for_no_tick() -> None:
    async with RewardBuffer(Lengths(0.2)) as buffer:
        await buffer.add_query(query("a"))
        assert now() == 0.2


async def test_defect_b_as_many_batches_as_needed_go_as_slots_get_free() -> None:
    scorer = Lengths(0.2)
    async with RewardBuffer(scorer, max_batch_size=4) as buffer:
        await asyncio.gather(*(buffer.add_query(query("a")) for _ in range(16)))
        assert (now(), [len(batch) for batch in scorer.batches]) == (0.8, [4] * 4)


def test_defect_c_a_blocking_scorer_does_not_block_the_loop_and_batches_may_overlap() -> None:
    release, inside = threading.Event(), threading.Barrier(3)

    def scorer(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        inside.wait(10)
        release.wait(10)
        return [1.0] * len(completions)

    async def main() -> None:
        async with RewardBuffer(scorer, max_batch_size=1, max_concurrent_batches=2) as buffer:
            callers = [asyncio.ensure_future(buffer.add_query(query("a"))) for _ in range(2)]
            await asyncio.to_thread(inside.wait, 10)  # both batches are in the scorer, and this loop lives
            release.set()
            assert [answer.rewards for answer in await asyncio.gather(*callers)] == [[1.0], [1.0]]

    run(main())


async def test_defect_d_a_caller_that_left_is_not_scored() -> None:
    scorer = Lengths(1.0)
    async with RewardBuffer(scorer) as buffer:
        busy = asyncio.ensure_future(buffer.add_query(query("busy")))
        await asyncio.sleep(0.1)
        callers = [asyncio.ensure_future(buffer.add_query(query(f"{n}-a", f"{n}-b"))) for n in range(5)]
        await asyncio.sleep(0.1)
        assert buffer.waiting == 10
        for caller in callers[:4]:
            caller.cancel()
        await asyncio.gather(*callers, busy, return_exceptions=True)
        assert scorer.seen == ["busy", "4-a", "4-b"]
        assert buffer.waiting == 0


async def test_defect_e_a_poisonous_completion_fails_alone() -> None:
    async with RewardBuffer(Lengths()) as buffer:
        answers = await asyncio.gather(*(buffer.add_query(query(word, "good")) for word in ("a", "poison", "bbb")))
        assert [answer.rewards for answer in answers] == [[1.0, 4.0], [None, 4.0], [3.0, 4.0]]
        assert answers[1].errors == ["ValueError: poison was found", None]
        assert answers[1].error == "1 of 2 completions have no reward; the first has index 0: ValueError: poison was found"
        assert answers[0].error is None


async def test_defect_e_a_list_in_singleton_mode_is_refused_alone() -> None:
    async with RewardBuffer(Lengths(), server_mode="singleton") as buffer:
        good, bad = await asyncio.gather(buffer.add_query(query("a")), buffer.add_query(query("a", "b")), return_exceptions=True)
        assert good == SingletonAnswer(1.0, None, {}, None)
        assert isinstance(bad, BadRequest)


@each("count", [0, 1, 3])
async def test_defect_f_a_wrong_number_of_rewards_is_an_error_of_each_and_no_caller_hangs(count: int) -> None:
    async def scorer(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        return [0.5] * count

    async with RewardBuffer(scorer, isolate_errors=False) as buffer:
        answers = await asyncio.gather(buffer.add_query(query("a")), buffer.add_query(query("b")))
        assert [answer.rewards for answer in answers] == [[None], [None]]
        assert f"gave {count} rewards for 2 completions" in answers[0].errors[0]


@each("error", [SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration, BaseException])
async def test_defect_g_an_exit_of_the_scorer_ends_one_call_and_not_those_to_come(error: type[BaseException]) -> None:
    async def scorer(completions: list[str]) -> list[float]:
        if "bad" in completions:
            raise error
        return [1.0] * len(completions)

    async with RewardBuffer(scorer) as buffer:
        answers = await asyncio.gather(*(buffer.add_query(query(word)) for word in ("good", "bad")))
        assert [answer.rewards for answer in answers] == [[1.0], [None]]
        assert (await buffer.add_query(query("later"))).rewards == [1.0]


async def test_defect_i_the_queue_is_bounded_and_a_query_gets_in_whole_or_not_at_all() -> None:
    scorer = Lengths(1.0)
    async with RewardBuffer(scorer, max_batch_size=1, max_queue_size=3) as buffer:
        busy = asyncio.ensure_future(buffer.add_query(query("a")))
        await asyncio.sleep(0.1)
        assert buffer.room_in(3) == 0
        waiting = asyncio.ensure_future(buffer.add_query(query("b", "c")))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="no room for 2 more"):
            await buffer.add_query(query("d", "e"))
        assert buffer.room_in(2) > 0
        last = asyncio.ensure_future(buffer.add_query(query("f")))
        await asyncio.gather(busy, waiting, last)
        assert (scorer.seen, buffer.refused) == (["a", "b", "c", "f"], 2)
        with pytest.raises(BadRequest, match="can never wait together"):
            await buffer.add_query(query("a", "b", "c", "d"))


@each("turns", range(10))
async def test_a_query_that_was_admitted_is_not_refused_when_a_batch_that_is_not_full_takes_the_slot(turns: int) -> None:
    async with RewardBuffer(Lengths(1.0), max_batch_size=4, max_queue_size=4) as buffer:
        lone = asyncio.ensure_future(buffer.score(["a"]))
        for _ in range(turns):
            await asyncio.sleep(0)
        others = await asyncio.gather(buffer.score(["a"] * 4), buffer.score(["a"] * 3), return_exceptions=True)
        scored = [one for each in others if not isinstance(each, QueueFull) for one in each]
        assert scored
        assert [one.error for one in [*scored, *await lone]] == [None] * (len(scored) + 1)


async def test_defect_i_the_suggested_wait_follows_the_pace_of_the_scorer() -> None:
    async with RewardBuffer(Lengths(2.0), max_batch_size=4, max_queue_size=8) as buffer:
        await buffer.add_query(query(*"abcd"))
        callers = [asyncio.ensure_future(buffer.add_query(query(*"abcd"))) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert buffer.waiting == 8
        assert buffer.room_in(4) == pytest.approx(2.0, rel=0.01)  # a batch of 4 in 2 s
        await asyncio.gather(*callers)


async def test_defect_i_time_and_closing_end_what_waits_with_an_error_and_leave_nothing_behind() -> None:
    buffer = RewardBuffer(Lengths(10.0), timeout=1.0)
    late = await buffer.add_query(query("a"))
    assert late.rewards == [None]
    assert "within the timeout of 1 s" in late.errors[0]
    caller = asyncio.ensure_future(buffer.add_query(query("b")))
    await asyncio.sleep(0.1)
    await buffer.close(drain=False)
    assert "closed before the item was done" in (await caller).errors[0]
    with pytest.raises(ClientClosed):
        await buffer.add_query(query("c"))


class RayActorError(Exception):
    """Called as Ray's is, of which the errors of dead actors are."""


async def test_closing_scores_what_waits_and_what_was_admitted_in_the_same_turn_of_the_loop() -> None:
    for drain, rewards in ((True, [1.0, 2.0]), (False, [None, None])):
        buffer = RewardBuffer(Lengths())
        scored = asyncio.ensure_future(buffer.score(["a", "bb"]))
        await asyncio.sleep(0)  # it has begun, and no more
        await buffer.close(drain)
        assert [one.reward for one in await scored] == rewards
        with pytest.raises(ClientClosed):
            await buffer.score(["a"])
    buffer = RewardBuffer(Lengths(1.0), max_batch_size=1)
    callers = [asyncio.ensure_future(buffer.add_query(query("a"))) for _ in range(3)]
    await asyncio.sleep(0.1)
    await buffer.close()
    assert [caller.result().rewards for caller in callers] == [[1.0]] * 3


def test_closing_from_another_loop_scores_what_was_admitted() -> None:
    buffer = RewardBuffer(Lengths())
    admitted, closing = threading.Event(), threading.Event()

    async def ask() -> list[float | None]:
        scored = asyncio.ensure_future(buffer.score(["a", "bb"]))
        await asyncio.sleep(0)
        admitted.set()
        assert closing.wait(30)  # this loop does nothing until the other one has begun to close
        return [one.reward for one in await scored]

    async def close() -> None:
        closed = asyncio.ensure_future(buffer.close())
        await asyncio.sleep(0)
        closing.set()
        await closed

    with ThreadPoolExecutor(1) as pool:
        rewards = pool.submit(lambda: run(ask()))
        assert admitted.wait(30)
        run(close())
        assert rewards.result(30) == [1.0, 2.0]


async def test_defect_j_a_dead_actor_fails_its_batch_at_once_and_is_asked_again_by_the_next() -> None:
    calls: list[list[str]] = []

    class Method:
        alive = False

        async def _score(self, completions: list[str]) -> list[float]:
            if not self.alive:
                raise RayActorError("the actor died")
            return [1.0] * len(completions)

        def remote(self, completions: list[str], metadata: list[dict[str, Any]]) -> Any:
            calls.append(completions)
            return self._score(completions)

    method = Method()
    async with RewardBuffer(method) as buffer:
        answer = await buffer.add_query(query(*"abcd"))
        assert answer.rewards == [None] * 4
        assert len(calls) == 1  # halves would fail as well
        method.alive = True
        assert (await buffer.add_query(query("e"))).rewards == [1.0]


@each(
    "wrong",
    [
        {"server_mode": "both"},
        {"max_batch_size": 0},
        {"batch_wait_timeout_s": -1.0},
        {"max_queue_size": 0},
        {"timeout": 0.0},
    ],
)
def test_defect_j_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RewardBuffer(Lengths(), **wrong)


@each(
    "bad, words",
    [
        ({}, "needs the member query"),
        ({"query": 3}, "query must be a text or a list of them, not a int"),
        ({"query": ["a", 3]}, "query.1 must be a text, not a int"),
        ({"query": ["a"], "metadata": ["x"]}, "metadata.0 must be a mapping"),
        ({"query": ["a", "b"], "metadata": [{}]}, "query holds 2 completions, but metadata 1"),
        ({"query": ["a"], "metadata": [{}], "prompts": []}, "query holds 1 completion, but prompts 0"),
    ],
)
async def test_defect_k_a_query_of_another_shape_is_refused_with_the_place_and_spoils_no_other(bad: Any, words: str) -> None:
    async with RewardBuffer(Lengths()) as buffer:
        wrong, right = await asyncio.gather(buffer.add_query(bad), buffer.add_query(query("abc")), return_exceptions=True)
        assert isinstance(wrong, BadRequest)
        assert words in str(wrong)
        assert right.rewards == [3.0]
