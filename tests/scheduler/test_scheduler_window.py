"""A fixed window holds what the operator said, less for a while where the source holds less."""

from __future__ import annotations

from qreward.scheduler.limits.concurrency import PATIENCE, FixedLimit


def answers(window: FixedLimit, count: int) -> None:
    for _ in range(count):
        window.ok(1.0, 0.0, None, 1)


def test_a_source_that_turns_away_what_is_too_much_is_full_not_gone() -> None:
    window = FixedLimit(64)
    assert [window.rejected(0.1, 0.0, None, others) for others in (63, 50, 40)] == [False, False, False]
    assert window.limit == 40, "what it still holds"


def test_the_limit_comes_back_by_doubling_and_never_beyond_what_was_set() -> None:
    window = FixedLimit(100)
    window.rejected(0.1, 0.0, None, 30)
    seen = []
    for _ in range(3):
        answers(window, PATIENCE)
        seen.append(window.limit)
    assert seen == [60, 100, 100]


def test_where_little_was_held_more_is_offered_sooner() -> None:
    window = FixedLimit(64)
    window.rejected(0.1, 0.0, None, 2)
    answers(window, 7)
    assert window.limit == 2
    answers(window, 1)
    assert window.limit == 4


def test_a_source_that_turns_everything_away_is_gone_not_full() -> None:
    window = FixedLimit(8)
    assert [window.rejected(0.1, 0.0, None, others) for others in (2, 1, 0)] == [False, False, True]
    assert window.limit == 8, "what it holds is not known"
    assert not window.rejected(0.2, 0.05, None, 3)
    assert window.limit == 8, "sent before it was left alone"


def test_a_lone_reject_amid_good_answers_is_noise() -> None:
    window = FixedLimit(8)
    answers(window, 4)
    assert not window.rejected(1.0, 0.5, None, 3)
    assert window.limit == 8
    assert not window.rejected(1.1, 0.6, None, 3)
    assert window.limit == 3, "a second one is not alone"


def test_a_hint_or_nothing_left_in_flight_means_that_the_source_wants_to_be_left_alone() -> None:
    for hint, others in ((None, 0), (2.0, 5), (2.0, 0)):
        window = FixedLimit(8)
        answers(window, 8)
        assert window.rejected(1.0, 0.5, hint, others), (hint, others)
        assert window.limit == 8
