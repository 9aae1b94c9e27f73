"""The rules by themselves: when a batch goes, what percentiles say, how exceptions are copied."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qreward.batching import BatchQueue
from qreward.batching.collector import Collector, Item
from qreward.batching.in_flight import own_error
from qreward.batching.settings import BatchCounters
from qreward.batching.worker import LoopWorker
from qreward.errors import RequestError, ServerError


async def echo(values: list[Any]) -> list[Any]:
    return values


def put(worker: LoopWorker, arrived: float) -> None:
    item = Item(arrived, arrived)
    item.future = worker.loop.create_future()
    worker.collector.put(item)


def forming(count: int, slots: int) -> Any:
    """A worker with items that wait, without batches."""
    worker = LoopWorker(BatchQueue(echo, max_concurrent_batches=slots), asyncio.get_running_loop())
    for number in range(count):
        put(worker, float(number))
    return worker


def asks(worker: Any, now: float, in_flight: int, *, flush: bool = False) -> tuple[int, float]:
    """How many go, and when to ask again if none."""
    worker.batches, worker._closing = set(range(in_flight)), flush
    items, at = worker._next(now)
    return len(items), at if not items else now


async def test_with_several_slots_a_batch_that_is_not_full_is_paced() -> None:
    worker = forming(3, slots=4)
    worker._seconds.extend((2.0, 60.0, 2.0))  # one slow batch, perhaps of another key, holds back no others
    worker._last_sent = 10.0
    assert asks(worker, 10.1, 1) == (0, 10.5)  # a batch takes 2 s, four slots: one every half second
    assert asks(worker, 10.5, 1) == (3, 10.5)
    full = forming(12, slots=4)
    full._seconds.append(2.0)
    full._last_sent = 10.0
    assert asks(full, 10.0, 3) == (10, 10.0)
    assert asks(full, 10.0, 3, flush=True) == (2, 10.0)


async def test_before_any_batch_has_ended_the_pause_doubles_so_that_single_items_do_not_take_all_slots() -> None:
    worker = forming(1, slots=8)
    gone: list[tuple[float, int]] = []
    for now in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        if now:
            put(worker, now)
        count, _ = asks(worker, now, len(gone))
        if count:
            worker._first_sent, worker._last_sent = 0.0, now
            gone.append((now, count))
    assert gone == [(0.0, 1), (1.0, 1), (2.0, 1), (4.0, 2), (8.0, 4)]


class WantsOther(Exception):
    """Keeps another argument than it is made with."""

    def __init__(self, code: int) -> None:
        super().__init__(f"failed with {code}")
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)
        self.response = response


class Uncopyable(Exception):
    def __new__(cls, *args: object) -> Uncopyable:
        if args == ("again",):
            raise TypeError
        return super().__new__(cls, "again")

    def __init__(self, *args: object) -> None:
        super().__init__("again")

    def __copy__(self) -> Uncopyable:
        raise TypeError


def test_an_exception_is_copied_with_all_it_holds() -> None:
    errors = [
        ValueError(),
        ValueError("a", 2),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "x.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        WantsOther(3),
        KeywordOnly("m", response=object()),
        ServerError("m", endpoint="a", status_code=500),
        ExceptionGroup("several", [ValueError(1)]),
    ]

    def held(error: BaseException) -> tuple[Any, ...]:
        return type(error), str(error), error.args, error.__dict__

    copies = [own_error(error) for error in errors]
    assert list(map(held, copies)) == list(map(held, errors))
    assert [copy.__cause__ for copy in copies] == errors
    assert not set(map(id, copies)) & set(map(id, errors))


def test_an_exception_that_cannot_be_copied_is_not_shared() -> None:
    error = Uncopyable()
    first, second = own_error(error), own_error(error)
    assert first is not second
    for own in (first, second):
        assert isinstance(own, RequestError)
        assert str(own).startswith("Uncopyable")
        assert own.__cause__ is error


def test_counters_add_up_and_times_are_given_as_percentiles() -> None:
    tally = BatchCounters()
    for _ in range(20):
        tally.count(rejected=2)
        tally.count(batches=1, items=3, waits=[1.0, 2.0, 3.0])
        tally.count(failed=1, runs=[4.0])
    tally.count(batches=1, items=1, waits=[9.0])
    tally.count(runs=[8.0])
    stats = tally.snapshot(4, 2, 32)
    assert (stats.waiting, stats.in_flight, stats.limit) == (4, 2, 32)
    assert (stats.batches, stats.items, stats.mean_size, stats.rejected, stats.failed) == (21, 61, 61 / 21, 40, 20)
    assert (stats.wait_p50, stats.wait_p95, stats.run_p50, stats.run_p95) == (2.0, 3.0, 4.0, 4.0)


@given(
    st.lists(st.integers(1, 12), max_size=40), st.integers(12, 40), st.sampled_from([sum, lambda c: max(c) * len(c), lambda c: len(set(c))])
)
def test_whatever_the_measure_a_batch_never_exceeds_the_limit_and_no_item_fits_in_addition(costs: list[int], limit: int, size: Any) -> None:
    collector = Collector()
    for cost in costs:
        collector.put(Item(cost, cost=size([cost])))
    while costs:
        items = collector.take(limit=limit, measure=lambda items: size([item.value for item in items]))
        taken = [item.value for item in items]
        assert taken == costs[: len(taken)]
        assert len(taken) == 1 or size(taken) <= limit
        del costs[: len(taken)]
        assert not costs or size([*taken, costs[0]]) > limit
