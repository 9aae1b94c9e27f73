"""When no worker thread is to be had."""

from __future__ import annotations

from typing import Any

from qreward import QueueFull, schedule
from qreward.engine.threads import replaced_time
from qreward.testing import VirtualThreads


def test_a_hedge_that_finds_no_thread_does_not_end_its_call() -> None:
    with VirtualThreads(most=1) as threads, replaced_time(threads):

        @schedule(hedged_request_time=1.0, hedged_request_max_times=1)
        def score() -> str:
            threads.sleep(5.0)
            return "done"

        assert score() == "done"
        assert threads.now() == 5.0


def test_a_call_that_finds_no_thread_says_so() -> None:
    with VirtualThreads(most=1) as threads, replaced_time(threads):

        @schedule(timeout=60.0)
        def score() -> str:
            threads.sleep(5.0)
            return "done"

        def other() -> Any:
            threads.sleep(1.0)
            try:
                return score()
            except QueueFull as error:
                return error

        thread = threads.spawn(other)
        assert score() == "done"
        assert "worker thread" in str(thread.join())
