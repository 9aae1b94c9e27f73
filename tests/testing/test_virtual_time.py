"""The virtual clock: hours pass at once and in order, nothing spins, nothing waits for ever, nothing is left behind unseen."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qreward.testing.virtual_time import Deadlock, VirtualTimeLoop, run_in_virtual_time


def test_hours_of_sleep_take_no_time_and_end_in_the_order_of_their_timers() -> None:
    async def main() -> list[tuple[str, int]]:
        seen = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, round(asyncio.get_running_loop().time())))

        await asyncio.gather(sleeper("day", 86_400 * 3), sleeper("minute", 60), sleeper("hour", 3600))
        return seen

    assert run_in_virtual_time(main()) == [("minute", 60), ("hour", 3600), ("day", 259_200)]


def test_a_remainder_too_small_for_a_float_does_not_stop_the_clock() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1e9)  # a float has steps of 1.2e-7 here, more than a turn of the loop
        due, turns = loop.time() + 1e-6, 0
        while loop.time() < due:  # as a timer does that is always set for the remainder
            turns += 1
            await asyncio.sleep(min(1e-12, due - loop.time()))
        return turns

    assert run_in_virtual_time(main()) < 100


def test_waiting_for_what_cannot_happen_is_a_deadlock_that_names_who_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"no timer is set.*waits_for_ever.*test_virtual_time\.py:\d+"):
        run_in_virtual_time(waits_for_ever())


def test_a_task_that_is_left_behind_is_an_error() -> None:
    kept = []

    async def main() -> None:
        kept.append(asyncio.ensure_future(asyncio.sleep(5)))

    with pytest.raises(AssertionError, match=r"left behind: .*sleep"):
        run_in_virtual_time(main())


def test_a_timer_that_is_left_behind_is_an_error_unless_it_was_cancelled() -> None:
    async def leaves(*, cancelled: bool) -> None:
        timer = asyncio.get_running_loop().call_later(5, print)
        if cancelled:
            timer.cancel()

    run_in_virtual_time(leaves(cancelled=True))
    with pytest.raises(AssertionError, match="1 tasks and timers are left behind: <TimerHandle"):
        run_in_virtual_time(leaves(cancelled=False))


def test_a_task_that_was_told_to_end_has_its_turns_to_do_so() -> None:
    async def tidy() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0)

    kept = []

    async def main() -> str:
        kept.append(asyncio.ensure_future(tidy()))
        await asyncio.sleep(0)
        kept[0].cancel()
        return "done"

    assert run_in_virtual_time(main()) == "done"


def test_a_call_from_another_thread_wakes_the_loop() -> None:
    async def main() -> bool:
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=[called.set])
        thread.start()
        thread.join()
        await called.wait()
        return True

    assert run_in_virtual_time(main())


def test_the_loop_serves_a_runner() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(asyncio.sleep(30))
        runner.run(asyncio.sleep(30))
        assert round(runner.get_loop().time()) == 60
