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


async def thread_and_loop() -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
    return threading.current_thread(), asyncio.get_running_loop()


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

    with pytest.raises(LookupError, match="no such thing") as caught:
        portal().call(fails)
    names = [entry.name for entry in caught.traceback]
    assert names[0] == "test_a_call_raises_what_the_function_raises_and_shows_where"
    assert names[-1] == "fails"
    with pytest.raises(asyncio.CancelledError):
        portal().call(gives_up)
    with pytest.raises(TypeError, match="unexpected keyword argument 'minus'"):
        portal().call(double, 4, minus=1)  # type: ignore[call-arg]


def test_all_threads_share_one_daemon_thread_with_one_loop() -> None:
    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: portal().call(thread_and_loop), range(64)))
    ((thread, _),) = seen
    assert thread is not threading.main_thread()
    assert (thread.name, thread.daemon) == ("qreward-portal", True)


def test_calls_from_many_threads_are_under_way_at_once() -> None:
    together = 16
    arrived: list[int] = []
    all_here = asyncio.Event()

    async def meet(number: int) -> int:
        arrived.append(number)
        if len(arrived) == together:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 30)
        return number

    with ThreadPoolExecutor(together) as pool:
        assert list(pool.map(lambda number: portal().call(meet, number), range(together))) == list(range(together))


def test_threads_that_need_the_first_portal_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qreward.engine.portal._current", None)
    ready = threading.Barrier(12)

    def get(_: int) -> Portal:
        ready.wait()
        return portal()

    with ThreadPoolExecutor(12) as pool:
        (mine,) = set(pool.map(get, range(12)))
    mine.close()
    assert mine.ended


def test_the_function_sees_the_callers_context_and_leaves_it_as_it_was() -> None:
    async def look() -> str:
        seen = WHO.get()
        WHO.set("the function")
        return seen

    def ask(name: str) -> tuple[str, str]:
        WHO.set(name)
        return portal().call(look), WHO.get()

    names = [f"thread {number}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, names)) == [(name, name) for name in names]
    assert portal().call(look) == "nobody"


def test_a_blocking_call_in_the_portals_own_thread_is_refused() -> None:
    async def calls_again() -> int:
        return portal().call(double, 1)

    with pytest.raises(RuntimeError, match=r"in on_result or in the input of a batch, where it would wait for itself"):
        portal().call(calls_again)
    assert portal().call(double, 1) == 2


def test_an_interrupted_call_is_cancelled_and_has_ended_when_the_interrupt_comes_out() -> None:
    said: list[str] = []

    async def work() -> None:
        interrupt()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            said.append("cleaned up")
            raise

    with pytest.raises(KeyboardInterrupt):
        portal().call(work)
    assert said == ["cleaned up"]


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


def test_an_error_of_interrupted_work_is_not_reported_as_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        interrupt()
        try:
            await asyncio.sleep(60)
        finally:
            raise LookupError("while it was cancelled")

    with pytest.raises(KeyboardInterrupt):
        portal().call(work)
    gc.collect()
    assert caplog.text == ""


def test_a_second_interrupt_does_not_wait_for_work_that_will_not_end() -> None:
    go_on = threading.Event()

    async def stubborn() -> None:
        interrupt()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            interrupt()
            await asyncio.to_thread(go_on.wait, 30)

    async def all_done() -> bool:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return all(task.done() for task in others if "stubborn" in repr(task))

    with pytest.raises(KeyboardInterrupt):
        portal().call(stubborn)
    assert not portal().call(all_done)
    go_on.set()


@pytest.mark.parametrize(("stubborn", "seconds"), [(False, GRACE), (True, SHORT_GRACE)])
def test_closing_waits_less_long_after_work_that_did_not_end_when_it_was_interrupted(
    stubborn: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, go_on = Portal(), threading.Event()
    waited: list[float] = []

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
    go_on.set()
    with monkeypatch.context() as patch:
        patch.setattr(mine._thread, "join", waited.append)
        mine.close()
    mine._thread.join(30)
    assert waited == [seconds]


def test_an_interrupt_in_one_thread_leaves_the_work_of_the_others() -> None:
    started, go_on = threading.Event(), asyncio.Event()

    async def other() -> str:
        started.set()
        await asyncio.wait_for(go_on.wait(), 30)
        return "done"

    async def mine() -> None:
        interrupt()
        await asyncio.sleep(60)

    async def release() -> None:
        go_on.set()

    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(portal().call, other)
        assert started.wait(30)
        with pytest.raises(KeyboardInterrupt):
            portal().call(mine)
        portal().call(release)
        assert theirs.result(30) == "done"


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
    assert work.ended.is_set()
    assert mine.ended
    with pytest.raises(SystemExit):
        mine.call(double, 1)
    gc.collect()
    assert caplog.messages == [], "it was raised, and is not also logged"


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
    mine = Portal()
    refused: list[BaseException] = []
    closing = threading.Event()

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


def freed_without_the_collector(make: Callable[[], weakref.ref[Any]]) -> bool:
    gc.collect()
    gc.disable()
    try:
        reference = make()
        portal().call(double, 1)  # the loop's thread held the first one's frames for a moment more
        return reference() is None
    finally:
        gc.enable()


class Big(Exception):
    pass


def test_a_result_and_an_error_are_let_go_of_when_the_caller_does() -> None:
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

    assert freed_without_the_collector(result)
    assert freed_without_the_collector(failure)
