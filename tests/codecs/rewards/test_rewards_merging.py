"""Which items may share a request, how its usage is shared out, and when a refused list is sent again in halves."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_tools import call, codec, written
from shared_tools import each

from qreward.codecs.rewards.base import (
    BAD_ITEM_STATUSES,
    ItemAnswer,
    ListAnswer,
    MergeLimits,
    Operation,
    Pair,
    RewardScore,
    share,
    splits,
    tokens_in,
)
from qreward.codecs.rewards.kinds import CLASSIFY, COMPLETE, EMBED, RERANK, SCORE, codec_of
from qreward.errors import BadRequest, ConfigError, InvalidResponse, RequestError
from qreward.results import Usage
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.scoring.merge_spec import MergeSpec
from qreward.settings.policies import RewardModel

K = FailureKind


def key(item: Any, operation: Operation = SCORE, *, model: str = "m", headers: dict[str, str] | None = None, **params: Any) -> Any:
    spec = MergeSpec(operation, model, {}, headers, params)
    return spec.key(spec.call(item))


def test_calls_may_share_a_request_if_all_but_their_items_is_equal() -> None:
    assert key("a") == key("b")
    assert key("a", priority=0, user="x") == key("b", user="x", priority=0), "the order of parameters means nothing"
    assert key("a", headers={"X-A": "1"}) == key("b", headers={"x-a": "1"})
    assert key(("q", "a")) == key(["q", "a"]) == key(Pair("p", "b", label=[1]))
    assert key("a", RERANK, query="q") == key("b", RERANK, query="q")
    assert key("a", RERANK, query="q") != key("a", RERANK, query="r")
    assert key("a", EMBED) != key([1], EMBED)


@each(
    "other",
    [
        key("a", model="n"),
        key("a", priority=1),
        key("a", headers={"X-A": "1"}),
        key(("q", "a")),
        key([{"role": "user", "content": "a"}]),
        key("a", CLASSIFY),
    ],
)
def test_calls_that_differ_in_anything_else_go_apart(other: Any) -> None:
    assert key("a") != other


@each(
    "limits, items, count",
    [
        (MergeLimits(), ["a"] * 5000, 5000),
        (MergeLimits(items=2), ["a"] * 3, 2),
        (MergeLimits(tokens=10), [[1] * 4, [1] * 6, [1]], 2),
        (MergeLimits(tokens=10), [[1] * 11, [1]], 1),
        (MergeLimits(bytes=600), ["a" * 60, "b" * 60], 1),
        (MergeLimits(items=2048, tokens=300_000), ["x" * 35_000] * 40, 30),
        (MergeLimits(items=3), [], 0),
    ],
)
def test_as_many_items_go_into_a_request_as_its_limits_hold_but_at_least_one(limits: MergeLimits, items: list[Any], count: int) -> None:
    assert limits.fitting(items) == count


@given(st.lists(st.text(max_size=40) | st.lists(st.integers(0, 99999), min_size=1, max_size=20), min_size=1, max_size=30))
def test_a_body_is_never_larger_than_was_reckoned(items: list[Any]) -> None:
    texts = [item for item in items if isinstance(item, str) and item.isascii() and item.isprintable() and not set(item) & set('"\\')]
    tokens = [item for item in items if isinstance(item, list)]
    for alike in (texts, tokens):
        limits = MergeLimits(bytes=700)
        count = limits.fitting(alike)
        if count > 1:
            asked = call(EMBED, [item or "x" for item in alike[:count]])
            assert len(codec("openai", asked).encode(asked, "m")) <= 700


def test_limits_can_only_be_made_tighter_by_a_number_of_items() -> None:
    assert MergeLimits(items=32, bytes=9).with_items(8) == MergeLimits(items=8, bytes=9)
    assert MergeLimits(items=32).with_items(64) == MergeLimits(items=32)
    assert MergeLimits(items=32).with_items(None) == MergeLimits(items=32)
    assert MergeLimits().with_items(0) == MergeLimits(items=1)


def failure(kind: FailureKind, status: int | None = None, misconfigured: bool = False) -> Failure:
    return Failure(kind, RequestError("x", status_code=status), misconfigured=misconfigured)


@each(
    "failed, expected",
    [
        (failure(K.REFUSED, 400), True),
        (failure(K.REFUSED, 413), True),
        (failure(K.REFUSED, 422), True),
        (failure(K.TRANSIENT, 424), True),
        (failure(K.UNSUITABLE, 400), True),
        (failure(K.REFUSED, 200), True),
        (failure(K.UNSUITABLE, 401, misconfigured=True), False),
        (failure(K.UNSUITABLE, 404, misconfigured=True), False),
        (failure(K.OVERLOADED, 400), False),
        (failure(K.OVERLOADED, 429), False),
        (failure(K.OVERLOADED, 503), False),
        (failure(K.QUOTA, 400), False),
        (failure(K.TRANSIENT, 500), False),
        (failure(K.TIMEOUT), False),
        (failure(K.UNREACHABLE), False),
        (failure(K.UNSENDABLE), False),
        (Failure(K.UNSUITABLE, ConfigError("x"), misconfigured=True), False),
        (Failure(K.UNSUITABLE, InvalidResponse("the server ignores n", status_code=200)), False),
    ],
)
def test_a_list_is_halved_if_one_item_may_be_at_fault_and_never_for_an_overload(failed: Failure, expected: bool) -> None:
    assert splits(failed, 2) is expected
    assert splits(failed, 1) is False
    assert frozenset({400, 413, 422, 424}) == BAD_ITEM_STATUSES


@given(st.integers(0, 10**9), st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_shares_add_up_to_the_whole_and_go_by_size(total: int, sizes: list[float]) -> None:
    parts = share(total, sizes)
    assert sum(part for part in parts if part is not None) == total
    whole = sum(sizes)
    for part, size in zip(parts, sizes, strict=True):
        assert part is not None
        assert part >= 0
        exact = total * size / whole if whole else total / len(sizes)
        assert abs(part - exact) <= 1 + 1e-6 * total
    for no_count in (None, -5, 10**400):
        assert share(no_count, sizes) == [None] * len(sizes)


def test_the_usage_of_one_item_is_exact_that_of_several_is_an_estimate_and_a_failed_item_keeps_its_place_and_its_error() -> None:
    used, error = Usage(10, 4, 14), InvalidResponse("x")
    (alone,) = ListAnswer(["v"], used, None, [3.0]).shares()
    assert isinstance(alone, ItemAnswer)
    assert (alone.usage, alone.estimated) == (used, False)
    answer = ListAnswer(["v", error, 1.5], used, None, [1.0, 1.0, 3.0], [3.0, 0.0, 1.0])
    first, bad, last = answer.shares()
    assert bad is error
    assert isinstance(first, ItemAnswer)
    assert isinstance(last, ItemAnswer)
    assert (first.usage, first.estimated, last.usage) == (Usage(2, 3, 5), True, Usage(6, 1, 7))
    assert (last.build(), last.text()) == (1.5, "")
    with pytest.raises(InvalidResponse):
        answer.build()
    unused = ListAnswer([1.5, 2.5], None, None, [1.0, 1.0])
    assert [item.usage for item in unused.shares()] == [None, None]  # type: ignore[union-attr]
    assert unused.build() == [1.5, 2.5]


def test_a_score_is_a_float_that_survives_copies() -> None:
    score = RewardScore(1.25, {"helpfulness": 1.25})
    for same in (pickle.loads(pickle.dumps(score)), copy.deepcopy(score), copy.copy(score)):
        assert (type(same), same, same.attributes) == (RewardScore, 1.25, {"helpfulness": 1.25})
    assert (score + 1, repr(score), RewardScore(2).attributes) == (2.25, "1.25", {})


@each(
    "operation, given, message",
    [
        (SCORE, 7, "an item to score must be .* not a int"),
        (SCORE, ("q", 7), "the response is a int"),
        (SCORE, ("a", "b", "c"), "a tuple of 3"),
        (SCORE, Pair("q", None), "the response is None"),  # type: ignore[arg-type]
        (SCORE, {"prompt": "q"}, "'prompt' and 'response'"),
        (SCORE, [], "messages is empty"),
        (SCORE, {"messages": "x"}, "messages is a text"),
        *((EMBED, wrong, "input is None|must be a text") for wrong in ("", [], [1, "a"], [True], None)),
    ],
)
def test_a_wrong_item_is_refused_before_anything_is_sent(operation: Operation, given: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        operation.item(given)


def test_a_number_of_choices_that_cannot_be_counted_is_refused() -> None:
    for n in (0, -1, 1.5, "2", True):
        with pytest.raises(BadRequest, match="n must be"):
            written("openai", call(COMPLETE, ["a"], n=n))
    assert written("openai", call(COMPLETE, ["a"], n=1))["n"] == 1


def test_tokens_are_estimated_before_a_server_is_known() -> None:
    assert SCORE.estimate_tokens(call(SCORE, ["x" * 35, ("x" * 35, "y" * 35)])) == (pytest.approx(30.0), 0.0)
    assert EMBED.estimate_tokens(call(EMBED, [[1, 2, 3]])) == (3.0, 0.0)
    assert COMPLETE.estimate_tokens(call(COMPLETE, ["x" * 35, "y" * 35], max_tokens=8, n=2)) == (pytest.approx(20.0), 32.0)
    chat = [{"role": "user", "content": "x" * 35}]
    assert tokens_in(SCORE.item(chat)) == pytest.approx(10.0)


@each(
    "wrong",
    [{"template": "{prompt}"}, {"template": "x"}, {"labels": "good"}, {"labels": ["a", "a"]}, {"label": True}, {"route": "predict"}],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"RewardModel: {next(iter(wrong))}"):
        RewardModel(**wrong)
    assert RewardModel(template="<{prompt}|{response}>").render("{response}", "{prompt} {x}") == "<{response}|{prompt} {x}>"


@each(
    "kind, route, said",
    [
        ("tei", "pooling", "'tei' has no route 'pooling' .* set it to 'classify'"),
        ("sglang", "score", "'sglang' has no route 'score' .* set it to 'classify' or 'embeddings'"),
        ("openrlhf", "classify", "'openrlhf' has no route 'classify' .* leave it out"),
        ("openai", None, r"'openai' needs a route to score; set RewardModel\(route='embeddings'\), or the kind of the server"),
    ],
)
def test_a_route_that_the_server_has_not_is_refused_with_those_it_has(kind: str, route: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        codec_of(kind, SCORE, RewardModel(route=route))
