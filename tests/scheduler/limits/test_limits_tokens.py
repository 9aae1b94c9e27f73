"""Token limits: a guess is reserved at the send, corrected by the answer, and the next guess is better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import Driver

from qreward.scheduler.limits.rate import FIRST_OUTPUT, MINUTE, Gcra, MinuteLimit
from qreward.scheduler.outcome import FailureKind
from qreward.scheduler.task import Task
from qreward.settings.policies import Limits

TPM = 6000.0
PER_SECOND = TPM / 60
Estimate = Callable[[Any], tuple[float, float]]


def driver(estimate: Estimate | None = None, *, reserved: bool = False, tpm: float = TPM) -> Driver:
    """One source with a token limit; a payload is its own (prompt, most output) unless said otherwise."""
    made = Driver(estimate=estimate or (lambda payload: payload))
    made.add("a", Limits(tpm=tpm, tpm_counts="reserved" if reserved else "used"))
    return made


def charged(driver: Driver) -> float:
    """The tokens that are charged for the last minute."""
    tokens = driver["a"].tokens
    assert isinstance(tokens, MinuteLimit)
    return tokens._sum


def answer(driver: Driver, task: Task, prompt: int | None, output: int | None) -> None:
    assert task.attempt is not None
    driver.ok(task.attempt, after=0.0, prompt=prompt, output=output)


def test_the_prompt_and_a_guess_of_the_output_are_reserved() -> None:
    """Payload, what the provider counts, and tokens that are reserved."""
    for payload, reserved, tokens in (
        ((100.0, 0.0), False, 100 + FIRST_OUTPUT),
        ((100.0, 16.0), False, 116),  # it may write less than is guessed
        ((100.0, 4096.0), False, 100 + FIRST_OUTPUT),
        ((100.0, 4096.0), True, 4196),
        (None, False, FIRST_OUTPUT),
    ):
        scene = driver(None if payload else lambda _: (0.0, 0.0), reserved=reserved)
        scene.submit(payload=payload)
        assert charged(scene) == pytest.approx(tokens), (payload, reserved)


def test_an_answer_corrects_the_charge_to_what_was_used_if_it_tells_and_that_is_what_counts() -> None:
    for payload, reserved, used, tokens in (
        ((100.0, 0.0), False, (80, 20), 100),
        ((100.0, 10.0), False, (500, 1500), 2000),
        ((100.0, 400.0), True, (80, 20), 500),
        ((100.0, 10.0), False, (None, None), 110),
        ((100.0, 10.0), False, (80, None), 110),
        ((100.0, 10.0), False, (None, 20), 110),
    ):
        scene = driver(reserved=reserved)
        answer(scene, scene.submit(payload=payload), *used)
        assert charged(scene) == pytest.approx(tokens), (payload, used)


def test_a_failure_and_the_end_of_a_cancelled_attempt_return_the_charge() -> None:
    for kind in (FailureKind.OVERLOADED, FailureKind.REFUSED, FailureKind.TRANSIENT, None):
        scene = driver()
        task = scene.submit(payload=(100.0, 10.0))
        attempt = task.attempt
        assert attempt is not None
        if kind is not None:
            scene.fail(attempt, kind, after=0.0)
        else:
            scene.withdraw(task)
            assert charged(scene) == pytest.approx(110), "it may still be written"
            scene.cancelled(attempt)
        assert charged(scene) == 0.0, kind


def test_guesses_learn_from_answers() -> None:
    """Prompts are twice as long as they look, outputs forty tokens: after some answers the reservation says so."""
    scene = driver(tpm=6e9)
    for _ in range(60):
        answer(scene, scene.submit(payload=(100.0, 0.0)), 200, 40)
    before = charged(scene)
    scene.submit(payload=(100.0, 0.0))
    assert charged(scene) - before == pytest.approx(240, rel=0.05)
    scene = driver(tpm=6e9)
    for output in (40, 140):
        answer(scene, scene.submit(payload=(100.0, 0.0)), 100, output)
    before = charged(scene)
    scene.submit(payload=(100.0, 0.0))
    assert charged(scene) - before == pytest.approx(100 + 40 + 0.1 * 100, rel=0.01), "the last outputs count most"


def test_a_limit_that_is_set_or_taken_away_while_a_request_is_under_way_does_not_count_that() -> None:
    scene = driver()
    task = scene.submit(payload=(100.0, 10.0))
    scene["a"].tokens = None
    answer(scene, task, 80, 20)
    task = scene.submit(payload=(100.0, 10.0))
    limit = scene["a"].tokens = Gcra(PER_SECOND)
    limit.take(scene.now, 1.0)
    before = limit.ready_at
    answer(scene, task, 80, 20)
    assert limit.ready_at == before


def test_a_request_larger_than_the_limit_is_let_through_and_small_ones_wait_until_it_no_longer_counts() -> None:
    scene = driver()
    scene.submit(payload=(1000.0, 1.0))
    large = scene.submit(payload=(50_000.0, 1.0))
    small = [scene.submit(payload=(1.0, 1.0), timeout=100.0) for _ in range(20)]
    assert scene.where(large) == "a"
    scene.until(MINUTE - 1)
    assert not any(scene.where(task) for task in small)
    scene.until(MINUTE + 1)
    assert all(scene.where(task) for task in small)


def test_without_a_token_limit_no_estimate_is_made() -> None:
    def never(payload: Any) -> tuple[float, float]:
        raise AssertionError(f"asked for {payload}")

    scene = Driver({"a": 4}, estimate=never)
    answer(scene, scene.submit(payload=(1.0, 1.0)), 1, 1)


@given(st.lists(st.tuples(st.floats(1, 2000), st.floats(0.1, 1.0)), min_size=2, max_size=40))
def test_as_long_as_guesses_are_not_too_low_the_limit_holds_over_what_is_used(requests: list[tuple[float, float]]) -> None:
    """Each prompt is guessed exactly or too long; all are submitted at once and answered in order."""
    scene = driver()
    for prompt, _ in requests:
        scene.submit(payload=(prompt, 1.0))
    used, largest = 0.0, max(prompt for prompt, _ in requests) + 1
    for prompt, share in requests:
        while not scene.watch.live:
            wake = scene.scheduler.next_wake()
            assert wake is not None
            scene.until(wake)
        attempt = next(iter(scene.watch.live))
        used += int(prompt * share) + 1
        minutes = scene.now // 60 + 1
        assert used <= minutes * (TPM + largest + 2 * len(requests))
        answer(scene, attempt.task, int(prompt * share), 1)
    assert len(scene.watch.finished) == len(requests)
