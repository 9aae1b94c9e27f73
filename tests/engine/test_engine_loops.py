"""One client in several event loops: one after the other, in threads at once, and in loops that go away."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from engine_tools import MODEL, FakeWire, Said, ask, chats, client_of, endpoints, leftovers, prompt_of
from stream_wire import StreamWire, heard
from stream_wire import ask as stream_of

from qreward import ClientClosed, QRewardClient, RequestTimeout, Retry, Timeouts
from qreward.engine.background import run_in_background
from qreward.scheduler.outcome import Answer


class Shared:
    """What the wires of all loops do together; counted under a lock, for they run in several threads."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.lock = threading.Lock()
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.seconds = seconds
        self.wires = self.closed = 0

    def wire(self) -> SharedWire:
        self.wires += 1
        return SharedWire(self)

    def count(self, name: str, change: int) -> None:
        with self.lock:
            self.live[name] += change
            self.peak[name] = max(self.peak[name], self.live[name])
            self.threads.add(threading.get_ident())


class SharedWire:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()

    async def send(self, endpoint: Any, call: Any) -> Answer:
        assert asyncio.get_running_loop() is self._loop
        self._shared.count(endpoint.name, 1)
        try:
            await asyncio.sleep(random.uniform(0, 2 * self._shared.seconds))
        finally:
            self._shared.count(endpoint.name, -1)
        return Answer(Said(f"re: {prompt_of(call)}"))

    async def aclose(self) -> None:
        assert asyncio.get_running_loop() is self._loop or self._loop.is_closed()
        self._shared.closed += 1


def in_threads(count: int, work: Callable[[int], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines at once, each in a thread and a loop of its own; an error of any comes out."""
    results: list[Any] = [None] * count
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        ready.wait()
        try:
            results[number] = asyncio.run(work(number))
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def expected(count: int) -> list[str]:
    return [f"re: {number}" for number in range(count)]


def test_a_client_serves_one_run_after_the_other() -> None:
    shared = Shared()
    client = QRewardClient(endpoints({"a": 4}), backend_factory=shared.wire)

    async def use() -> list[Any]:
        return [*(await client.batch_chat_completion(chats(20), MODEL)).texts(), await ask(client, "x")]

    for _ in range(3):
        assert asyncio.run(use()) == [*expected(20), "re: x"]
        assert leftovers(client) == {}
    assert (shared.wires, shared.closed) == (3, 3)  # each run's own, closed with its loop
    assert client.stats()["a"].answered == client.stats()["a"].won == 63


def test_limits_hold_over_threads_that_use_one_client_at_once() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random.seed(seed)
    shared = Shared()
    limits = {"a": 3, "b": 5}
    client = QRewardClient(endpoints(limits), backend_factory=shared.wire)

    async def work(number: int) -> None:
        batches = [client.batch_chat_completion(items, MODEL, priority=number % 10) for items in (chats(120), iter(chats(40)))]
        calls = asyncio.gather(*(ask(client, call) for call in range(20)))
        cancelled = asyncio.ensure_future(client.batch_chat_completion(chats(500), MODEL))
        await asyncio.sleep(random.uniform(0, 0.05))
        cancelled.cancel()
        first, second = await asyncio.gather(*batches)
        assert (first.texts(), second.texts(), await calls) == (expected(120), expected(40), expected(20))

    in_threads(6, work)
    assert shared.peak == limits
    assert len(shared.threads) == 6
    assert shared.live.total() == 0
    assert leftovers(client) == {}
    assert (shared.wires, shared.closed) == (6, 6)


def test_an_endpoint_is_removed_from_the_thread_in_which_the_loop_ran_before() -> None:
    """The connections are closed in the event loop, which has moved to another thread."""
    threads: list[threading.Thread] = []

    class Wire(FakeWire):
        def keep(self, _endpoints: object) -> None:
            threads.append(threading.current_thread())

    client = client_of(Wire, {"a": 1, "b": 1})
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask(client, 0))
    moved = threading.Thread(target=loop.run_forever)
    moved.start()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
    client.remove_endpoint("b")
    asyncio.run_coroutine_threadsafe(client.aclose(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    moved.join()
    loop.close()
    assert threads == [moved]


def test_closing_in_one_thread_ends_the_work_of_the_others() -> None:
    shared = Shared(seconds=0.02)
    client = QRewardClient(endpoints({"a": 2}), backend_factory=shared.wire)

    under_way = threading.Barrier(3)

    async def work(number: int) -> set[str]:
        batch = asyncio.ensure_future(client.batch_chat_completion(chats(10_000), MODEL))
        await asyncio.sleep(0)
        await asyncio.to_thread(under_way.wait)
        if number == 0:
            await client.aclose()
        return {type(result.error).__name__ for result in await batch}

    for outcomes in in_threads(3, work):
        assert outcomes <= {"NoneType", "ClientClosed"}
        assert "ClientClosed" in outcomes
    assert shared.live.total() == 0
    assert (shared.wires, shared.closed) == (3, 3)
    with pytest.raises(ClientClosed):
        asyncio.run(ask(client, 0))


def test_a_loop_that_is_closed_with_work_in_flight_gives_its_slots_back() -> None:
    for turns in (1, 2, 3, 8):
        client = client_of(StreamWire(), {"a": 2, "b": 1})
        loop = asyncio.new_event_loop()
        abandoned: list[asyncio.Task[Any]] = [loop.create_task(client.batch_chat_completion(chats(9), MODEL))]
        abandoned += [loop.create_task(ask(client, number)) for number in range(4)]
        abandoned += [loop.create_task(heard(stream_of(client, number))) for number in range(4)]
        abandoned.append(loop.create_task(heard(client.batch_stream_chat_completion(chats(9), MODEL))))
        for _ in range(turns):
            loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
        loop.close()

        async def again(client: QRewardClient = client) -> Any:
            async with client:
                batch = await client.batch_chat_completion(chats(3), MODEL, timeout=60)
                assert leftovers(client) == {}
                return batch.texts()

        assert asyncio.run(again()) == expected(3), turns
        assert not any(task.done() for task in abandoned)


def test_streams_of_a_closed_loop_are_thrown_away_amid_our_own_work(capsys: pytest.CaptureFixture[str]) -> None:
    client = client_of(StreamWire(), {"a": 4})
    loop = asyncio.new_event_loop()
    left = [loop.create_task(heard(stream_of(client, number))) for number in range(4)]
    left.append(loop.create_task(heard(client.batch_stream_chat_completion(chats(9), MODEL))))
    loop.run_until_complete(asyncio.sleep(0.01))
    left += asyncio.all_tasks(loop)
    while left:
        left.pop()._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
    loop.close()

    async def again() -> None:
        async with client:
            assert await ask(client, 0) == "re: 0"
            with client._runtime.engine.lock:  # as the garbage collector may do
                gc.collect()
            assert leftovers(client) == {}

    asyncio.run(again())
    assert "Event loop is closed" not in capsys.readouterr().err


def test_a_call_of_a_closed_loop_takes_neither_a_slot_nor_a_place_in_the_queue() -> None:
    client = client_of(FakeWire(seconds=0.01), {"a": 1}, max_queued=1)
    busy, closed, last = asyncio.new_event_loop(), asyncio.new_event_loop(), asyncio.new_event_loop()

    def begin(where: asyncio.AbstractEventLoop, number: int) -> asyncio.Task[Any]:
        asking = where.create_task(ask(client, number, timeout=60))
        where.run_until_complete(asyncio.sleep(0))
        return asking

    first, lost = begin(busy, 1), begin(closed, 2)
    lost._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
    closed.close()
    try:
        waits = begin(last, 3)
        assert not waits.done(), waits
        assert busy.run_until_complete(first) == "re: 1"
        assert last.run_until_complete(waits) == "re: 3"
        last.run_until_complete(client.aclose())
    finally:
        busy.close()
        last.close()
    assert not lost.done()


def test_a_slot_that_falls_to_a_call_of_a_closed_loop_goes_to_the_next() -> None:
    client = client_of(FakeWire(seconds=0.01), {"a": 1})
    loop, closed = asyncio.new_event_loop(), asyncio.new_event_loop()
    asked = []
    for where, number in ((loop, 1), (closed, 2), (loop, 3)):
        asked.append(where.create_task(ask(client, number, timeout=60)))
        where.run_until_complete(asyncio.sleep(0))
    asked[1]._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
    closed.close()
    try:
        assert loop.run_until_complete(asyncio.gather(asked[0], asked[2])) == ["re: 1", "re: 3"]
        loop.run_until_complete(client.aclose())
    finally:
        loop.close()
    assert not asked[1].done()


def test_a_slot_that_a_call_got_whose_loop_was_closed_before_it_sent_anything_goes_to_the_next() -> None:
    client = client_of(FakeWire(seconds=0.01), {"a": 1})
    loop, closed = asyncio.new_event_loop(), asyncio.new_event_loop()
    asked = []
    for where, number in ((loop, 1), (closed, 2)):
        asked.append(where.create_task(ask(client, number, timeout=60)))
        where.run_until_complete(asyncio.sleep(0))
    assert loop.run_until_complete(asked[0]) == "re: 1"  # its slot falls to the call of the other loop, which is not running
    asked[1]._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
    closed.close()
    try:
        late, waits = (loop.create_task(ask(client, number, timeout=timeout)) for number, timeout in ((3, 0.05), (4, 60)))
        with pytest.raises(RequestTimeout):  # its timer is the first at which the engine finds the closed loop
            loop.run_until_complete(late)
        assert loop.run_until_complete(waits) == "re: 4"
        loop.run_until_complete(client.aclose())
    finally:
        loop.close()
    assert not asked[1].done()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))


def turns(loop: asyncio.AbstractEventLoop, until: asyncio.Task[Any]) -> bool:
    """Let a loop go on for some turns. Returns whether the task is done."""
    for _ in range(9):
        turn(loop)
    return until.done()


def test_a_slot_that_falls_to_a_call_of_another_loop_that_has_just_left_goes_to_the_next() -> None:
    kinds: dict[str, Callable[[QRewardClient], Coroutine[Any, Any, Any]]] = {
        "call": lambda client: ask(client, "leaves"),
        "batch": lambda client: client.batch_chat_completion(chats(3), MODEL),
        "stream": lambda client: heard(stream_of(client, "leaves")),
    }
    for kind, cancels in product(kinds, (True, False)):
        gate = asyncio.Event()

        async def waits(_: str, prompt: str, gate: asyncio.Event = gate) -> str:
            await gate.wait()
            return f"re: {prompt}"

        wire = StreamWire(lambda _, __: ["re"])
        wire._script = waits
        client = client_of(wire, {"a": 1})
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        holder = first.create_task(ask(client, "holds"))
        turn(first)
        leaver = second.create_task(kinds[kind](client))
        turn(second)
        if cancels:
            leaver.cancel()
        else:
            second.run_until_complete(second.shutdown_asyncgens())
        gate.set()
        assert first.run_until_complete(holder) == "re: holds"  # posts the slot's next attempt to the other loop
        assert turns(second, leaver), (kind, cancels)
        assert leaver.cancelled() or kind == "batch" or isinstance(leaver.exception(), ClientClosed)
        assert leftovers(client).keys().isdisjoint({"slots", "queued"}), (kind, cancels)
        assert turns(first, first.create_task(ask(client, "last"))), (kind, cancels)
        assert turns(first, first.create_task(client.aclose())), (kind, cancels)
        for loop in (first, second):
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def test_the_slots_of_many_calls_of_a_closed_loop_are_given_back_at_once() -> None:
    gate = asyncio.Event()

    async def waits(_: str, prompt: str) -> str:
        await gate.wait()
        return f"re: {prompt}"

    client = client_of(FakeWire(waits), {"a": 1})
    loop, closed = asyncio.new_event_loop(), asyncio.new_event_loop()
    first = loop.create_task(ask(client, "first"))
    turn(loop)
    waiting = [closed.create_task(ask(client, number)) for number in range(2 * sys.getrecursionlimit())]
    turn(closed)
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here
    closed.close()
    gate.set()
    try:
        assert loop.run_until_complete(first) == "re: first"
        assert leftovers(client).get("slots") is None
        assert loop.run_until_complete(ask(client, "last")) == "re: last"
        loop.run_until_complete(client.aclose())
    finally:
        loop.close()


async def test_a_task_in_the_background_reports_its_error_at_once_and_keeps_no_context_of_its_caller() -> None:
    reported: list[dict[str, Any]] = []
    variable: ContextVar[str] = ContextVar("variable", default="none")

    async def fails() -> None:
        raise OSError(f"not closed, with {variable.get()}")

    async def waits() -> None:
        await asyncio.sleep(10)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    variable.set("the caller's")
    run_in_background(loop, fails())
    run_in_background(loop, waits())
    tasks = asyncio.all_tasks()  # while a task is referenced, asyncio reports nothing
    await asyncio.sleep(0.001)
    assert [str(context["exception"]) for context in reported] == ["not closed, with none"]
    for task in tasks - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0.001)
    assert len(reported) == 1


def test_an_exit_in_the_background_ends_the_loop_and_is_not_reported_as_an_error() -> None:
    reported: list[dict[str, Any]] = []

    async def leaves() -> None:
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        run_in_background(loop, leaves())
        await asyncio.sleep(10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert reported == []


def test_the_connections_of_a_loop_that_was_just_closed_are_closed_by_the_next_or_with_the_client() -> None:
    shared = Shared()
    client = QRewardClient(endpoints({"a": 2}), backend_factory=shared.wire)
    for past in range(3):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(ask(client, past)) is not None
        loop.run_until_complete(asyncio.sleep(0.001))
        assert (shared.wires, shared.closed) == (past + 1, past)
        loop.close()  # and nobody shut down its asynchronous generators
    for _ in range(2):
        asyncio.run(client.aclose())
        assert shared.closed == 3


@pytest.mark.parametrize("closed", [True, False])
def test_what_one_loop_waits_for_is_timed_although_the_loop_that_freed_the_slot_is_gone_or_not_run_any_more(closed: bool) -> None:
    patient, strict = ({"timeouts": Timeouts(attempt=seconds)} for seconds in (30, 0.05))
    fleet = [*endpoints({"patient": 1}, **patient), *endpoints({"strict": 1}, **strict)]

    async def hangs(_: str, __: str) -> str:
        await asyncio.sleep(60)
        return "too late"

    client = QRewardClient(fleet, backend_factory=lambda: FakeWire(hangs), timeout=None, retry=Retry(attempts=1))
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    holders = [first.create_task(ask(client, number)) for number in range(2)]
    first.run_until_complete(asyncio.sleep(0.001))
    waiter = second.create_task(ask(client, "waits"))
    second.run_until_complete(asyncio.sleep(0.1))  # its timer has seen to the strict endpoint, and is set for the patient one now
    first.run_until_complete(asyncio.wait(holders[1:]))  # gives the strict endpoint to the other loop
    holders[0].cancel()
    first.run_until_complete(asyncio.wait(holders))
    if closed:
        first.run_until_complete(first.shutdown_asyncgens())
        first.close()
    with pytest.raises(RequestTimeout, match="no answer from endpoint"):
        second.run_until_complete(asyncio.wait_for(waiter, 60))
    assert isinstance(holders[1].exception(), RequestTimeout)
    second.run_until_complete(client.aclose())
    if not closed:
        first.run_until_complete(first.shutdown_asyncgens())
        first.close()
    second.close()
    assert leftovers(client) == {}


def test_a_forked_child_uses_the_client_it_inherits_and_the_parents_goes_on() -> None:
    script = Path(__file__).with_name("fork_engine_script.py")
    command = [sys.executable, "-X", "dev", "-W", "error", str(script)]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, timeout=60, check=False)
    expected_lines = ["child again answered 20, a peak 2", "child answered 20, a peak 2", "parent answered 40, a peak 2"]
    assert sorted(done.stdout.splitlines()) == expected_lines
    assert (done.returncode, done.stderr) == (0, "")
