"""What may be decorated, how it is called, and what is as it would be without the decorator. Nothing waits in real time."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import os
import pickle
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, singledispatch, wraps
from typing import Any, cast

import pytest
from virtual_threads import VirtualThreads

from qreward import ConfigError, QueueFull, RequestTimeout, ScheduleConfig, schedule
from qreward.functions.function import ScheduledFunction
from qreward.testing.virtual_time import run_in_virtual_time

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("settings", [{}, {"hedged_request_time": 30, "max_concurrency": 3}], ids=["bare", "hedged"])
def test_all_kinds_of_methods_are_called_as_before(settings: dict[str, Any]) -> None:
    class Scorer:
        bonus = 1

        @schedule(**settings)
        def method(self, number: int, *, plus: int = 0) -> int:
            return number + self.bonus + plus

        @staticmethod
        @schedule(**settings)
        def static(number: int) -> int:
            return number

        @schedule(**settings)
        @staticmethod
        def static_inside(number: int) -> int:
            return number

        @classmethod
        @schedule(**settings)
        def of_class(cls, number: int) -> int:
            return number + cls.bonus

        @schedule(**settings)
        @classmethod
        def of_class_inside(cls, number: int) -> int:
            return number + cls.bonus

        @schedule(**settings)
        async def awaited(self, number: int) -> int:
            return number + self.bonus

    scorer = Scorer()
    assert scorer.method(1, plus=5) == 7
    assert Scorer.method(scorer, 1) == 2
    assert (scorer.static(1), Scorer.static(1), scorer.static_inside(1), Scorer.static_inside(1)) == (1, 1, 1, 1)  # type: ignore[call-arg]
    assert (scorer.of_class(1), Scorer.of_class_inside(1)) == (2, 2)  # type: ignore[call-arg, arg-type]
    assert asyncio.run(scorer.awaited(1)) == 2
    assert scorer.method.stats().calls == 2


def test_the_decorated_function_keeps_its_name_its_words_and_its_signature() -> None:
    def score(answer: str, *, weight: float = 1.0) -> float:
        """How good it is."""
        return len(answer) * weight

    decorated = schedule(retry_times=1)(score)
    assert (decorated.__name__, decorated.__doc__, decorated.__wrapped__) == ("score", "How good it is.", score)
    assert inspect.signature(decorated) == inspect.signature(score)
    assert [inspect.iscoroutinefunction(each) for each in (decorated, schedule(async_score))] == [False, True]


def test_an_object_that_is_called_may_be_decorated() -> None:
    class Scorer:
        async def __call__(self, answer: str) -> int:
            return len(answer)

    scorer = schedule(timeout=30)(Scorer())
    assert asyncio.run(scorer("four")) == 4
    assert "Scorer" in repr(scorer.config) or scorer.stats().calls == 1


async def async_score(answer: str) -> int:
    return len(answer)


def test_a_decorated_function_can_be_pickled_with_its_settings() -> None:
    again = pickle.loads(pickle.dumps(ScheduledFunction(async_score, ScheduleConfig(retry_times=3))))  # as in a closure, by cloudpickle
    assert (again.config.retry_times, asyncio.run(again.call(("four",), {}))) == (3, 4)


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def test_what_is_no_function_is_refused_clearly() -> None:
    table: list[tuple[Any, str]] = [(generator, "generator"), (async_generator, "generator"), (int, "class"), (7, "int")]
    for what, words in table:
        with pytest.raises(ConfigError, match=words):
            schedule(retry_times=1)(what)


def test_settings_and_a_config_exclude_each_other_and_wrong_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="retry_times"):
        schedule(ScheduleConfig(), retry_times=1)
    with pytest.raises(ConfigError, match="did you mean 'retry_times'"):
        schedule(retry_time=1)
    with pytest.raises(ConfigError, match="by name"):
        schedule(3)  # type: ignore[call-overload]


def test_cancelling_the_caller_cancels_the_function_and_leaves_no_task_behind() -> None:
    async def test() -> None:
        ended: list[str] = []

        @schedule(retry_times=5, max_concurrency=2, timeout=60, hedged_request_time=1)
        async def score() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        task = asyncio.ensure_future(score())
        await asyncio.sleep(2)
        assert score.stats().inflight == 2, "the call and its hedge"
        waiting = asyncio.ensure_future(score())
        await asyncio.sleep(1)
        waiting.cancel()
        task.cancel()
        await asyncio.wait([task, waiting])
        assert (task.cancelled(), waiting.cancelled(), ended) == (True, True, ["cancelled"] * 2)
        assert (score.stats().inflight, score.stats().waiting) == (0, 0)

    run_in_virtual_time(test())  # which fails if a task is left


def test_an_exception_has_the_traceback_of_the_function_inline_and_from_a_thread() -> None:
    def where_it_broke() -> None:
        raise KeyError("x")

    def score() -> None:
        where_it_broke()

    for settings in ({}, {"timeout": 30}):
        with pytest.raises(KeyError) as caught:
            schedule(**settings)(score)()
        assert "where_it_broke" in {frame.name for frame in traceback.extract_tb(caught.value.__traceback__)}, settings


def test_a_function_that_blocks_runs_in_the_callers_thread_if_it_can_and_in_another_if_it_may_have_to_be_left() -> None:
    where: list[int] = []

    def score() -> None:
        where.append(threading.get_ident())

    schedule(retry_times=3, max_concurrency=2, circuit_breaker_threshold=3, limit_size=9)(score)()
    schedule(timeout=30)(score)()
    assert where[0] == threading.get_ident() != where[1]


def test_context_variables_of_the_caller_are_seen() -> None:
    @schedule(timeout=30)
    def in_thread() -> str:
        return VARIABLE.get()

    @schedule(hedged_request_time=1, hedged_request_max_times=1)
    async def hedged() -> str:
        seen.append(VARIABLE.get())
        await asyncio.sleep(30)
        return VARIABLE.get()

    seen: list[str] = []
    VARIABLE.set("the caller's")
    assert in_thread() == "the caller's"
    assert run_in_virtual_time(hedged()) == "the caller's"
    assert seen == ["the caller's"] * 2, "the hedge sees it too"


class Counter:
    """Counts what is under way in any thread, and the most there was at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_one_function_serves_many_threads_and_loops_under_one_limit() -> None:
    counter = Counter()

    @schedule(max_concurrency=3, retry_times=1)
    async def score(number: int) -> int:
        with counter:
            await asyncio.sleep(0.001)
        return number

    async def some(begin: int) -> list[int]:
        return list(await asyncio.gather(*(score(number) for number in range(begin, begin + 30))))

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda begin: asyncio.run(some(begin)), range(0, 240, 30)))
    assert sorted(itertools.chain(*results)) == list(range(240))
    assert counter.most == 3


def test_a_call_is_hedged_although_the_loop_that_freed_its_slot_is_not_run_any_more() -> None:
    tries: list[str] = []
    may_end = asyncio.Event()

    @schedule(pool="freed", max_concurrency=2)
    async def holds() -> None:
        await may_end.wait()

    @schedule(pool="freed", max_concurrency=2, hedged_request_time=0.05)
    async def waits() -> str:
        tries.append("hangs" if not tries else "answers")
        await asyncio.sleep(0 if tries[1:] else 60)
        return tries[-1]

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    holders = [first.create_task(holds()) for _ in range(2)]
    first.run_until_complete(asyncio.sleep(0))
    waiter = second.create_task(waits())
    second.run_until_complete(asyncio.sleep(0))
    assert tries == []
    may_end.set()
    first.run_until_complete(asyncio.gather(*holders))
    assert second.run_until_complete(asyncio.wait_for(waiter, 5)) == "answers"
    for loop in (first, second):
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class TooBusy(Exception):
    status_code, retry_after = 429, 0.1


def test_a_call_goes_out_when_its_key_is_free_again_although_the_loop_that_was_told_when_has_ended() -> None:
    @schedule(max_concurrency=1, retry_times=0)
    async def score(text: str) -> str:
        await asyncio.sleep(0.001)
        if text == "too many":
            raise TooBusy
        return text

    ended, loop = asyncio.new_event_loop(), asyncio.new_event_loop()
    first, second = ended.create_task(score("too many")), loop.create_task(score("waits"))
    for each in (ended, loop):
        each.run_until_complete(asyncio.sleep(0))
    ended.run_until_complete(asyncio.wait([first]))
    assert isinstance(first.exception(), TooBusy)
    ended.run_until_complete(ended.shutdown_asyncgens())
    ended.close()
    assert loop.run_until_complete(asyncio.wait_for(second, 5)) == "waits"
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_a_function_is_used_again_after_its_loop_was_closed_with_a_try_in_flight_and_a_call_that_waits() -> None:
    @schedule(max_concurrency=1, retry_times=0)
    async def score(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    left = []
    for _ in range(3):  # without ``shutdown_asyncgens``
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(asyncio.wait_for(score(0), 5)) == 0
        left += [loop.create_task(score(60)), loop.create_task(score(0))]
        loop.run_until_complete(asyncio.sleep(0))
        assert score.stats().inflight == 1
        loop.close()
    assert asyncio.run(asyncio.wait_for(score(0), 5)) == 0
    assert score.stats().inflight == 0
    for task in left:
        assert not task.done()
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # on purpose here


def test_async_and_blocking_functions_share_a_pool_and_the_lowest_of_its_limits() -> None:
    counter = Counter()

    @schedule(pool="mixed", max_concurrency=2)
    async def awaited() -> None:
        with counter:
            await asyncio.sleep(0.001)

    @schedule(pool="mixed", limit_size=50, limit_window=0.02)
    def blocking() -> None:
        with counter:
            threading.Event().wait(0.001)

    async def many() -> None:
        await asyncio.gather(*(awaited() for _ in range(60)))

    with ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(asyncio.run, many()), *(threads.submit(blocking) for _ in range(80))]
        for future in futures:
            future.result(timeout=60)
    assert counter.most == 2
    assert schedule(pool="mixed", max_concurrency=3)(len).stats().limit == 2


def test_unhashable_keys_are_refused_before_anything_is_called() -> None:
    @schedule(limit_size=1, key_func=lambda answer: [answer])
    def score(answer: str) -> int:
        return len(answer)

    with pytest.raises(ConfigError, match="returned a list"):
        score("four")
    assert score.stats().calls == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_begins_anew() -> None:
    @schedule(max_concurrency=1, timeout=30)
    def score(number: int) -> int:
        return number + 1

    @schedule(max_concurrency=1)
    async def awaited(number: int) -> int:
        return number + 1

    assert (score(1), asyncio.run(awaited(1))) == (2, 2)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if (score(1), asyncio.run(awaited(2)), score.stats().calls) == (2, 3, 1) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def ends_in_vain(threads: VirtualThreads, pool: str, begins: float, timeout: float) -> float:
    """When a call that begins at ``begins`` and gets no slot of the pool has timed out."""

    @schedule(pool=pool, max_concurrency=1, timeout=timeout)
    def strict() -> None:
        raise AssertionError("it never begins")

    threads.sleep(begins)
    with pytest.raises(TimeoutError):
        strict()
    return threads.now()


@pytest.mark.parametrize("patience", [None, 60.0])
def test_a_caller_that_comes_later_is_told_in_time_although_one_that_waits_longer_watches_the_clock(patience: float | None) -> None:
    with VirtualThreads() as threads:

        @schedule(pool="watched", max_concurrency=1, timeout=patience)
        def holds() -> None:
            threads.sleep(10.0)

        callers = [threads.spawn(holds), threads.spawn(holds)]  # the second waits
        assert threads.spawn(partial(ends_in_vain, threads, "watched", 2.0, 1.0)).join() == pytest.approx(3.0, abs=0.1)
        for caller in callers:
            caller.join()


def test_the_time_of_one_that_waits_is_watched_although_the_one_that_watched_the_clock_has_begun_to_run() -> None:
    with VirtualThreads() as threads:

        @schedule(pool="begun", max_concurrency=1)
        def holds(seconds: float) -> None:
            threads.sleep(seconds)

        callers = [threads.spawn(partial(holds, seconds)) for seconds in (1.0, 10.0)]
        assert threads.spawn(partial(ends_in_vain, threads, "begun", 0.5, 2.0)).join() == pytest.approx(2.5, abs=0.1)
        for caller in callers:
            caller.join()


def test_a_caller_that_is_interrupted_while_it_waits_does_not_stop_the_clock_of_the_others() -> None:
    class Interrupted(VirtualThreads):
        def take(self, inbox: Any, engine: Any = None) -> Any:
            if threading.current_thread().name == "impatient" and engine is not None:
                self.sleep(1.0)
                raise KeyboardInterrupt
            return super().take(inbox, engine)

    with Interrupted() as threads:

        @schedule(key_func=None, limit_size=1, limit_window=10.0)
        def score() -> float:
            return threads.now()

        assert score() == pytest.approx(0.0, abs=1e-6)

        def impatient() -> None:
            with pytest.raises(KeyboardInterrupt):
                score()

        first = threads.spawn(impatient, "impatient")
        second = threads.spawn(score)
        first.join()
        assert second.join() == pytest.approx(10.0, abs=0.1)


def test_a_caller_that_is_interrupted_just_when_it_is_given_a_slot_gives_it_back() -> None:
    class Interrupted(VirtualThreads):
        def take(self, inbox: Any, engine: Any = None) -> Any:
            received = super().take(inbox, engine)
            if threading.current_thread().name == "impatient" and engine is not None:
                raise KeyboardInterrupt
            return received

    with Interrupted() as threads:

        @schedule(max_concurrency=1)
        def score() -> float:
            threads.sleep(1.0)
            return threads.now()

        def impatient() -> None:
            with pytest.raises(KeyboardInterrupt):
                score()

        first, second = threads.spawn(score), threads.spawn(impatient, "impatient")
        second.join()
        assert (first.join(), score()) == pytest.approx((1.0, 2.0), abs=1e-6)


def test_without_a_free_thread_a_hedge_is_left_out_and_a_call_is_refused() -> None:
    with VirtualThreads(most=1) as threads:

        @schedule(hedged_request_time=1.0, hedged_request_max_times=1)
        def score() -> str:
            threads.sleep(5.0)
            return "done"

        def other() -> Any:
            threads.sleep(1.5)
            try:
                return score()
            except QueueFull as error:
                return error

        assert (score(), threads.now()) == ("done", pytest.approx(5.0, abs=1e-6))
        thread = threads.spawn(other)
        assert score() == "done"
        assert "worker thread" in str(thread.join())


class AsyncScorer:
    async def __call__(self, answer: str) -> int:
        await asyncio.sleep(10)
        return len(answer)


def test_a_partial_of_an_async_callable_is_async_and_its_time_limit_applies() -> None:
    for function in (partial(AsyncScorer(), "four"), partial(partial(AsyncScorer()), "four"), partial(AsyncScorer().__call__, "four")):
        assert run_in_virtual_time(schedule(timeout=20)(function)()) == 4
        with pytest.raises(RequestTimeout):
            run_in_virtual_time(schedule(timeout=1)(function)())


async def sleeping_scorer(answer: str) -> int:
    await asyncio.sleep(10)
    return len(answer)


@singledispatch
async def dispatched(answer: str) -> int:
    return len(answer)


@wraps(sleeping_scorer)
def wrapped(answer: str) -> Any:
    return sleeping_scorer(answer)


def test_work_that_begins_only_after_a_blocking_call_is_refused_and_never_replaced_by_the_default() -> None:
    def default(answer: str) -> Any:
        return sleeping_scorer(answer)

    def fails(answer: str) -> int:
        raise KeyError(answer)

    seen: list[str] = []
    settings: list[dict[str, Any]] = [{}, {"timeout": 1, "retry_times": 2}, {"default_result": 0}]
    for function in (wrapped, dispatched, lambda answer: sleeping_scorer(answer * 2), lambda _: generator(), lambda _: async_generator()):
        for each in settings:
            scored: Any = schedule(**each, metrics_callback=lambda metrics: seen.append(metrics.outcome))(function)
            with pytest.raises(ConfigError, match="async function"):
                scored("four")
            assert scored.stats().tries == 1
    assert seen == ["failed"] * 15
    with pytest.raises(ConfigError, match="default_result of"):
        schedule(default_result=default)(fails)("four")


def test_async_functions_that_would_be_called_and_never_awaited_are_refused() -> None:
    for name in ("key_func", "metrics_callback", "exception_types"):
        for function in (sleeping_scorer, AsyncScorer(), partial(AsyncScorer(), "four")):
            with pytest.raises(ConfigError, match="plain function, not async"):
                ScheduleConfig(**cast("Any", {name: function}))
