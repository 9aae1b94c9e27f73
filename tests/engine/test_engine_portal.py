"""Calls through the portal: what they return and raise, from which threads and contexts, and what ends them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from qreward import ClientClosed
from qreward.engine.portal import GRACE, SHORT_GRACE, Portal, portal

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


async def double(number: int, *, plus: int = 0) -> int:
    await asyncio.sleep(0)
    return 2 * number + plus


def interrupt() -> None:
    """Ctrl-C, for whoever waits in the main thread."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


class Work:
    """A function that does not end until it is cancelled."""

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()

    async def __call__(self) -> None:
        self.started.set()
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.set()


def test_a_call_returns_what_the_function_returns_also_inside_a_running_loop_or_below_other_work() -> None:
    async def cell() -> int:
        return portal().call(double, 21)

    async def through_a_thread() -> int:
        return await asyncio.to_thread(portal().call, double, 3)

    assert portal().call(double, 4, plus=1) == 9
    assert asyncio.run(cell()) == 42
    assert portal().call(through_a_thread) == 6


def test_a_call_raises_what_the_function_raises_and_shows_where() -> None:
    async def fails() -> None:
        raise LookupError("no such thing")

    async def gives_up() -> None:
        raise asyncio.CancelledError("by itself")

    async def calls_again() -> int:
        return portal().call(double, 1)

    with pytest.raises(LookupError, match="no such thing") as caught:
        portal().call(fails)
    names = [entry.name for entry in caught.traceback]
    assert (names[0], names[-1]) == ("test_a_call_raises_what_the_function_raises_and_shows_where", "fails")
    with pytest.raises(asyncio.CancelledError):
        portal().call(gives_up)
    with pytest.raises(TypeError, match="unexpected keyword argument 'minus'"):
        portal().call(double, 4, minus=1)  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match=r"in on_result or in the input of a batch, where it would wait for itself"):
        portal().call(calls_again)
    assert portal().call(double, 1) == 2


def test_threads_that_need_the_first_portal_at_once_share_one_daemon_thread_in_which_their_calls_run_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qreward.engine.portal._current", {})
    together = 12
    ready, arrived, all_here = threading.Barrier(together), list[int](), asyncio.Event()

    async def meet(number: int) -> tuple[int, str, threading.Thread]:
        seen = WHO.get()
        WHO.set("the function")
        arrived.append(number)
        if len(arrived) == together:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 30)
        return number, seen, threading.current_thread()

    def ask(number: int) -> tuple[int, str, threading.Thread]:
        WHO.set(f"thread {number}")
        ready.wait()
        found = portal().call(meet, number)
        assert WHO.get() == f"thread {number}", "the context of a caller stays as it was"
        return found

    with ThreadPoolExecutor(together) as pool:
        found = list(pool.map(ask, range(together)))
    (thread,) = {thread for _, _, thread in found}
    assert [(number, seen) for number, seen, _ in found] == [(number, f"thread {number}") for number in range(together)]
    assert (thread is threading.main_thread(), thread.name, thread.daemon) == (False, "qreward-portal", True)
    mine = portal()
    mine.close()
    assert mine.ended
    assert not thread.is_alive()
    assert portal() is not mine
    assert portal().call(double, 1) == 2
    portal().close()


def test_an_interrupted_call_is_cancelled_and_has_ended_when_the_interrupt_comes_out(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []

    async def work(error: Exception | None = None) -> None:
        interrupt()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as cancelled:
            await asyncio.sleep(0.01)
            said.append("cleaned up")
            cancelled.add_note("eight items were done")
            raise (error or cancelled) from None

    with pytest.raises(KeyboardInterrupt) as caught:
        portal().call(work)
    assert (said, caught.value.__notes__) == (["cleaned up"], ["eight items were done"])
    with pytest.raises(KeyboardInterrupt):
        portal().call(work, LookupError("while it was cancelled"))
    gc.collect()
    assert caplog.text == "", "an error of interrupted work is not reported as forgotten"


def test_an_interrupt_before_the_work_reaches_the_loop_ends_the_call_and_the_work_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    work, mine = Work(), Portal()

    def interrupted(_: Callable[[], object]) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(mine, "soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine.call(work)
    assert mine.under_way == set()
    assert not work.started.is_set()
    mine.close()


@pytest.mark.parametrize(("stubborn", "seconds"), [(False, GRACE), (True, SHORT_GRACE)])
def test_a_second_interrupt_does_not_wait_for_work_that_will_not_end_nor_does_closing_wait_long_then(
    stubborn: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, go_on, waited = Portal(), threading.Event(), list[float]()

    async def work() -> None:
        interrupt()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if stubborn:
                interrupt()
                await asyncio.to_thread(go_on.wait, 30)

    with pytest.raises(KeyboardInterrupt):
        mine.call(work)
    assert len(mine.under_way) == stubborn
    go_on.set()
    with monkeypatch.context() as patch:
        patch.setattr(mine._thread, "join", waited.append)
        mine.close()
    mine._thread.join(30)
    assert waited == [seconds]


@pytest.mark.parametrize("where", ["task", "callback"])
def test_a_system_exit_in_the_loop_ends_what_is_under_way_and_the_portal(where: str, caplog: pytest.LogCaptureFixture) -> None:
    work, mine = Work(), Portal()

    def leave() -> None:
        raise SystemExit(3)

    async def leaves() -> None:
        if where == "task":
            leave()
        asyncio.get_running_loop().call_soon(leave)
        await asyncio.sleep(60)

    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(mine.call, work)
        assert work.started.wait(30)
        with pytest.raises(SystemExit, match="3"):
            mine.call(leaves)
        with pytest.raises(SystemExit, match="3"):
            theirs.result(30)
    assert (work.ended.is_set(), mine.ended) == (True, True)
    with pytest.raises(SystemExit):
        mine.call(double, 1)
    gc.collect()
    assert caplog.messages == [], "it was raised, and is not also logged"


def test_an_error_in_a_callback_of_the_loop_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def careless() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0.01)

    portal().call(careless)
    assert "ZeroDivisionError" in caplog.text
    assert portal().call(double, 1) == 2


def test_closing_cancels_what_is_under_way_and_is_an_error_to_its_callers() -> None:
    work, mine = Work(), Portal()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(mine.call, work)
        assert work.started.wait(30)
        mine.close()
        with pytest.raises(ClientClosed, match="the request was dropped"):
            theirs.result(30)
    assert work.ended.is_set()
    with pytest.raises(ClientClosed):
        mine.call(double, 1)
    mine.close()


def test_work_that_arrives_while_the_loop_closes_is_given_up_and_not_lost() -> None:
    mine, refused, closing = Portal(), list[BaseException](), threading.Event()

    def late() -> None:
        closing.wait(30)
        try:
            mine.call(double, 1)
        except ClientClosed as error:
            refused.append(error)

    thread = threading.Thread(target=late)
    thread.start()

    async def delays_the_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closing.set()
            await asyncio.to_thread(thread.join, 30)

    def nobody_waits() -> None:
        with pytest.raises(ClientClosed):
            mine.call(delays_the_end)

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(nobody_waits)
        mine.call(double, 1)
        mine.close()
        waits.result(30)
    assert len(refused) == 1


def test_a_result_and_an_error_are_let_go_of_when_the_caller_does() -> None:
    class Big(Exception):
        pass

    async def answers() -> Big:
        return Big()

    async def fails() -> None:
        raise Big

    def result() -> weakref.ref[Any]:
        return weakref.ref(portal().call(answers))

    def failure() -> weakref.ref[Any]:
        try:
            portal().call(fails)
        except Big as error:
            return weakref.ref(error)
        raise AssertionError("it did not fail")

    gc.collect()
    gc.disable()
    try:
        for make in (result, failure):
            reference = make()
            portal().call(double, 1)  # the loop's thread held the first one's frames for a moment more
            assert reference() is None, make
    finally:
        gc.enable()
