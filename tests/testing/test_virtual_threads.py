"""Virtual time for threads: hours pass at once and in order, one thread at a time, the same in each run; nothing hangs unseen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import virtual_threads
from virtual_threads import VirtualThreads, run_in_virtual_threads

from qreward.engine.threads import CLOCK, REAL_TIME
from qreward.testing.virtual_time import Deadlock


def held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def nothing_after(_: object) -> None:
    """What a job returns that has done its work."""


# time


def test_sleepers_wake_at_once_by_their_times_and_at_one_time_in_the_order_in_which_they_began_to_wait() -> None:
    def main(threads: VirtualThreads) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        def sleeper(name: str, *seconds: float) -> None:
            for each in seconds:
                threads.sleep(each)
            seen.append((name, threads.now()))

        plans = {"day": (86_400.0,), "late": (1.0, 2.0), "first": (3.0,), "second": (3.0,), "idle": (0.0, 3.0), "hour": (3600.0,)}
        sleepers = [threads.spawn(lambda name=name, plan=plan: sleeper(name, *plan)) for name, plan in plans.items()]  # type: ignore[misc]
        sleeper("main", 3.0)
        for each in sleepers:
            each.join()
        return seen

    at_three = [(name, 3.0) for name in ("main", "first", "second", "idle", "late")]
    assert run_in_virtual_threads(main) == [*at_three, ("hour", 3600.0), ("day", 86_400.0)]


def test_a_remainder_too_small_for_the_clock_does_not_stop_it() -> None:
    def main(threads: VirtualThreads) -> bool:
        threads.sleep(1e9)
        before = threads.now()
        assert not threads.wait(held(), 1e-12)
        return threads.now() > before

    assert run_in_virtual_threads(main)


# waiting and waking


def test_a_wait_ends_when_it_is_woken_or_when_its_time_has_come() -> None:
    def main(threads: VirtualThreads) -> list[tuple[bool, float]]:
        lock, seen = held(), []

        def after(seconds: float, action: Callable[[], object]) -> None:
            threads.spawn(lambda: threads.sleep(seconds) or action())  # type: ignore[func-returns-value]

        def wait(timeout: float | None) -> None:
            seen.append((threads.wait(lock, timeout), threads.now()))

        threads.wake(lock)
        wait(None)  # it was woken before
        threads.spawn(lambda: threads.wake(lock))
        wait(0)  # others have their turn, and no time passes
        wait(-1)
        after(2, lambda: threads.wake(lock))
        for timeout in (1, 5, 5):
            wait(timeout)
        after(2, lambda: threads.wake(lock))
        wait(float("inf"))
        threads.spawn(lock.release)  # by itself: nobody is woken
        wait(3)
        return seen

    now, later = [(True, 0.0), (True, 0.0), (False, 0.0)], [(False, 1.0), (True, 2.0), (False, 7.0), (True, 9.0), (True, 12.0)]
    assert run_in_virtual_threads(main) == now + later


def test_a_time_that_a_thread_waited_for_means_nothing_when_the_thread_has_ended() -> None:
    with VirtualThreads(patience=5) as threads:
        lock = held()
        threads.run(lambda: nothing_after(threads.wait(lock, 5)))
        threads.sleep(1)
        threads.wake(lock)
        threads.sleep(10)
        assert threads.now() == 11.0


def test_who_is_woken_but_comes_too_late_goes_on_waiting() -> None:
    def main(threads: VirtualThreads) -> tuple[bool, float]:
        lock = held()
        waiter = threads.spawn(lambda: (threads.wait(lock, 5), threads.now()))
        other = threads.spawn(lambda: threads.wait(lock, 9))
        threads.sleep(1)
        for _ in range(2):  # both are woken, and both too late
            threads.wake(lock)
            assert threads.wait(lock, 0)
        found = waiter.join()
        threads.wake(lock)
        assert other.join()
        return found

    assert run_in_virtual_threads(main) == (False, 5.0)


# jobs


def test_no_more_jobs_are_begun_than_are_allowed_and_a_report_finds_its_worker_free() -> None:
    with VirtualThreads(most=1) as threads:
        order: list[Any] = []

        def job(number: int) -> Callable[[], None]:
            threads.sleep(1)
            order.append(number)
            return lambda: order.append(number == 2 or threads.run(lambda: job(number + 1)))

        assert [threads.run(lambda: job(0)), threads.run(print)] == [True, False]
        threads.sleep(2.5)
        assert order == [0, True, 1, True]
    assert order == [0, True, 1, True, 2, True], "what was under way went on to its end"
    assert threads.now() == 3.0


def test_what_a_job_raises_against_its_promise_is_raised_where_the_main_thread_waits() -> None:
    def main(threads: VirtualThreads, waits: bool) -> None:
        def breaks() -> None:
            threads.sleep(1)
            raise KeyError("promised not to")

        threads.run(breaks)
        if waits:
            threads.wait(held(), None)

    for waits in (True, False):
        with pytest.raises(KeyError, match="promised not to"):
            run_in_virtual_threads(lambda threads: main(threads, waits))  # noqa: B023


# threads of the test's own


def test_a_spawned_thread_is_joined_for_what_it_returned_or_raised_by_as_many_as_like() -> None:
    def main(threads: VirtualThreads) -> list[Any]:
        def breaks() -> None:
            threads.sleep(2)
            raise KeyError("mine")

        fine, broken = threads.spawn(lambda: threads.sleep(1) or "value", "fine"), threads.spawn(breaks)  # type: ignore[func-returns-value]
        other = threads.spawn(fine.join)
        with pytest.raises(KeyError, match="mine"):
            broken.join()
        return [fine.join(), other.join(), fine.join(), threads.now()]

    assert run_in_virtual_threads(main) == ["value", "value", "value", 2.0]


def test_a_function_returns_its_value_and_raises_its_error_or_that_of_a_thread_that_nobody_joined() -> None:
    assert run_in_virtual_threads(lambda threads: threads.now()) == 0.0
    with pytest.raises(KeyError, match="mine"):
        run_in_virtual_threads(lambda threads: dict[str, int]()["mine"])
    with pytest.raises(KeyError, match="mine"):
        run_in_virtual_threads(lambda threads: threads.spawn(lambda: dict[str, int]()["mine"]))


# what would hang


def test_waiting_for_what_cannot_happen_is_a_deadlock_that_names_who_waits_where() -> None:
    def main(threads: VirtualThreads) -> None:
        threads.spawn(lambda: threads.wait(held(), None), "caller")
        threads.run(lambda: nothing_after(threads.wait(held(), float("inf"))))
        threads.sleep(1)
        threads.wait(held(), None)

    with pytest.raises(Deadlock, match=r"3 threads wait: main at .*test_virtual_threads\.py:\d+ .*main\); caller at .*; worker-1 at .*"):
        run_in_virtual_threads(main)
    assert not [thread.name for thread in threading.enumerate() if thread.name in ("caller", "worker-1")]


def test_a_deadlock_names_the_error_of_a_thread_that_nobody_joined_and_the_main_thread_may_go_on() -> None:
    with pytest.raises(KeyError, match="mine"), VirtualThreads() as threads:  # noqa: PT012 - its end raises
        lock = held()
        waiter = threads.spawn(lambda: threads.wait(lock, None))
        threads.spawn(lambda: dict[str, int]()["mine"])
        with pytest.raises(Deadlock) as caught:
            threads.wait(held(), None)
        assert isinstance(caught.value.__cause__, KeyError)
        threads.wake(lock)
        assert waiter.join()


def test_a_thread_that_waits_for_ever_is_left_behind_and_is_ended() -> None:
    ended: list[str] = []

    def main(threads: VirtualThreads) -> None:
        def waiter() -> None:
            try:
                threads.wait(held(), None)
            except Exception:
                ended.append("caught")
            finally:
                ended.append("closed")
                threads.sleep(1)

        threads.spawn(waiter, "forgotten")

    with pytest.raises(AssertionError, match=r"left behind: .*forgotten at .*waiter\)"):
        run_in_virtual_threads(main)
    assert ended == ["closed"]
    assert "forgotten" not in {thread.name for thread in threading.enumerate()}


def test_threads_that_go_on_for_ever_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_threads, "LINGERING", 100)

    def main(threads: VirtualThreads, seconds: float) -> None:
        def ticks() -> None:
            while True:
                threads.sleep(seconds)

        threads.spawn(ticks, "ticker")

    for seconds in (0.0, 60.0):
        with pytest.raises(AssertionError, match=r"left behind: threads run forever.*ticker at"):
            run_in_virtual_threads(lambda threads: main(threads, seconds))  # noqa: B023


def test_asking_again_and_again_at_one_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_threads, "STANDSTILL", 100)

    def main(threads: VirtualThreads) -> None:
        threads.run(lambda: threads.sleep(7))
        threads.sleep(5)
        while threads.now() < 6:
            threads.wait(held(), 0)

    with pytest.raises(RuntimeError, match=r"forever, at 5 seconds; 2 threads wait: main at .*test_virtual_threads"):
        run_in_virtual_threads(main)


def test_a_thread_that_blocks_in_real_time_is_named() -> None:
    real, problem = held(), r"'worker-1' has run for 0.01 seconds of real time without waiting at .*test_virtual_threads"
    with pytest.raises(RuntimeError, match=problem), VirtualThreads(patience=0.01) as threads:  # noqa: PT012
        threads.run(lambda: nothing_after(real.acquire(timeout=30)))
        threads.sleep(1)
    real.release()


def test_a_thread_that_takes_no_part_is_told_so() -> None:
    with VirtualThreads() as threads:
        told: list[str] = []

        def stranger() -> None:
            for call in (lambda: threads.sleep(1), lambda: threads.wake(held()), lambda: threads.run(print)):
                try:
                    call()
                except AssertionError as error:
                    told.append(str(error))

        thread = threading.Thread(target=stranger, name="stranger")
        thread.start()
        thread.join(30)
    assert len(told) == 3
    assert all("'stranger' does not take part" in each for each in told)


def test_when_it_is_over_nothing_can_be_begun() -> None:
    with VirtualThreads() as threads:
        pass
    assert not threads.run(print)
    with pytest.raises(RuntimeError, match="is over"):
        threads.spawn(print)


def test_an_error_of_the_main_thread_ends_all_others_and_comes_out() -> None:
    went_on: list[str] = []

    def main(threads: VirtualThreads) -> None:
        threads.spawn(lambda: threads.sleep(1e6) or went_on.append("sleeper"), "sleeper")  # type: ignore[func-returns-value]
        threads.spawn(lambda: threads.wait(held(), None) and went_on.append("waiter"), "waiter")  # type: ignore[func-returns-value]
        threads.sleep(1)
        threads.spawn(lambda: went_on.append("never begun"), "never begun")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_in_virtual_threads(main)
    assert went_on == []
    assert not {"sleeper", "waiter", "never begun"} & {thread.name for thread in threading.enumerate()}


# decorated functions


def test_decorated_functions_go_by_it_until_the_last_thread_has_ended() -> None:
    seen: list[float] = []

    def main(threads: VirtualThreads) -> None:
        threads.sleep(5)
        seen.append(CLOCK.now())
        threads.run(lambda: threads.sleep(10) or seen.append(CLOCK.now()))  # type: ignore[func-returns-value]

    run_in_virtual_threads(main)
    assert seen == [5.0, 15.0]
    assert CLOCK.time is REAL_TIME
