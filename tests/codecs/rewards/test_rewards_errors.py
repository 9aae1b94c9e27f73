"""Errors of reward servers, in their own forms and over real HTTP: what they mean, and what is done about a list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reward_tools import ask, call, codec, failed
from shared_tools import each, run

from qreward.codecs.base import EmbeddedError, Reply
from qreward.codecs.rewards.base import Operation, splits
from qreward.codecs.rewards.registry import EMBED, RERANK, SCORE
from qreward.errors import AuthenticationFailed, InvalidResponse, RateLimited, RequestError
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.settings.policies import Endpoint
from qreward.testing import FakeEndpoint, FakeFleet, Faults
from qreward.testing.rewards import NAN, REFUSED, Scoring, score_of
from qreward.transport.backend import HttpBackend
from qreward.transport.error_mapping import failure_from_body
from qreward.transport.redaction import Secrets

K = FailureKind
LONG = "x" * 400


def fake(kind: Any, **settings: Any) -> FakeEndpoint:
    return FakeEndpoint("gpu-0", kind=kind, scoring=Scoring(max_tokens=50, max_items=settings.pop("max_items", None)), **settings)


ONE_BAD: list[tuple[str, str, FailureKind, int, bool]] = [
    # kind, bad item, what it comes to, status, whether the list is halved
    ("vllm", LONG, K.UNSUITABLE, 400, True),
    ("vllm", REFUSED, K.REFUSED, 400, True),
    ("sglang", LONG, K.UNSUITABLE, 400, True),
    ("sglang", REFUSED, K.REFUSED, 400, True),
    ("tei", LONG, K.UNSUITABLE, 422, True),
    ("tei", REFUSED, K.REFUSED, 422, True),
    ("tei", NAN, K.TRANSIENT, 424, True),
    ("openrlhf", REFUSED, K.REFUSED, 422, True),
    ("openrlhf", NAN, K.TRANSIENT, 500, False),
]


@each("kind, bad, expected, status, halved", ONE_BAD)
def test_one_bad_item_fails_its_whole_list(kind: str, bad: str, expected: FailureKind, status: int, halved: bool) -> None:
    failure = failed(fake(kind), call(SCORE, ["a", bad, "b"]))
    assert isinstance(failure.error, RequestError)
    assert (failure.kind, failure.error.status_code) == (expected, status)
    assert not failure.misconfigured
    assert splits(failure, 3) is halved


@each("kind", ["vllm", "sglang"])
def test_a_score_that_is_null_fails_its_item_alone(kind: str) -> None:
    outcome = run(ask(fake(kind), call(SCORE, ["a", NAN, "b"])))
    assert isinstance(outcome, Answer)
    first, bad, last = outcome.value.items
    assert (first, last) == (pytest.approx(score_of("a")), pytest.approx(score_of("b")))
    assert isinstance(bad, InvalidResponse)


@each("kind", ["vllm", "sglang", "nim"])
def test_a_score_that_is_null_fails_an_item_that_is_alone_as_a_broken_answer(kind: str) -> None:
    failure = failed(fake(kind), call(SCORE, [("q", NAN)] if kind == "nim" else [NAN]))
    assert (failure.kind, type(failure.error)) == (K.TRANSIENT, InvalidResponse)


@each("kind, status", [("tei", 429), ("sglang", 503), ("vllm", 503)])
@each("operation", [SCORE, RERANK, EMBED])
async def test_an_overload_is_never_halved_whatever_the_route_says_it_in(kind: Any, status: int, operation: Operation) -> None:
    full = FakeEndpoint("gpu-0", kind=kind, rpm=1, burst=1, reject_status=status)
    async with FakeFleet([full]) as fleet:
        endpoint, backend = Endpoint(fleet.urls["gpu-0"], kind=kind, proxy=""), HttpBackend()
        await backend.send(endpoint, call(operation, ["a"], query="q"))
        outcome = await backend.send(endpoint, call(operation, ["a", "b"], query="q"))
        await backend.aclose()
    assert isinstance(outcome, Failure)
    assert (outcome.kind, type(outcome.error)) == (K.OVERLOADED, RateLimited)
    assert not splits(outcome, 2)


def test_a_list_of_more_items_than_tei_has_permits_is_overload_for_ever() -> None:
    failure = failed(FakeEndpoint("gpu-0", kind="tei", max_concurrency=4), call(SCORE, list("abcde")))
    assert failure.kind is K.OVERLOADED


@each("kind", ["vllm", "sglang", "tei", "openrlhf", "nim"])
def test_a_wrong_key_is_understood_from_every_kind_of_server(kind: str) -> None:
    failure = failed(FakeEndpoint("gpu-0", kind=kind, api_key="sk-right"), call(SCORE, [("q", "a")] if kind == "nim" else ["a", "b"][:1]))
    assert (failure.kind, type(failure.error), failure.misconfigured) == (K.UNSUITABLE, AuthenticationFailed, True)


async def test_the_key_of_an_endpoint_goes_to_its_own_routes_too() -> None:
    async with FakeFleet([FakeEndpoint("gpu-0", kind="tei", api_key="sk-right")]) as fleet:
        backend = HttpBackend()
        endpoint = Endpoint(fleet.urls["gpu-0"], kind="tei", api_key="sk-right", proxy="")
        assert isinstance(await backend.send(endpoint, call(SCORE, ["a"])), Answer)
        await backend.aclose()


@each("kind", ["vllm", "sglang", "tei", "openrlhf", "nim"])
@each(
    "fault, expected",
    [
        ("error_503", K.OVERLOADED),
        ("error_500", K.TRANSIENT),
        ("truncated", K.TRANSIENT),
        ("malformed", K.TRANSIENT),
        ("error_in_200", K.TRANSIENT),
    ],
)
def test_faults_are_understood_from_every_kind_of_server(kind: str, fault: str, expected: FailureKind) -> None:
    faults: dict[str, Any] = {fault: 1.0}
    faulty = FakeEndpoint("gpu-0", kind=kind, faults=Faults(**faults))
    assert failed(faulty, call(SCORE, [("q", "a")] if kind == "nim" else ["a"])).kind is expected


EMBEDDED = [
    ({"error": "Model is overloaded", "error_type": "Overloaded"}, K.OVERLOADED),
    ({"error": "x", "error_type": "Validation"}, K.REFUSED),
    ({"object": "error", "message": "The request queue is full.", "type": "503", "code": 503}, K.OVERLOADED),
    ({"object": "error", "message": "x", "type": "BadRequest", "code": 400}, K.REFUSED),
    ({"object": "error", "message": "x", "code": 400}, K.REFUSED),
    ({"error": {"message": "x", "code": 400}}, K.REFUSED),
    ({"message": "x", "code": 429, "type": "Overloaded"}, K.OVERLOADED),
    ({"error": "scorer crashed", "reward": 0.0, "rewards": [0.0]}, K.TRANSIENT),
]


@each("document, expected", EMBEDDED)
@each("kind", ["vllm", "sglang", "tei", "openrlhf", "nim"])
def test_an_error_with_status_200_is_an_error_and_its_zero_is_no_reward(kind: str, document: Any, expected: FailureKind) -> None:
    asked = call(SCORE, ["a"] if kind != "nim" else [("q", "a")])
    with pytest.raises(EmbeddedError) as caught:
        codec(kind, asked).decode(json.dumps(document).encode(), asked)
    failure = failure_from_body(caught.value, Reply(200, {}, b""), "gpu-0", "m", Secrets(), 0.0)
    assert failure.kind is expected
