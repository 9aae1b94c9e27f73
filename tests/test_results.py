"""Results: a failure is a typed value with its trail, order is that of the input, and nothing is ever ``None`` by silence."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict, make_dataclass
from typing import Any

import pytest
from pydantic import ConfigDict, create_model

from qreward import AttemptRecord, BatchResult, BatchStats, EndpointStats, NoEndpoint, QRewardError, RateLimited, Result, Usage
from qreward.codecs.rewards.base import RewardScore
from qreward.records import added, retries
from qreward.results import BatchFailed, FleetStats, merged_stats, with_trail

TRIED = AttemptRecord("gpu-0", "transient", 0.5, 500, "boom")


class Words:
    """An answer of the wire that counts how often it is built. At module level, so that it can be pickled."""

    def __init__(self, words: str, value: Any = None) -> None:
        self.words, self.value = words, {"words": words} if value is None else value
        self.usage: Usage | None = Usage(3, 4, 7)
        self.built = 0

    def build(self) -> Any:
        self.built += 1
        return self.value

    def text(self) -> str:
        return self.words


def answered(index: int = 0, words: str = "yes", trail: tuple[AttemptRecord, ...] = (), value: Any = None) -> Result[Any]:
    return Result(index, Words(words, value), None, "gpu-1", 1.5, 0.25, trail)


def failed(index: int = 0, error: QRewardError | None = None, trail: tuple[AttemptRecord, ...] = (TRIED,)) -> Result[Any]:
    return Result(index, None, error or RateLimited("gpu-0 has no room"), "gpu-0", 0.0, 0.25, trail)


def batch(*results: Result[Any]) -> BatchResult[Any]:
    bad = sum(not result.ok for result in results)
    return BatchResult(list(results), BatchStats(items=len(results), ok=len(results) - bad, failed=bad, seconds=2.0))


def test_a_result_stays_whole_in_the_records_of_a_program() -> None:
    result: Result[Any] = Result(index=0, answer=None, error=None, endpoint=None, latency=0.0, queued=0.0, trail=(TRIED,), extra={"id": 7})
    assert (result.attempts, result.extra) == ((TRIED,), {"id": 7})
    model = create_model("Row", __config__=ConfigDict(arbitrary_types_allowed=True), result=(Result, ...))
    assert model(result=result).result is result  # type: ignore[attr-defined]
    assert type(asdict(make_dataclass("Row", ["result"])(result))["result"]) is Result


def test_an_answer_gives_its_words_usage_trail_and_its_value_which_is_built_once() -> None:
    answer = Words("yes")
    result: Result[Any] = Result(0, answer, None, "gpu-1", 1.5, 0.25, (TRIED,))
    assert (result.ok, result.text, result.usage, result.body, result.finish_reason) == (True, "yes", Usage(3, 4, 7), b"", None)
    assert (result.extra, Result(0, answer, None, "gpu-1", 1.5, 0.25, (), {"id": 7}).extra) == ({}, {"id": 7})
    assert (result.has_trail, result.attempts) == (True, (TRIED, AttemptRecord("gpu-1", "ok", 1.5)))
    assert answer.built == 0
    assert result.value is result.value
    assert (result.value, answer.built) == ({"words": "yes"}, 1)
    assert not result.usage_is_estimated
    vars(answer).update(finish_reason="length", body=b"{}", estimated=True)
    assert (result.finish_reason, result.body, result.usage_is_estimated) == ("length", b"{}", True)
    assert "ok finish_reason='length'" in repr(result)
    cancelled = AttemptRecord("gpu-0", "cancelled", 1.0)
    assert answered(trail=(cancelled,)).attempts[-1].hedge, "a copy won, for what was asked first was cancelled"


def test_a_failure_raises_its_own_error_when_its_value_or_words_are_read() -> None:
    error = RateLimited("gpu-0 has no room", endpoint="gpu-0", status_code=429)
    result = failed(error=error)
    assert (result.ok, result.usage, result.attempts) == (False, None, (TRIED,))
    for read in (lambda: result.value, lambda: result.text, lambda: result.body):
        with pytest.raises(RateLimited) as caught:
            read()
        assert caught.value is error
    error.usage = Usage(5)
    assert result.usage == Usage(5), "what was paid for although nothing came of it"


def test_a_batch_is_a_sequence_of_results_in_the_order_of_the_input_and_nothing_shifts_where_one_failed() -> None:
    first, second, third = answered(0, "a"), failed(1), answered(2, "")
    made = batch(first, second, third)
    assert isinstance(made, Sequence)
    assert (len(made), made[0], made[-1], made[1:], list(made)) == (3, first, third, [second, third], [first, second, third])
    with pytest.raises(IndexError):
        _ = made[3]
    assert made.texts() == ["a", None, ""]
    assert made.texts("?") == ["a", "?", ""]
    assert made.values(default=0.0) == [{"words": "a"}, 0.0, {"words": ""}]
    empty = batch()
    assert (len(empty), empty.texts(), empty.values(), empty.errors, empty.raise_for_errors()) == (0, [], [], {}, empty)


def test_the_errors_of_a_batch_can_be_caught_by_their_kind() -> None:
    made = batch(answered(0), failed(1), failed(2, NoEndpoint("no route for 'x'")), failed(3))
    with pytest.raises(ExceptionGroup, match="3 of 4 items failed") as caught:
        made.raise_for_errors()
    limited, others = caught.value.split(RateLimited)
    assert isinstance(limited, BatchFailed)
    assert others is not None
    assert (limited.exceptions, others.exceptions) == ((made[1].error, made[3].error), (made[2].error,))
    assert made.errors == {1: made[1].error, 2: made[2].error, 3: made[3].error}


def test_the_error_of_a_batch_is_caught_as_one_of_this_package_and_names_the_first_causes() -> None:
    made = batch(answered(0), *(failed(index, NoEndpoint(f"no route for 'x{index}'\nsecond line")) for index in range(1, 6)))
    for ask in (made.raise_for_errors, made.scores):
        with pytest.raises(QRewardError) as caught:
            ask()
        causes = "; ".join(f"item {index}: NoEndpoint: no route for 'x{index}'" for index in (1, 2, 3))
        assert str(caught.value) == f"5 of 6 items failed: {causes}; and 2 more (5 sub-exceptions)"
        there = pickle.loads(pickle.dumps(caught.value))
        assert (type(there), str(there), len(there.exceptions)) == (BatchFailed, str(caught.value), 5)


def test_a_batch_keeps_everything_between_processes() -> None:
    made = batch(answered(0, "a", (TRIED,)), failed(1))
    there = pickle.loads(pickle.dumps(made))
    assert (there.texts(), there.stats) == (["a", None], made.stats)
    assert [result.attempts for result in there] == [result.attempts for result in made]
    assert (there[0].endpoint, there[0].latency, there[0].queued, there[0].usage) == ("gpu-1", 1.5, 0.25, Usage(3, 4, 7))
    assert str(there.errors[1]) == "gpu-0 has no room"


def test_results_and_statistics_are_printed_with_their_outcome_and_a_line_for_each_endpoint() -> None:
    assert repr(answered(3, trail=(TRIED,))) == "<Result 3 ok endpoint='gpu-1' attempts=2>"
    assert repr(failed(4)) == "<Result 4 RateLimited: gpu-0 has no room endpoint='gpu-0' attempts=1>"
    assert repr(batch(answered(0), failed(1))) == "<BatchResult 2 items, 1 failed>"
    assert repr(BatchResult([], BatchStats(items=3, ok=2, failed=1))) == "<BatchResult 3 items, 1 failed, results not kept>"
    b = EndpointStats(sent=4, answered=2, rejected=1, retried=1, p50=0.25, p95=0.5, prompt_tokens=200, cached_tokens=142)
    table = [
        "endpoint  sent  answered  rejected  retried  hedged  failed     p50     p95",
        "a            1         0         0        0       0       1       -       -",
        "b            4         2         1        1       0       0  250 ms  500 ms",
    ]
    endpoints = {"b": b, "a": EndpointStats(sent=1, failed=1)}
    shares = "prefix cache: 71% of prompt tokens, decided by small 75%, strong 25%"
    stats = BatchStats(3, 2, 1, 3.0, endpoints, 0.5, {"small": 3, "strong": 1})
    assert str(stats).splitlines() == [f"3 items, 2 ok, 1 failed, 3.00 s, $0.5000, {shares}", *table]
    assert str(FleetStats(endpoints)).splitlines() == table
    assert (str(BatchStats()), stats.escalated, BatchStats().escalated) == ("0 items, 0 ok, 0 failed, 0.00 s", 0.25, 0.0)
    both = merged_stats([{"b": b}, {"b": b}])["b"]
    assert (both.sent, both.answered, both.won, both.cached_tokens, both.p50) == (8, 4, 4, 284, None)


def test_an_attempt_right_after_a_failure_is_a_retry_and_one_after_a_429_is_not() -> None:
    def attempts(text: str) -> list[AttemptRecord]:
        kinds = {"r": "overloaded", "f": "transient", "t": "timeout", "c": "cancelled", "k": "ok"}
        return [AttemptRecord("a", kinds[letter.lower()], 0.1, hedge=letter.isupper()) for letter in text]

    cases = {"": 0, "k": 0, "rrk": 0, "fk": 1, "ffk": 2, "rfk": 1, "frk": 1, "frfk": 2, "cK": 0, "fcK": 1, "ck": 0, "tr": 1, "f": 0}
    assert {text: len(list(retries(attempts(text)))) for text in cases} == cases


def test_usages_add_up_where_they_were_reported() -> None:
    assert [added(None, None), added(Usage(1), None), added(None, Usage(1))] == [None, Usage(1), Usage(1)]
    assert added(Usage(1, None, 3), Usage(10, 20, None)) == Usage(11, 20, 3)


class Judged:
    """A value with a reward, as a judge's verdict has."""

    def __init__(self, score: Any) -> None:
        self.score = score


def test_scores_are_the_rewards_as_floats_and_a_failed_item_has_the_default_or_raises_without_one() -> None:
    rewards = [RewardScore(0.25, {"help": 0.25}), Judged(0.75), Judged(1), 1.0]
    scores = batch(*(answered(index, value=value) for index, value in enumerate(rewards))).scores()
    assert [(score, type(score)) for score in scores] == [(0.25, float), (0.75, float), (1.0, float), (1.0, float)]
    made = batch(answered(0, value=0.5), failed(1))
    assert (made.scores(default=None), made.scores(default=-1.0)) == ([0.5, None], [0.5, -1.0])
    with pytest.raises(ExceptionGroup, match="1 of 2 items failed"):
        made.scores()
    for value in ({"words": "yes"}, "0.5", Judged(None), Judged(True)):
        with pytest.raises(TypeError, match=r"scores\(\) needs the results of"):
            batch(answered(value=value)).scores()


def test_stats_and_records_cannot_be_changed_and_an_error_gets_its_trail_where_its_kind_carries_one() -> None:
    for value, name in ((EndpointStats(), "sent"), (BatchStats(), "items"), (TRIED, "latency"), (Usage(), "total_tokens")):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
    limited, unrouted = RateLimited("gpu-0 has no room"), NoEndpoint("no route for 'x'")
    assert with_trail(limited, (TRIED,)) is limited
    assert limited.attempts == (TRIED,)
    assert with_trail(unrouted, (TRIED,)) is unrouted
    assert not hasattr(unrouted, "attempts")
