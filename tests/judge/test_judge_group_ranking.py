"""``Judge.rank`` and ``batch_rank``: which comparisons are sent when, and what becomes of their failures."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, always, endpoint, judge_over, now, prefers, refused

from qreward.errors import BadRequest, BatchCancelled, ConfigError, DeadlineExceeded, InvalidResponse, RequestTimeout
from qreward.judge import Ranking
from qreward.judge.cache import Cache
from qreward.judge.loop import ItemBatch
from qreward.results import BatchInterrupted, Result
from qreward.runtime import runtime_of

PROMPT = "Name a large number."


def numbers(sent: Sent) -> tuple[int, int]:
    """The two answers that were shown."""
    first, second = sent.text.split("Answer A:\n```\n")[1].split("\n```\n\nAnswer B:\n```\n")
    return int(first), int(second.split("\n")[0])


async def larger(sent: Sent) -> Any:
    """A judge that prefers the larger number."""
    await asyncio.sleep(1)
    first, second = numbers(sent)
    return prefers("A" if first > second else "B")


def failing(*bad: int) -> Any:
    """The same judge, which is refused by its server if one of these numbers is shown."""

    async def script(sent: Sent) -> Any:
        return refused("no") if set(numbers(sent)) & set(bad) else await larger(sent)

    return script


async def test_responses_are_ranked_in_rounds_and_each_pair_is_shown_in_both_orders() -> None:
    backend = JudgeBackend(larger)
    responses = [str(number) for number in (5, 9, 1, 7, 3, 8, 2, 6)]
    async with judge_over(backend) as judge:
        ranking = await judge.rank(PROMPT, responses)
    assert [responses[index] for index in ranking.order] == ["9", "8", "7", "6", "5", "3", "2", "1"]
    assert ranking.ranks == (5, 1, 8, 3, 6, 2, 7, 4)
    assert (len(ranking.comparisons), len(backend.sent)) == (24, 48)
    shown = [numbers(sent) for sent in backend.sent]
    assert {(second, first) for first, second in shown} == set(shown)
    assert len({sent.at for sent in backend.sent}) > 4
    assert ranking.usage is not None
    assert ranking.usage.total_tokens == 48 * 15
    for (first, second), comparison in ranking.comparisons.items():
        assert (comparison.preference == "first") == (int(responses[first]) > int(responses[second]))
    assert pickle.loads(pickle.dumps(ranking)) == ranking


async def test_few_responses_are_one_round_and_identical_ones_are_not_compared_and_share_a_rank() -> None:
    backend = JudgeBackend(larger)
    async with judge_over(backend) as judge:
        ranking = await judge.rank(PROMPT, ["3", "1", "3", "1", "2"])
        assert now() == 1.0
        same, one, none = await judge.rank(PROMPT, ["7", "7", "7"]), await judge.rank(PROMPT, ["7"]), await judge.rank(PROMPT, [])
    assert ranking.ranks == (1, 4, 1, 4, 3)
    assert set(ranking.comparisons) == {(0, 1), (0, 4), (1, 4)}
    assert (same.scores, same.advantages, same.errors) == ((0.5,) * 3, (0.0,) * 3, (0.0,) * 3)
    assert (one.scores, one.order, none.scores) == ((0.5,), (0,), ())
    assert len(backend.sent) == 6


async def test_failed_comparisons_are_left_out_and_counted_and_a_response_that_none_reaches_is_an_error() -> None:
    async def script(sent: Sent) -> Any:
        return refused("no") if set(numbers(sent)) == {1, 2} else await larger(sent)

    async with judge_over(JudgeBackend(script)) as judge:
        ranking = await judge.rank(PROMPT, ["1", "2", "3", "4"])
    assert (ranking.failed, len(ranking.comparisons), ranking.order[:2]) == (1, 5, (3, 2))
    async with judge_over(JudgeBackend(failing(4))) as judge:
        with pytest.raises(InvalidResponse, match=r"4 of 10 comparisons failed.* do not connect all 5 responses: BadRequest.*no") as raised:
            await judge.rank(PROMPT, ["1", "2", "3", "4", "5"])
    assert isinstance(raised.value.__cause__, BadRequest)
    assert raised.value.usage is not None
    backend = JudgeBackend(always(refused("no such model")))
    async with judge_over(backend) as judge:
        with pytest.raises(BadRequest, match=r"15 of 15 comparisons failed.*no such model"):
            await judge.rank(PROMPT, [str(number) for number in range(16)])
    assert len(backend.sent) <= 30, "no further round"


@pytest.mark.real_time
async def test_the_comparisons_of_every_round_are_taken_from_the_cache(tmp_path: Path) -> None:
    async def quick(sent: Sent) -> str:
        first, second = numbers(sent)
        return prefers("A" if first > second else "B")

    responses = [str(number) for number in (5, 9, 1, 7, 3, 8, 2, 6)]
    rankings, backend = list[Ranking](), JudgeBackend(quick)
    for _ in range(2):
        async with judge_over(backend, cache=tmp_path / "cache.db") as judge:
            rankings.append(await judge.rank(PROMPT, responses))
    assert [ranking.cached for ranking in rankings] == [False, True]
    assert rankings[0].scores == rankings[1].scores
    assert len(backend.sent) == 48


async def test_a_deadline_that_ends_while_the_cache_is_read_ends_the_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(_cache: Cache, _keys: Any) -> dict[bytes, Any]:
        await asyncio.sleep(5)
        return {}

    monkeypatch.setattr(Cache, "look_up", slowly)
    backend = JudgeBackend(larger)
    async with judge_over(backend, cache=tmp_path / "cache.db") as judge:
        batch = await judge.batch_rank([(PROMPT, ["1", "2", "3"]), (PROMPT, ["4", "5"])], deadline=2)
    assert [type(result.error) for result in batch] == [DeadlineExceeded] * 2
    assert backend.sent == []


async def test_the_timeout_is_for_all_rounds_together_and_cancels_what_is_left() -> None:
    backend = JudgeBackend(larger)
    async with judge_over(backend) as judge:
        with pytest.raises(RequestTimeout, match=r"no ranking within 2.5 s; model 'judge-7b'") as raised:
            await judge.rank(PROMPT, [str(number) for number in range(16)], timeout=2.5)
        assert now() == 2.5
    assert backend.cancelled
    assert raised.value.usage is not None


async def test_what_cannot_be_ranked_is_refused_before_anything_is_sent() -> None:
    backend = JudgeBackend(larger)
    many: Any = [str(number) for number in range(65)]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (["1", None], {}, r"responses\[1\] is None"),
        ("12", {}, "responses must be a list.*not a str"),
        (3, {}, "responses must be a list"),
        (["1", "2", "3", "4"], {"comparisons": 2}, "at least 3 to connect 4"),
        (["1", "2"], {"refrence": "2"}, "refrence"),
        (["1", float("nan")], {}, r"responses\[1\] is None"),
        (many, {}, "64 different responses, not 65"),
        (["1", "2"], {"timeout": -1}, "timeout"),
    ]
    async with judge_over(backend) as judge:
        for responses, options, words in cases:
            with pytest.raises(ConfigError, match=words):
                await judge.rank(PROMPT, responses, **options)
        for response, words in ((object(), "cannot be written"), ([{"role": "assistant", "content": None}], "nothing to judge")):
            with pytest.raises(BadRequest, match=words):
                await judge.rank(PROMPT, ["1", response])
        with pytest.raises(ConfigError, match="prompt"):
            await judge.rank(None, ["1", "2"])
        for options in ({"comparisons": 1.5}, {"comparison": 5}, {"temperature": 0}, {"deadline": 0}):
            with pytest.raises(ConfigError):
                await judge.batch_rank([(PROMPT, ["1", "2"])], **options)
        with pytest.raises(ConfigError, match="groups"):
            await judge.batch_rank("text")  # type: ignore[arg-type]
    assert backend.sent == []


async def test_a_single_group_is_checked_once_and_an_error_names_its_pairs() -> None:
    shown: list[tuple[str, str]] = []

    def pair_prompt(item: dict[str, Any]) -> list[dict[str, Any]]:
        shown.append((item["first"], item["second"]))
        return [{"role": "user", "content": f"Answer A:\n```\n{item['first']}\n```\n\nAnswer B:\n```\n{item['second']}\n"}]

    async with judge_over(JudgeBackend(larger), pair_prompt=pair_prompt) as judge:
        assert (await judge.rank(PROMPT, ["1", "2"])).order == (1, 0)
    assert shown == [("1", "2"), ("2", "1")] * 2, "once to check the responses, and once to compare them"
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]}]
    async with judge_over(JudgeBackend(larger), endpoint(decisions="openai"), method="decide") as judge:
        with pytest.raises(BadRequest, match=r"pair \(0, 1\): .* texts only") as caught:
            await judge.rank(picture, ["1", "2"])
    assert "group 0" not in str(caught.value)


async def test_the_rounds_of_groups_interleave_and_results_come_in_the_order_of_the_input() -> None:
    async def script(sent: Sent) -> str:
        await asyncio.sleep(10 if "slow" in sent.text else 1)
        first, second = numbers(sent)
        return prefers("A" if first > second else "B")

    responses = [str(number) for number in range(8)]
    groups: list[Any] = [
        ("slow", responses),
        (PROMPT, responses[::-1]),
        {"prompt": PROMPT, "responses": responses[:4], "id": 7},
        (PROMPT, ["1"]),
    ]
    seen: list[tuple[int, float]] = []
    shown: list[Any] = []
    async with judge_over(JudgeBackend(script)) as judge:
        batch = await judge.batch_rank(groups, on_result=lambda result: seen.append((result.index, now())), progress=shown.append)
    assert [(result.index, result.value.order[0]) for result in batch] == [(0, 7), (1, 0), (2, 3), (3, 0)]
    assert batch[2].extra == {"id": 7}
    assert [index for index, _ in seen] == [3, 2, 1, 0]
    alone = dict(seen)[1]
    assert alone < 12
    assert dict(seen)[0] == 10 * alone
    assert (batch.stats.items, batch.stats.ok, batch.stats.failed) == (4, 4, 0)
    assert sum(stats.won for stats in batch.stats.endpoints.values()) == 2 * (24 + 24 + 6)
    assert (shown[-1].done, shown[-1].total, shown[-1].ok, shown[-1].failed, shown[-1].prompt_tokens) == (4, 4, 4, 0, 1080)


async def test_a_group_that_fails_fails_alone() -> None:
    groups: list[Any] = [
        (PROMPT, ["1", "2"]),
        (PROMPT, ["1", None]),
        (PROMPT, ["4", "5"]),
        (PROMPT,),
        {"prompt": PROMPT},
        ("q", ["2", "1"]),
    ]
    async with judge_over(JudgeBackend(failing(4))) as judge:
        batch = await judge.batch_rank(groups)
    assert [type(result.error) for result in batch] == [type(None), ConfigError, BadRequest, ConfigError, ConfigError, type(None)]
    assert "group 1: responses[1] is None" in str(batch[1].error)
    assert (batch.stats.ok, batch.stats.failed) == (2, 4)


async def test_groups_are_read_as_pairs_are_sent_and_an_async_input_may_be_slow_while_others_go_on() -> None:
    read, seen = 0, list[float]()

    def many() -> Iterator[Any]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield PROMPT, [f"{number}" for number in range(4)]

    async def slow() -> AsyncIterator[Any]:
        yield PROMPT, [str(number) for number in range(8)]
        await asyncio.sleep(100)
        yield PROMPT, ["1", "2"]

    async with judge_over(JudgeBackend(larger), endpoint(slots=2), cache=None) as judge:
        batch = asyncio.create_task(judge.batch_rank(many(), keep_results=False))
        await asyncio.sleep(3.5)
        assert read < 2500  # requests wait in a buffer of at most some thousands
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
    async with judge_over(JudgeBackend(larger)) as judge:
        began = now()
        assert len(await judge.batch_rank(slow(), on_result=lambda _: seen.append(now() - began))) == 2
    assert seen[0] < 15
    assert seen[1] == pytest.approx(101)


async def test_groups_that_are_not_ranked_by_the_deadline_fail_with_it() -> None:
    wide = [str(number) for number in range(16)]
    groups = [(PROMPT, ["1", "2"]), *((f"{number}. question", wide) for number in range(700))]
    async with judge_over(JudgeBackend(larger), endpoint(slots=8)) as judge:
        batch = await judge.batch_rank(groups, deadline=4)
        assert now() == 4
    assert [result.index for result in batch] == list(range(701))  # more than were read
    assert [type(result.error) for result in batch] == [type(None), *[DeadlineExceeded] * 700]
    assert (batch[1].usage is not None, batch[700].usage) == (True, None)
    assert (batch.stats.items, batch.stats.failed) == (701, 700)


async def test_a_group_whose_batch_is_cancelled_between_two_rounds_is_not_ranked_by_half_of_its_comparisons() -> None:
    async with judge_over(JudgeBackend(larger)) as judge:
        batch = asyncio.create_task(judge.batch_rank([(PROMPT, [str(number) for number in range(16)]), (PROMPT, ["1", "2"])]))
        await asyncio.sleep(1.5)  # the first round of both is over
        (driver,) = runtime_of(judge._client).engine.drivers()
        (waiter,) = (waiter for waiter in driver.waiters if isinstance(waiter, ItemBatch))
        waiter.cancel("wrong prompt")
        results = await batch
    assert [type(result.error) for result in results] == [BatchCancelled, type(None)]


async def test_an_exception_of_the_input_or_of_on_result_ends_the_batch_with_what_is_done() -> None:
    def broken() -> Iterator[Any]:
        yield PROMPT, [str(number) for number in range(8)]
        yield PROMPT, ["1", "2"]
        raise OSError("the file ends")

    async def broken_later() -> AsyncIterator[Any]:
        for group in ((PROMPT, ["1", "2"]), (PROMPT, ["2", "1"])):
            yield group
        raise OSError("the file ends")

    def stop(result: Result[Ranking]) -> None:
        if result.index == 1:
            raise KeyError("stop")

    async with judge_over(JudgeBackend(larger)) as judge:
        for groups in (broken, broken_later):
            with pytest.raises(BatchInterrupted, match=r"after 2 groups \(OSError: the file ends\)") as raised:
                await judge.batch_rank(groups())
            assert raised.value.results is not None
            assert [result.ok for result in raised.value.results] == [True, True]
        inputs: list[list[Any]] = [[(PROMPT, ["1", "2"])] * 4, [("a", []), ("b", [])]]
        for given in inputs:
            with pytest.raises(BatchInterrupted, match="KeyError"):
                await judge.batch_rank(given, on_result=stop)
