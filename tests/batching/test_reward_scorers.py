"""Scorers of every kind: how they are called, what they may return, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Generator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from batching_tools import until
from hypothesis import given
from hypothesis import strategies as st
from shared_tools import Lengths, each, run

from qreward.batching.reward_buffer import InvalidScores, RewardBuffer, ScoreResult, read_scores

pytestmark = pytest.mark.real_time  # plain scorers run in threads


async def scores(scorer: Any, *completions: str, **settings: Any) -> list[ScoreResult]:
    async with RewardBuffer(scorer, **settings) as buffer:
        return await buffer.score(completions, [{"n": at} for at in range(len(completions))])


def rewards(scored: list[ScoreResult]) -> list[float | None]:
    return [one.reward for one in scored]


# what may be called


def plain(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
    return [len(text) + meta["n"] for text, meta in zip(completions, metadata, strict=True)]


async def awaited(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
    await asyncio.sleep(0)
    return plain(completions, metadata)


class Callable_:  # noqa: N801 - called as what it is
    def __call__(self, completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        return plain(completions, metadata)

    async def method(self, completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        return plain(completions, metadata)


class ObjectRef:
    """Awaitable, and nothing else, as Ray's."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        return self._future.__await__()


class ActorMethod:
    """A handle as of a Ray actor: it may not be called, only its ``remote``; the work is done elsewhere, one after the other."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[dict[str, Any]]]] = []
        self.pending: list[asyncio.Future[Any]] = []

    def __call__(self, *args: Any) -> None:
        raise TypeError("Actor methods cannot be called directly. Instead of running 'object.score()', try 'object.score.remote()'.")

    def remote(self, completions: list[str], metadata: list[dict[str, Any]]) -> ObjectRef:
        self.calls.append((completions, metadata))
        future = asyncio.get_running_loop().create_future()
        self.pending.append(future)
        return ObjectRef(future)

    def answer(self) -> None:
        completions, metadata = self.calls[-1]
        self.pending[-1].set_result({"rewards": plain(completions, metadata), "parsed_answers": completions})


@each(
    "scorer",
    [
        plain,
        awaited,
        Callable_(),
        Callable_().method,
        functools.partial(awaited),
        functools.partial(plain),
        lambda completions, metadata: awaited(completions, metadata),  # noqa: PLW0108 - a plain function that gives a coroutine
        lambda completions, **others: [1.0, 3.0],
        lambda completions: [1.0, 3.0],
    ],
)
def test_a_scorer_may_be_any_function(scorer: Any) -> None:
    assert rewards(run(scores(scorer, "a", "bb"))) == [1.0, 3.0]


def yields(completions: list[str]) -> Any:
    yield 1.0


async def streams(completions: list[str]) -> Any:
    yield 1.0


NO_SCORERS: tuple[Any, ...] = (None, "module:function", Callable_, list, lambda a, b, c: [], 3)


@each("wrong, message", [*((wrong, "a scorer ") for wrong in NO_SCORERS), (yields, "not yield"), (streams, "not yield")])
def test_what_cannot_be_called_so_is_refused_when_the_buffer_is_made(wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        RewardBuffer(wrong)


async def test_a_plain_scorer_runs_in_another_thread_and_sees_the_neutral_context_only() -> None:
    variable = contextvars.ContextVar("variable", default="neutral")

    def scorer(completions: list[str]) -> list[Any]:
        return [{"reward": 1, "thread": threading.get_ident(), "saw": variable.get()} for _ in completions]

    async with RewardBuffer(scorer) as buffer:
        variable.set("the first caller's")
        (one,) = await buffer.score(["a"])
        assert one.meta["thread"] != threading.get_ident()
        assert one.meta["saw"] == "neutral"


async def test_the_method_of_an_actor_is_awaited_while_the_loop_goes_on() -> None:
    method = ActorMethod()
    async with RewardBuffer(method) as buffer:
        caller = asyncio.ensure_future(buffer.add_query({"query": ["a", "bb"], "metadata": [{"n": 0}, {"n": 5}]}))
        await until(lambda: method.pending)
        assert not caller.done()
        method.answer()
        answer: Any = await caller
        assert answer.rewards == [1.0, 7.0]
        assert answer.metas == [{"parsed_answers": "a"}, {"parsed_answers": "bb"}]


async def test_a_batch_that_cannot_be_stopped_keeps_its_slot_when_all_callers_leave() -> None:
    method = ActorMethod()
    async with RewardBuffer(method, max_batch_size=1) as buffer:
        caller = asyncio.ensure_future(buffer.score(["a"], [{"n": 0}]))
        await until(lambda: method.pending)
        caller.cancel()
        other = asyncio.ensure_future(buffer.score(["b"], [{"n": 0}]))
        await asyncio.sleep(0.02)
        assert len(method.calls) == 1  # the actor is still at work on the first
        method.answer()
        await until(lambda: len(method.calls) == 2)
        method.answer()
        assert rewards(await other) == [1.0]


def test_an_error_from_an_actor_is_shown_without_the_trace_of_its_process() -> None:
    class RayTaskError(Exception):
        cause = ValueError("no parse")

    (one,) = read_scores([RayTaskError("ray::V.score() (pid=1, ip=10.0.0.1) Traceback ...")], 1)
    assert one.error == "ValueError: no parse"


def test_a_remote_that_gives_nothing_to_await_is_an_error_that_says_so() -> None:
    (one,) = run(scores(SimpleNamespace(remote=lambda completions, metadata: [1.0]), "a"))
    assert one.error
    assert "remote() of the scorer returned a list" in one.error


# what may be returned


class Tensor:
    """As of numpy or torch: no list, but it gives one."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def tolist(self) -> Any:
        return self._values


@each(
    "given_",
    [
        [1, 0.5],
        (True, Decimal("0.5")),
        Tensor([1.0, 0.5]),
        Tensor([[1.0], [0.5]]),
        [{"reward": 1.0}, {"score": 0.5}],
        {"rewards": [1.0, 0.5]},
        {"scores": Tensor([1.0, 0.5])},
        {"rewards": [{"reward": 1.0}, {"score": 0.5}]},
    ],
)
def test_rewards_are_read_in_each_form(given_: Any) -> None:
    assert rewards(read_scores(given_, 2)) == [1.0, 0.5]


@each("nothing", [None, math.nan, math.inf, -math.inf, "1.0", [], {}, 10**400, object()])
def test_what_is_no_finite_number_is_an_error_of_its_completion_and_never_0(nothing: Any) -> None:
    for given_ in ([nothing, 2.0], {"rewards": [nothing, 2.0]}, [{"reward": nothing}, 2.0]):
        bad, good = read_scores(given_, 2)
        assert bad.reward is None
        assert bad.error
        assert bad.error.startswith("the scorer returned")
        assert (good.reward, good.error) == (2.0, None)


def test_an_error_of_the_scorers_own_outweighs_a_number_beside_it() -> None:
    rows = read_scores([{"reward": 0.0, "error": "docking failed\nbadly"}, ValueError("no parse")], 2)
    columns = read_scores({"rewards": [0.0, 1.0], "errors": ["docking failed\nbadly", None]}, 2)
    assert [(one.reward, one.error) for one in rows] == [(None, "docking failed badly"), (None, "ValueError: no parse")]
    assert [(one.reward, one.error) for one in columns] == [(None, "docking failed badly"), (1.0, None)]
    assert [one.error for one in read_scores({"error": "no GPU"}, 2)] == ["no GPU", "no GPU"]
    mixed = read_scores({"rewards": [ValueError("a"), ValueError("b"), {"score": 1.0, "error": "c"}], "errors": ["own", None, None]}, 3)
    assert [(one.reward, one.error) for one in mixed] == [(None, "own"), (None, "ValueError: b"), (None, "c")]
    raised = KeyError("k")
    (one,) = read_scores([{"error": raised}], 1)
    assert (one.reward, one.error, one.cause) == (None, "KeyError: 'k'", raised)


def test_everything_else_goes_into_the_meta_of_its_completion() -> None:
    rows = [{"reward": 1, "parsed": "4", "meta": {"k": 1}, "next_turn_feedback": "well done"}]
    columns = {
        "rewards": [1],
        "parsed": ["4"],
        "metas": [{"k": 1}],
        "next_turn_feedback": ["well done"],
        "extra_logs": {"len": [9]},
        "v": 2,
    }
    assert read_scores(rows, 1) == [ScoreResult(1.0, None, {"parsed": "4", "k": 1}, "well done")]
    assert read_scores(columns, 1) == [ScoreResult(1.0, None, {"parsed": "4", "k": 1, "len": 9, "v": 2}, "well done")]
    numbers = read_scores({"rewards": [1, 2], "length": Tensor([7, 8]), "note": "same"}, 2)
    assert [one.meta for one in numbers] == [{"length": 7, "note": "same"}, {"length": 8, "note": "same"}]


@each("wrong", [None, 1.0, "ab", {"a", "b"}, {}, {"values": [1, 2]}, iter([1, 2])])
def test_what_is_no_list_of_rewards_is_an_error_that_says_what_is_wanted(wrong: Any) -> None:
    with pytest.raises(InvalidScores, match=r"the scorer (must return|returned)"):
        read_scores(wrong, 2)


@each("wrong", [[], [1.0], [1.0] * 3, {"rewards": [1.0]}, {"rewards": [1.0, 2.0], "parsed": ["4"]}])
def test_a_list_of_another_length_is_never_cut_or_filled_up(wrong: Any) -> None:
    with pytest.raises(InvalidScores, match="for 2 completions"):
        read_scores(wrong, 2)


def test_what_cannot_be_read_is_an_error_of_the_scorer() -> None:
    class Broken:
        def tolist(self) -> Any:
            raise MemoryError("no room")

    with pytest.raises(InvalidScores, match="cannot be read: MemoryError: no room"):
        read_scores(Broken(), 2)


# what becomes of those that fail


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_exactly_the_poisonous_completions_fail(poisonous: list[bool]) -> None:
    calls = 0

    async def call(texts: list[str], metadata: list[dict[str, bool]]) -> list[float]:
        nonlocal calls
        calls += 1
        if any(meta["poison"] for meta in metadata):
            raise KeyError("poison")
        return list(map(float, texts))

    pairs = [(str(at), {"poison": bad}) for at, bad in enumerate(poisonous)]
    scored = asyncio.run(RewardBuffer(call).score([text for text, _ in pairs], [meta for _, meta in pairs]))
    assert rewards(scored) == [None if bad else float(at) for at, bad in enumerate(poisonous)]
    assert all((one.error is not None) == bad for one, bad in zip(scored, poisonous, strict=True))
    assert calls <= 2 * len(pairs) - 1


async def test_a_scorer_that_does_not_return_one_reward_for_each_completion_fails_the_whole_list() -> None:
    """A shorter list must not be tried: a list of one completion would make an answer of what is none."""

    def one_number(_texts: list[str]) -> Any:
        return [0.5]

    def scalar(_texts: list[str]) -> Any:
        return 0.5

    def one_number_unless_it_raises(texts: list[str]) -> Any:
        if "poison" in texts:
            raise ValueError("poison")
        return [0.5]

    def too_few_in_a_column(texts: list[str]) -> Any:
        return {"rewards": [0.5] * len(texts), "parsed": ["4"]}

    found = {}
    for scorer in (one_number, scalar, one_number_unless_it_raises, too_few_in_a_column):
        async with RewardBuffer(scorer) as buffer:
            warm = await buffer.score(["warm"])  # one completion that was scored, so that it could be asked again
            scored = await buffer.score(["a", "b", "poison", "c"])
        found[scorer.__name__] = (
            [one.reward for one in scored],
            {type(one.cause) for one in scored},
            {one.own for one in scored},
            len(warm),
        )
    assert found == dict.fromkeys(found, ([None] * 4, {InvalidScores}, {False}, 1))


async def test_what_fails_is_to_blame_itself_if_the_scorer_scored_another_one_of_its_batch_or_the_one_before() -> None:
    broken: list[bool] = []

    def scorer(completions: list[str]) -> list[Any]:
        if broken or "poison" in completions:
            raise RuntimeError("out of order" if broken else "poison")
        if "gone" in completions:
            raise ConnectionResetError("the judge is gone")
        return [None if text == "none" else 1.0 for text in completions]

    async with RewardBuffer(scorer) as buffer:

        async def own(*completions: str) -> list[bool]:
            return [one.own for one in await buffer.score(completions)]

        assert await own("poison") == await own("none") == [False]  # nothing was ever scored: who knows
        assert await own("a", "poison", "none") == [False, True, True]
        assert await own("poison", "none") == [True, True]
        broken.append(True)
        assert await own("poison", "a") == [False, False]
        broken.clear()
        assert await own("a") == await own("gone") == [False]


def test_without_isolation_a_batch_fails_as_a_whole_after_one_call() -> None:
    scorer = Lengths()
    scored = run(scores(scorer, "a", "poison", isolate_errors=False))
    assert rewards(scored) == [None, None]
    assert len(scorer.batches) == 1


@each("error", [ConnectionResetError, TimeoutError])
def test_what_can_be_no_completions_fault_is_not_tried_in_halves(error: type[Exception]) -> None:
    calls: list[int] = []

    async def scorer(completions: list[str]) -> list[float]:
        calls.append(len(completions))
        raise error("the judge is gone")

    scored = run(scores(scorer, *"abcd"))
    assert [one.error for one in scored] == [f"{error.__name__}: the judge is gone"] * 4
    assert calls == [4]


async def test_what_a_scorer_changes_in_nested_metadata_reaches_neither_a_retry_nor_the_caller() -> None:
    class Notes(list[Any]):
        """A list of its own kind."""

    def given(number: int) -> dict[str, Any]:
        return {"tests": [{"n": number}], "pair": ([number], 0), "set": {number}, "ordered": OrderedDict(a=[number]), "notes": Notes([[0]])}

    seen: list[Any] = []
    model = object()

    async def scorer(completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        numbers = [meta["tests"].pop()["n"] for meta in metadata]
        for meta in metadata:
            seen.append((type(meta["ordered"]), type(meta["notes"]), meta["model"] is model))
            meta["pair"][0].clear()
            meta["set"].clear()
            meta["ordered"]["a"].clear()
            meta["notes"][0].clear()
        if 1 in numbers:
            raise ValueError("one")
        return [float(number) for number in numbers]

    metadata = [{**given(number), "model": model} for number in range(4)]
    async with RewardBuffer(scorer) as buffer:
        assert rewards(await buffer.score([*"abcd"], metadata)) == [0.0, None, 2.0, 3.0]
    assert metadata == [{**given(number), "model": model} for number in range(4)]
    assert set(seen) == {(OrderedDict, Notes, True)}
