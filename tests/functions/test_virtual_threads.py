"""Virtual time for blocking callers: hours pass at once and in order, one thread at a time, and nothing hangs unseen."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue

import pytest
from virtual_threads import VirtualThreads

from qreward import schedule
from qreward.testing import Deadlock


def test_threads_wake_at_their_times_and_at_one_time_in_the_order_in_which_they_began_to_wait() -> None:
    seen: list[tuple[str, float]] = []
    with VirtualThreads() as threads:

        def sleeper(name: str, *seconds: float) -> None:
            for each in seconds:
                threads.sleep(each)
            seen.append((name, threads.now()))

        plans = {"day": (86_400.0,), "first": (3.0,), "second": (3.0,), "late": (1.0, 2.0), "hour": (3600.0,)}
        for name, plan in plans.items():
            threads.spawn(partial(sleeper, name, *plan))
    assert [(name, round(at, 3)) for name, at in seen] == [("first", 3), ("second", 3), ("late", 3), ("hour", 3600), ("day", 86_400)]


def test_a_thread_is_joined_for_what_it_returned_or_raised() -> None:
    def fails() -> None:
        raise KeyError("mine")

    with VirtualThreads() as threads:
        assert threads.spawn(lambda: 7).join() == 7
        with pytest.raises(KeyError, match="mine"):
            threads.spawn(fails).join()


def test_waiting_for_what_cannot_happen_is_a_deadlock_that_names_who_waits_where() -> None:
    def test() -> None:
        with VirtualThreads() as threads:
            threads.spawn(lambda: threads.take(SimpleQueue()), "other")
            threads.take(SimpleQueue())

    with pytest.raises(Deadlock, match=r"MainThread at .*test_virtual_threads.py:\d+; other at "):
        test()


def test_no_more_jobs_run_than_are_allowed_and_the_block_ends_when_all_have_ended() -> None:
    ended: list[float] = []

    def job() -> None:
        threads.sleep(100)
        ended.append(threads.now())

    with VirtualThreads(most=2) as threads:
        assert [threads.run(job) for _ in range(3)] == [True, True, False]
        threads.sleep(1)
    assert [round(at) for at in ended] == [100, 100]


def test_an_error_of_the_main_thread_comes_out_and_ends_the_others() -> None:
    went_on: list[str] = []

    def test() -> None:
        with VirtualThreads() as threads:
            threads.spawn(lambda: threads.sleep(1e6) or went_on.append("sleeper"))  # type: ignore[func-returns-value]
            threads.sleep(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        test()
    assert went_on == []


def test_calls_follow_this_clock() -> None:
    with VirtualThreads() as threads:

        @schedule(limit_size=1, limit_window=3600)
        def score() -> float:
            return threads.now()

        assert [round(score()) for _ in range(3)] == [0, 3600, 7200]
