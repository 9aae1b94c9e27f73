"""RewardBuffer: queries are merged and scored, and each caller gets its own rewards or errors."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from shared_tools import Lengths, each

from qreward.batching.reward_buffer import BatchAnswer, RewardBuffer, SingletonAnswer
from qreward.errors import BadRequest, ClientClosed, ConfigError, QueueFull


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def query(*completions: str, **members: Any) -> dict[str, Any]:
    return {"query": list(completions), "metadata": [{} for _ in completions], **members}


async def ask(buffer: RewardBuffer, query: Any) -> Any:
    """Either kind of answer."""
    return await buffer.add_query(query)


async def test_the_answer_has_the_shape_of_the_query_or_of_the_mode() -> None:
    one, batch = SingletonAnswer(3.0, None, {}, None), BatchAnswer([3.0], None, [None], [{}], None)  # type: ignore[call-arg]
    alone, listed = {"query": "abc", "metadata": {}}, query("abc")
    of_attributes = SimpleNamespace(query=["abc"], metadata=[{}], prompts=None)
    scorer = Lengths()
    for mode, answers in (("auto", [one, batch, batch]), ("singleton", [one] * 3), ("batch", [batch] * 3)):
        async with RewardBuffer(scorer, server_mode=mode) as buffer:  # type: ignore[arg-type]
            assert [await ask(buffer, given) for given in (alone, listed, of_attributes)] == answers, mode
            if mode != "singleton":
                assert await ask(buffer, query("a", "bb")) == BatchAnswer([1.0, 2.0], None, [None, None], [{}, {}], None), mode  # type: ignore[call-arg]
                scored = len(scorer.batches)
                assert await ask(buffer, {"query": [], "metadata": []}) == BatchAnswer([], None, [], [], None), mode  # type: ignore[call-arg]
                assert len(scorer.batches) == scored, mode


async def test_queries_share_batches_and_each_gets_its_own_rewards() -> None:
    scorer = Lengths(1.0)
    async with RewardBuffer(scorer, max_batch_size=5) as buffer:
        first = asyncio.ensure_future(ask(buffer, query("x")))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*(ask(buffer, query(*("y" * n for n in range(at, at + 3)))) for at in (1, 4, 7)))
        assert (await first).rewards == [1.0]
        assert [answer.rewards for answer in answers] == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
        assert [len(batch) for batch in scorer.batches] == [1, 5, 4]
    with pytest.raises(ConfigError, match="server_mode must be one of 'auto', 'singleton', 'batch', not 'both'"):
        RewardBuffer(scorer, server_mode="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_batch_size"):
        RewardBuffer(scorer, max_batch_size=0)


async def test_metadata_and_prompts_reach_the_scorer_with_their_completion() -> None:
    scorer = Lengths()
    async with RewardBuffer(scorer) as buffer:
        await buffer.add_query({"query": ["a", "b"], "metadata": [{"k": 1}, {"prompt": "mine"}], "prompts": ["p", "q"]})
        await buffer.add_query({"query": "c", "prompts": "r"})
        assert scorer.metadata == [{"k": 1, "prompt": "p"}, {"prompt": "mine"}, {"prompt": "r"}]


async def test_a_poisonous_completion_fails_alone() -> None:
    async with RewardBuffer(Lengths()) as buffer:
        answers = await asyncio.gather(*(ask(buffer, query(word, "good")) for word in ("a", "poison", "bbb")))
        assert [answer.rewards for answer in answers] == [[1.0, 4.0], [None, 4.0], [3.0, 4.0]]
        assert answers[1].errors == ["ValueError: poison was found", None]
        assert answers[1].error == "1 of 2 completions have no reward; the first has index 0: ValueError: poison was found"
        assert answers[0].error is None


async def test_a_list_in_singleton_mode_is_refused_alone() -> None:
    async with RewardBuffer(Lengths(), server_mode="singleton") as buffer:
        good, bad = await asyncio.gather(buffer.add_query(query("a")), buffer.add_query(query("a", "b")), return_exceptions=True)
        assert good == SingletonAnswer(1.0, None, {}, None)  # type: ignore[call-arg]
        assert isinstance(bad, BadRequest)


@each("error", [SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration, BaseException])
async def test_an_exit_of_the_scorer_ends_one_call_and_not_those_to_come(error: type[BaseException]) -> None:
    async def scorer(completions: list[str]) -> list[float]:
        if "bad" in completions:
            raise error
        return [1.0] * len(completions)

    async with RewardBuffer(scorer) as buffer:
        answers = await asyncio.gather(*(ask(buffer, query(word)) for word in ("good", "bad")))
        assert [answer.rewards for answer in answers] == [[1.0], [None]]
        assert (await ask(buffer, query("later"))).rewards == [1.0]


async def test_the_queue_is_bounded_and_a_query_gets_in_whole_or_not_at_all() -> None:
    scorer = Lengths(1.0)
    async with RewardBuffer(scorer, max_batch_size=1, max_queue_size=3) as buffer:
        busy = asyncio.ensure_future(buffer.add_query(query("a")))
        await asyncio.sleep(0.1)
        assert buffer.room_in(3) == 0
        waiting = asyncio.ensure_future(buffer.add_query(query("b", "c")))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="2 more do not fit"):
            await buffer.add_query(query("d", "e"))
        assert buffer.room_in(2) > 0
        last = asyncio.ensure_future(buffer.add_query(query("f")))
        await asyncio.gather(busy, waiting, last)
        assert (scorer.seen, buffer.stats().rejected) == (["a", "b", "c", "f"], 2)
        with pytest.raises(BadRequest, match="do not fit into the queue"):
            await buffer.add_query(query("a", "b", "c", "d"))


@each("turns", range(10))
async def test_a_query_that_was_admitted_is_not_refused_when_a_batch_that_is_not_full_takes_the_slot(turns: int) -> None:
    async with RewardBuffer(Lengths(1.0), max_batch_size=4, max_queue_size=4) as buffer:
        lone = asyncio.ensure_future(buffer.score(["a"]))
        for _ in range(turns):
            await asyncio.sleep(0)
        others: Any = await asyncio.gather(buffer.score(["a"] * 4), buffer.score(["a"] * 3), return_exceptions=True)
        scored = [one for each in others if not isinstance(each, QueueFull) for one in each]
        assert scored
        assert [one.error for one in [*scored, *await lone]] == [None] * (len(scored) + 1)


async def test_the_suggested_wait_follows_the_pace_of_the_scorer() -> None:
    async with RewardBuffer(Lengths(2.0), max_batch_size=4, max_queue_size=8) as buffer:
        await buffer.add_query(query(*"abcd"))
        callers = [asyncio.ensure_future(buffer.add_query(query(*"abcd"))) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert buffer.waiting == 8
        assert buffer.room_in(4) == pytest.approx(2.0, rel=0.01)  # a batch of 4 in 2 s
        await asyncio.gather(*callers)


async def test_time_and_closing_end_what_waits_with_an_error_and_leave_nothing_behind() -> None:
    buffer = RewardBuffer(Lengths(10.0), timeout=1.0)
    late = await ask(buffer, query("a"))
    assert late.rewards == [None]
    assert "within the timeout of 1 s" in late.errors[0]
    caller = asyncio.ensure_future(ask(buffer, query("b")))
    await asyncio.sleep(0.1)
    await buffer.close(drain=False)
    assert "closed before the item was done" in (await caller).errors[0]
    with pytest.raises(ClientClosed):
        await buffer.add_query(query("c"))


class RayActorError(Exception):
    """Called as Ray's is, of which the errors of dead actors are."""


async def test_closing_scores_what_was_admitted_in_the_same_turn_of_the_loop() -> None:
    for drain, rewards in ((True, [1.0, 2.0]), (False, [None, None])):
        buffer = RewardBuffer(Lengths())
        scored = asyncio.ensure_future(buffer.score(["a", "bb"]))
        await asyncio.sleep(0)  # it has begun, and no more
        await buffer.close(drain)
        assert [one.reward for one in await scored] == rewards
        with pytest.raises(ClientClosed):
            await buffer.score(["a"])


async def test_a_dead_actor_fails_its_batch_at_once_and_is_asked_again_by_the_next() -> None:
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
        answer = await ask(buffer, query(*"abcd"))
        assert answer.rewards == [None] * 4
        assert len(calls) == 1  # halves would fail as well
        method.alive = True
        assert (await ask(buffer, query("e"))).rewards == [1.0]


@each(
    "bad, words",
    [
        ({}, "needs the member query"),
        ({"query": 3}, "query must be a text or a list of them, not a int"),
        ({"query": ["a", None]}, "query.1 must be a text, not a NoneType"),
        ({"query": [["a"]]}, "query.0 must be a text, not a list"),
        ({"query": None}, "needs the member query"),
        ({"query": ["a"], "metadata": ["x"]}, "metadata.0 must be a mapping"),
        ({"query": ["a", "b"], "metadata": [{}]}, "query holds 2 completions, but metadata 1"),
        ({"query": ["a"], "metadata": [{}], "prompts": []}, "query holds 1 completion, but prompts 0"),
    ],
)
async def test_a_query_of_another_shape_is_refused_with_the_place_and_spoils_no_other(bad: Any, words: str) -> None:
    async with RewardBuffer(Lengths()) as buffer:
        answers: Any = await asyncio.gather(ask(buffer, bad), ask(buffer, query("abc")), return_exceptions=True)
        wrong, right = answers
        assert isinstance(wrong, BadRequest)
        assert words in str(wrong)
        assert right.rewards == [3.0]


async def test_a_completion_that_is_none_or_one_without_its_metadata_is_refused_before_anything_is_scored() -> None:
    scorer, missing = Lengths(), None
    async with RewardBuffer(scorer) as buffer:
        with pytest.raises(BadRequest, match=r"completions\[1\] must be a text, not a NoneType"):
            await buffer.score(["a", missing])  # type: ignore[list-item]
        with pytest.raises(BadRequest, match="there are 2 completions, but 1 metadata"):
            await buffer.score(["a", "b"], [{}])
        with pytest.raises(BadRequest, match="completions must be a list of texts, not a str"):
            await buffer.score("42 is")
    assert scorer.batches == []
