"""Cascades: which stage decides, within which time, and what a batch of them does at once."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from math import inf, nan
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, always, client_of, endpoint, now, number_of, score
from leftovers import leftovers

from qreward import QRewardClient, SyncQRewardClient
from qreward.errors import (
    AuthenticationFailed,
    BadRequest,
    BatchCancelled,
    ClientClosed,
    ConfigError,
    DeadlineExceeded,
    InvalidResponse,
    NoEndpoint,
    QRewardError,
    RateLimited,
    RequestTimeout,
)
from qreward.judge import Cascade, CascadeConfig, Judge, JudgeConfig, RewardModelScorer, SyncJudge, SyncScorer, Verdict, Vote, make_scorer
from qreward.judge.types import JudgeAnswer
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result, Usage

USAGE = Usage(10, 5, 15)
Answer = Callable[[Any, Any], Any]


class Scripted:
    """A scorer of the user's own: from prompt and response to ``(score, confidence)`` or an error, after some seconds."""

    def __init__(self, answer: Answer, seconds: float = 1.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.asked: list[Any] = []
        self.given: list[dict[str, Any]] = []
        self.closed = 0

    async def score(self, prompt: Any, response: Any, *, timeout: Any = None, **fields: Any) -> Verdict:
        self.asked.append(response)
        self.given.append({"timeout": timeout, **fields})
        if timeout is not None and isinstance(timeout, float) and timeout < self.seconds:
            await asyncio.sleep(timeout)
            raise RequestTimeout(f"not within {timeout:g} s")
        if self.seconds:
            await asyncio.sleep(self.seconds)
        said = self.answer(prompt, response)
        if isinstance(said, QRewardError):
            said.usage = USAGE
            raise said
        return Verdict(said[0], (Vote(said[0]),), usage=USAGE, confidence=said[1])

    async def batch_score(self, items: Iterable[Any] | AsyncIterable[Any], **options: Any) -> BatchResult[Verdict]:
        self.given.append(options)
        index = 0
        given = items if isinstance(items, AsyncIterable) else _async(items)
        async for item in given:
            try:
                verdict = await self.score(item[0], item[1])
                result = Result[Verdict](index, JudgeAnswer(verdict), None, None, self.seconds, 0.0)
            except QRewardError as error:
                result = Result(index, None, error, None, 0.0, 0.0)
            options["on_result"](result)
            index += 1
        return BatchResult([], BatchStats(index))

    async def aclose(self) -> None:
        self.closed += 1


async def _async(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


def says(*said: Any) -> Scripted:
    """A scorer that says the same to everything."""
    return Scripted(lambda *_: said[0] if len(said) == 1 else said)


async def test_a_sure_verdict_stands_and_an_unsure_one_goes_on() -> None:
    cases: list[tuple[Any, str, float]] = [
        ((1.0, 0.8), "small", 1.0),
        ((1.0, 0.79), "strong", 0.25),
        ((1.0, None), "strong", 0.25),
        ((1.0, float("nan")), "strong", 0.25),
        (InvalidResponse("unreadable"), "strong", 0.25),
        (RateLimited("busy"), "strong", 0.25),
        (AuthenticationFailed("no key"), "strong", 0.25),
        (BadRequest("too long"), "strong", 0.25),
    ]
    faults: list[Any] = []
    for said, by, number in cases:
        small, strong = says(said), says(0.25, None)
        async with Cascade({"small": small, "strong": strong}) as cascade:
            one = await cascade.score("p", "r", "x", rubric="y")
            (many,) = (await cascade.batch_score([("p", "r")])).values()
        for verdict in (one, many):
            tokens = 15 * (1 if by == "small" else 2)
            if (verdict.decided_by, verdict.score, verdict.usage and verdict.usage.total_tokens) != (by, number, tokens):
                faults.append((said, verdict.decided_by, verdict))
        if small.closed != 1:
            faults.append((said, small.closed))
        if small.given[0] != {"timeout": small.given[0]["timeout"], "reference": "x", "rubric": "y"}:
            faults.append((said, small.given[0]))
    assert faults == []


async def test_errors_that_no_other_stage_would_mend_stand_and_so_does_what_the_last_says() -> None:
    cases: list[tuple[Any, Any, type[QRewardError]]] = [
        (ConfigError("no response"), (1.0, 1.0), ConfigError),
        (NoEndpoint("no route"), (1.0, 1.0), NoEndpoint),
        (ClientClosed("closed"), (1.0, 1.0), ClientClosed),
        (BatchCancelled("by an operator"), (1.0, 1.0), BatchCancelled),
        (DeadlineExceeded("late"), (1.0, 1.0), DeadlineExceeded),
        ((1.0, 0.1), InvalidResponse("unreadable"), InvalidResponse),
        (RateLimited("busy"), InvalidResponse("unreadable"), InvalidResponse),
    ]
    faults = []
    for first, second, kind in cases:
        cascade = Cascade({"small": says(first), "strong": says(second)})
        raised: list[QRewardError] = []
        try:
            await cascade.score("p", "r")
        except QRewardError as error:
            raised.append(error)
        batch = await cascade.batch_score([("p", "r")])
        raised += batch.errors.values()
        tokens = 15 if kind is not InvalidResponse else 30
        if [type(error) for error in raised] != [kind] * 2 or raised[-1].usage is None or raised[-1].usage.total_tokens != tokens:
            faults.append((first, second, raised, [error.usage for error in raised]))
    assert faults == []
    with pytest.raises(InvalidResponse) as noted:
        await Cascade({"small": says(RateLimited("busy")), "strong": says(InvalidResponse("unreadable"))}).score("p", "r")
    assert noted.value.__notes__ == ["stage 'small' failed before: RateLimited: busy"]


async def test_a_score_that_is_no_finite_number_is_an_error_at_any_stage() -> None:
    for first, second in (((nan, 1.0), (1.0, 1.0)), ((1.0, 0.1), (inf, 1.0))):
        cascade = Cascade({"small": says(first), "strong": says(second)})
        with pytest.raises(InvalidResponse, match=r"the scorer returned (nan|inf) as 'score', which is not a finite number"):
            await cascade.score("p", "r")
        (error,) = (await cascade.batch_score([("p", "r")])).errors.values()
        assert isinstance(error, InvalidResponse)


async def test_the_stages_share_one_time_limit_and_each_leaves_its_successors_some() -> None:
    first, second, third = (Scripted(lambda *_: (1.0, 0.0), seconds) for seconds in (100.0, 1.0, 2.0))
    cascade = Cascade({"first": first, "second": second, "third": third})
    verdict = await cascade.score("p", "r", timeout=8)
    assert (verdict.decided_by, now()) == ("third", 4 + 1 + 2)
    assert [stage.given[0]["timeout"] for stage in (first, second, third)] == pytest.approx([4.0, 2.0, 3.0])
    slow = Cascade([Scripted(lambda *_: (1.0, 0.0), 100), Scripted(lambda *_: (1.0, 0.0), 100)])
    with pytest.raises(RequestTimeout) as late:
        await slow.score("p", "r", timeout=8)
    assert now() == 7 + 8
    assert len(late.value.__notes__) == 1
    await cascade.batch_score([("p", "r")], timeout=8)
    assert [stage.given[1]["timeout"] for stage in (first, second, third)] == [4.0, 2.0, 2.0], "the first took more than its time"
    quick, last = Scripted(lambda *_: (1.0, 0.0), 1.0), Scripted(lambda *_: (1.0, 0.0), 1.0)
    await Cascade([quick, last]).batch_score([("p", "r"), ("p", "s")], timeout=120)
    assert last.given[0]["timeout"] == 119.0


async def test_no_time_left_is_a_timeout_before_the_next_stage_is_asked() -> None:
    class Late(Scripted):
        async def score(self, prompt: Any, response: Any, **fields: Any) -> Verdict:
            await asyncio.sleep(10)
            return Verdict(1.0, (Vote(1.0),), usage=USAGE, confidence=0.0)

    strong = says(1.0, 1.0)
    with pytest.raises(RequestTimeout, match=r"no sure verdict within 3 s; the time was over before stage 'strong'") as raised:
        await Cascade({"late": Late(lambda *_: 0), "strong": strong}).score("p", "r", timeout=3)
    assert raised.value.usage == USAGE
    assert strong.asked == []


async def test_a_function_gives_the_confidence_of_a_reward_model_and_must_return_a_number() -> None:
    def distance(verdict: Verdict) -> float:
        return abs(verdict.score - 0.5) * 2

    cascade = Cascade([Scripted(lambda _, response: (float(response), None)), says(0.3, None)], confidence=distance)
    batch = await cascade.batch_score([("p", "0.95"), ("p", "0.6"), ("p", "0.02")])
    assert batch.scores() == [0.95, 0.3, 0.02]
    assert [verdict.decided_by for verdict in batch.values()] == ["Scripted", "Scripted #2", "Scripted"]
    assert batch.stats.decided_by == {"Scripted": 2, "Scripted #2": 1}
    assert batch.stats.escalated == pytest.approx(1 / 3)
    assert str(batch.stats).endswith("decided by Scripted 67%, Scripted #2 33%")

    raising = Cascade([says(0.5, 1.0), says(0.3, None)], confidence=lambda verdict: verdict.nothing)  # type: ignore[attr-defined]
    with pytest.raises(InvalidResponse, match="the confidence function of stage 'Scripted' raised AttributeError") as raised:
        await raising.score("p", "r")
    assert isinstance(raised.value.__cause__, AttributeError)
    assert raised.value.usage == USAGE
    odd: tuple[Any, ...] = ([0.9], 10**400, "0.9", b"1", float("inf"))
    for returned in odd:
        cascade = Cascade([says(0.5, 1.0), says(0.3, None)], confidence=partial(lambda it, _: it, returned))
        with pytest.raises(InvalidResponse, match="which is not a finite number"):
            await cascade.score("p", "r")
    cascade = Cascade([says(0.5, 1.0), says(0.3, None)], confidence=lambda _: None)  # type: ignore[arg-type,return-value]
    assert (await cascade.score("p", "r")).score == 0.3


SMALL, STRONG = "judge-7b", "judge-70b"


def graded(seconds: float = 1.0) -> Callable[[Sent], Awaitable[Any]]:
    """Judges that score each number with 0.1 of it. The small one is sure of even numbers; its reason is its confidence."""

    async def script(sent: Sent) -> Any:
        await asyncio.sleep(seconds)
        number = number_of(sent)
        return score(number % 10, "0.9" if number % 2 == 0 else "0.1")

    return script


def stated(verdict: Verdict) -> float:
    return float(verdict.verdict.reason)  # type: ignore[union-attr]


def cascade_over(client: QRewardClient, *models: str, **settings: Any) -> Cascade:
    judges = [Judge(client, model=model, reasks=0) for model in models or (SMALL, STRONG)]
    return Cascade(judges, **{"confidence": stated, **settings})


def items(count: int) -> list[tuple[str, str]]:
    return [("q", f"a{number}") for number in range(count)]


async def test_one_stage_follows_the_other_on_what_is_left() -> None:
    backend = JudgeBackend(graded())
    ends = [endpoint("s", slots=2, models=[SMALL]), endpoint("t", slots=2, models=[STRONG])]
    async with client_of(backend, *ends) as client:
        batch = await cascade_over(client).batch_score([{"prompt": "q", "response": f"a{n}", "id": n} for n in range(20)])
        assert now() == 10 + 5
        assert leftovers(client) == {}
    assert [result.index for result in batch] == list(range(20))
    assert [round(10 * number) for number in batch.scores()] == [number % 10 for number in range(20)]
    assert [verdict.decided_by for verdict in batch.values()] == [SMALL, STRONG] * 10
    assert [result.extra["id"] for result in batch] == list(range(20))
    assert [result.endpoint for result in batch[:2]] == ["s", "t"]
    assert [[attempt.endpoint for attempt in result.attempts] for result in batch[:2]] == [["s"], ["s", "t"]]
    assert [result.latency for result in batch[:2]] == pytest.approx([1.0, 2.0])
    assert [attempt.latency for result in batch[:2] for attempt in result.attempts] == pytest.approx([1.0] * 3)
    assert [verdict.usage.total_tokens for verdict in batch.values()[:2]] == [15, 30]
    stats = batch.stats
    assert (stats.items, stats.ok, stats.failed, stats.decided_by, stats.escalated) == (20, 20, 0, {SMALL: 10, STRONG: 10}, 0.5)
    assert {name: (end.won, end.prompt_tokens) for name, end in stats.endpoints.items()} == {"s": (20, 200), "t": (10, 100)}
    assert min(sent.at for sent in backend.sent if sent.model == STRONG) == 10
    assert max(sent.at for sent in backend.sent if sent.model == SMALL) == 9


async def test_the_deadline_ends_both_stages_and_names_itself() -> None:
    backend = JudgeBackend(graded(3))
    async with client_of(backend, endpoint("s", slots=4)) as client:
        batch = await cascade_over(client).batch_score(items(40), deadline=10)
        assert now() == 10
        assert leftovers(client) == {}
    done = [result.ok for result in batch]
    assert len(done) == 40
    assert 0 < sum(done) < 13
    assert {type(result.error) for result in batch if not result.ok} == {DeadlineExceeded}
    assert batch.stats.failed + batch.stats.ok == 40


async def test_an_item_that_the_deadline_ends_before_the_next_stage_keeps_its_other_fields() -> None:
    async with client_of(JudgeBackend(graded(3)), endpoint("s", slots=1)) as client:
        given = [{"prompt": "q", "response": f"a{number}", "id": number} for number in (1, 3)]
        batch = await cascade_over(client).batch_score(given, deadline=5)
    assert [(type(result.error), result.extra) for result in batch] == [(DeadlineExceeded, {"id": 1}), (DeadlineExceeded, {"id": 3})]


async def test_each_result_is_passed_on_once_and_is_not_kept_if_it_need_not_be() -> None:
    seen: list[tuple[int, float]] = []
    shown: list[Any] = []
    async with client_of(JudgeBackend(graded())) as client:
        given: Any = {"on_result": lambda result: seen.append((result.index, now())), "progress": shown.append, "keep_results": False}
        batch = await cascade_over(client).batch_score(iter(items(6)), **given)
    assert sorted(seen) == [(0, 1), (1, 2), (2, 1), (3, 2), (4, 1), (5, 2)]
    assert (len(batch), batch.stats.items) == (0, 6)
    assert (shown[-1].done, shown[-1].ok, shown[-1].total) == (6, 6, None)


async def test_an_exception_of_the_input_lets_what_was_read_pass_through_all_stages() -> None:
    def broken() -> Iterator[Any]:
        yield from items(4)
        raise OSError("the file ends")

    async def broken_later() -> AsyncIterator[Any]:
        for item in items(4):
            yield item
        raise OSError("the file ends")

    async with client_of(JudgeBackend(graded())) as client:
        for given in (broken(), broken_later()):
            with pytest.raises(BatchInterrupted, match=r"after 4 items \(OSError: the file ends\)") as raised:
                await cascade_over(client).batch_score(given)
            assert raised.value.results is not None
            assert raised.value.results.scores() == [0.0, 0.1, 0.2, 0.3]
            assert raised.value.results.stats.endpoints["a"].won == 6
            assert isinstance(raised.value.__cause__, OSError)


async def test_an_exception_of_on_result_stops_all_stages() -> None:
    def stop(result: Result[Verdict]) -> None:
        if result.index == 1:  # decided by the second stage
            raise KeyError("enough")

    backend = JudgeBackend(graded())
    async with client_of(backend, endpoint("s", slots=4)) as client:
        with pytest.raises(BatchInterrupted, match="KeyError: 'enough'") as raised:
            await cascade_over(client).batch_score(items(200), on_result=stop)
        assert leftovers(client) == {}
    assert raised.value.results is not None
    assert 101 <= len(raised.value.results) < 110
    assert len(backend.sent) < 220


async def test_a_cancelled_batch_cancels_the_requests_of_all_stages() -> None:
    backend = JudgeBackend(graded(3))
    async with client_of(backend, endpoint("s", slots=4)) as client:
        batch = asyncio.create_task(cascade_over(client).batch_score(items(40)))
        await asyncio.sleep(7)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert leftovers(client) == {}
    assert {sent.model for sent in backend.cancelled} <= {SMALL, STRONG}
    assert len(backend.cancelled) == 4


async def test_a_stage_without_an_endpoint_raises_before_anything_is_sent() -> None:
    for models in ((SMALL, "nobody"), ("nobody", STRONG)):
        backend = JudgeBackend(graded())
        ends = [endpoint("s", models=[SMALL]), endpoint("t", models=[STRONG])]
        async with client_of(backend, *ends) as client:
            with pytest.raises(NoEndpoint):
                await cascade_over(client, *models).batch_score(items(8))
            assert leftovers(client) == {}
        assert backend.sent == []


async def test_a_stage_that_closes_its_client_fails_what_waits_for_it() -> None:
    async with client_of(JudgeBackend(graded(1))) as small, client_of(JudgeBackend(graded(50))) as strong:
        cascade = Cascade([Judge(small, model=SMALL), Judge(strong, model=STRONG)], confidence=stated)
        batch = asyncio.create_task(cascade.batch_score(items(4)))
        await asyncio.sleep(5)
        await strong.aclose()
        assert [type(result.error) for result in await batch] == [type(None), ClientClosed] * 2


async def test_a_later_stage_that_cannot_begin_fails_what_is_left_and_loses_nothing() -> None:
    class Broken(Scripted):
        async def batch_score(self, items: Iterable[Any] | AsyncIterable[Any], **options: Any) -> BatchResult[Verdict]:
            raise self.answer(None, None)

    quick = Scripted(lambda _, response: (1.0, float(response != "a1")), 0.0)
    batch = await Cascade({"quick": quick, "closed": Broken(lambda *_: ClientClosed("closed"))}).batch_score(items(3))
    assert [type(result.error) for result in batch] == [type(None), ClientClosed, type(None)]
    silent = Scripted(lambda *_: (1.0, 0.0), 0.0)
    silent.batch_score = lambda given, **_: asyncio.sleep(0, BatchResult([], BatchStats(0)))  # type: ignore[method-assign]
    batch = await Cascade({"quick": quick, "silent": silent}).batch_score(items(3))
    assert [type(result.error) for result in batch] == [type(None), ClientClosed, type(None)]
    with pytest.raises(BatchInterrupted, match="KeyError") as raised:
        await Cascade({"quick": quick, "odd": Broken(lambda *_: KeyError("fault"))}).batch_score(items(3))
    assert raised.value.results is not None
    assert [result.index for result in raised.value.results] == [0, 2]


async def test_a_cascade_in_a_cascade_names_both() -> None:
    inner = Cascade({"a": says(1.0, 0.1), "b": says(0.5, 0.9)})
    outer = Cascade({"first": inner, "last": says(0.0, 1.0)})
    assert (await outer.score("p", "r")).decided_by == "first/b"
    batch = await outer.batch_score([("p", "r")])
    assert (batch.values()[0].decided_by, batch.stats.decided_by) == ("first/b", {"first": 1, "last": 0})


async def test_stages_of_one_endpoint_have_one_line_of_statistics_and_the_cost_of_both_and_wrong_options_are_refused() -> None:
    async with client_of(JudgeBackend(graded()), endpoint("s", slots=4, price=(1.0, 2.0))) as client:
        batch = await cascade_over(client).batch_score(items(4))
        wrong: list[Any] = [
            {"timeout": 0},
            {"deadline": -1},
            {"temperature": 0},
            {"on_result": 3},
            {"keep_results": 0},
            {"priority": "urgent"},
            {"progress": "yes"},
        ]
        for options in wrong:
            with pytest.raises(ConfigError):
                await cascade_over(client).batch_score(items(1), **options)
        with pytest.raises(ConfigError, match="items"):
            await cascade_over(client).batch_score("text")  # type: ignore[arg-type]
    assert (batch.stats.endpoints["s"].won, batch.stats.endpoints["s"].p50) == (6, None)
    assert batch.cost == pytest.approx(6 * (10 * 1 + 5 * 2) / 1e6)


def some_client() -> QRewardClient:
    return QRewardClient(["http://gpu-0.example/v1"])


def distance(verdict: Verdict) -> float:
    return abs(verdict.score)


def test_settings_make_a_cascade_and_what_is_none_is_refused() -> None:
    config = CascadeConfig(
        stages=("rm-7b", JudgeConfig(model="judge-7b"), JudgeConfig(model=["judge-70b", "judge-9b"])),  # type: ignore[arg-type]
        min_confidence=(0.3, 0.9),
        confidence={"rm-7b": "test_judge_cascade:distance"},
    )
    cascade: Any = make_scorer(some_client(), config)
    assert repr(cascade) == "<Cascade rm-7b -> judge-7b -> judge-70b+judge-9b>"
    assert [stage.min_confidence for stage in cascade._stages] == [0.3, 0.9, None]
    assert cascade._stages[0].confidence(Verdict(-2.0, (Vote(-2.0),))) == 2.0
    quick: Any = {"model": "judge-7b"}
    named: Any = make_scorer(some_client(), CascadeConfig(stages={"quick": quick, "good": "rm-70b"}, min_confidence=0.9))
    assert repr(named) == "<Cascade quick -> good>"
    assert isinstance(named._stages[1].scorer, RewardModelScorer)
    one, two = says(1.0, 1.0), says(0.0, 0.0)
    assert Cascade([one, two], min_confidence=[3.5], confidence=[lambda verdict: verdict.score])
    cases: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (Cascade, {"stages": [one]}, "two or more scorers"),
        (Cascade, {"stages": "ab"}, "two or more"),
        (Cascade, {"stages": [one, "judge-70b"]}, "has no method 'score'"),
        (Cascade, {"stages": {"": one, "b": two}}, "name of a stage"),
        (Cascade, {"stages": [one, two], "min_confidence": 1.5}, "from 0 to 1"),
        (Cascade, {"stages": [one, two], "min_confidence": True}, "must be a number"),
        *((Cascade, {"stages": [one, two], "min_confidence": odd}, "must be a number") for odd in (nan, inf, 10**400)),
        (Cascade, {"stages": [one, two], "min_confidence": [0.5, 0.5]}, r"one for each stage but the last \(1\), not 2"),
        (Cascade, {"stages": [one, two], "confidence": 0.5}, "must be a function"),
        (CascadeConfig, {"stages": ["a"]}, "stages"),
        (CascadeConfig, {"stages": ["a", "b"], "min_confidence": 2}, "from 0 to 1"),
        (CascadeConfig, {"stages": ["a", "b"], "confidence": {"b": "m:f"}}, "'b' must be one of the stages before the last: 'a'"),
        (CascadeConfig, {"stages": ["a", "b"], "confidence": {"a": "test_judge_cascade:distanc"}}, "did you mean 'distance'"),
        (CascadeConfig, {"stages": ["a", "b"], "min_confidenc": 0.5}, "min_confidence"),
        (CascadeConfig, {"stages": ["a", ""]}, "name of a reward model"),
    ]
    for make, settings, words in cases:
        with pytest.raises(ConfigError, match=words):
            make_scorer(some_client(), made) if isinstance(made := make(**settings), CascadeConfig) else made


def test_a_copy_has_the_settings() -> None:
    cascade = Cascade([RewardModelScorer(some_client(), "rm"), Judge(some_client(), model="j")], min_confidence=[0.3], confidence=distance)
    copy = pickle.loads(pickle.dumps(cascade))
    assert repr(copy) == repr(cascade) == "<Cascade rm -> j>"
    assert copy._stages[0].min_confidence == 0.3


@pytest.mark.real_time(30)
async def test_the_blocking_twin_scores_and_closes() -> None:
    def work() -> None:
        quick = Scripted(lambda _, response: (1.0, 1.0 if response == "sure" else 0.0), 0.0)
        strong = Scripted(lambda *_: (0.5, None), 0.0)
        with SyncScorer(Cascade({"quick": quick, "strong": strong})) as scorer:
            assert scorer.score("p", "sure").decided_by == "quick"
            assert scorer.batch_score([("p", "sure"), ("p", "not")]).scores() == [1.0, 0.5]
            assert repr(scorer) == "<SyncCascade quick -> strong>"
        assert (quick.closed, strong.closed) == (1, 1)
        with SyncQRewardClient(["http://gpu-0.example/v1"]) as client:
            mixed = SyncScorer(Cascade([SyncJudge(client, model="a"), SyncJudge(client, model="b")]))
            assert repr(pickle.loads(pickle.dumps(mixed))) == "<SyncCascade a -> b>"

    await asyncio.to_thread(work)


async def test_the_default_timeout_is_that_of_the_first_stages_client() -> None:
    async with client_of(JudgeBackend(always(score(7, "0.1"), seconds=1000)), timeout=8.0) as client:
        with pytest.raises(RequestTimeout):
            await Cascade([cascade_over(client), Judge(client, model="x")]).score("q", "a1")
        assert now() == pytest.approx(8, abs=0.1)
