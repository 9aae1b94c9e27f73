"""When a batch goes, what is in it, and what its size is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from batching_tools import Noted, kinds, later, now, outcomes, start, turns

from qreward.batching import BatchQueue, batch
from qreward.errors import QueueFull, RequestTimeout


async def test_the_timer_starts_when_the_first_item_comes_also_after_an_idle_pause() -> None:
    noted = Noted()
    queue = BatchQueue(noted, max_batch_size=10, batch_wait_timeout_s=5)
    for begin in (0, 100):
        await asyncio.sleep(begin - now())
        await asyncio.gather(queue.submit(1), later(3, queue.submit, 2))
        assert now() == begin + 5
    waiting = start(queue.submit, *range(9))
    await asyncio.sleep(4)
    assert not any(caller.done() for caller in waiting)
    assert await queue.submit(9) == 9
    assert now() == 109
    assert noted.sizes == [2, 2, 10]
    await asyncio.gather(*waiting)


async def test_without_a_wait_what_is_submitted_in_one_turn_of_the_loop_goes_together_in_full_batches_in_order() -> None:
    noted = Noted()
    assert await asyncio.gather(*map(BatchQueue(noted, max_batch_size=3, batch_wait_timeout_s=0).submit, range(7))) == list(range(7))
    assert noted.batches == [[0, 1, 2], [3, 4, 5], [6]]


async def test_so_many_batches_run_at_once_and_no_more() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, max_batch_size=5, max_concurrent_batches=2)
    await asyncio.gather(*map(queue.submit, range(20)))
    assert (noted.sizes, noted.peak, now()) == ([5] * 4, 2, 2)


async def test_what_comes_while_all_slots_are_busy_is_the_next_batch() -> None:
    noted = Noted(seconds=0.3)
    queue = BatchQueue(noted)
    await asyncio.gather(*(later(0.02 * number, queue.submit, number) for number in range(8)))
    assert noted.sizes == [1, 7]
    assert now() == 0.6


async def test_the_queue_may_be_bounded_and_refuses_at_once_but_not_while_a_slot_is_free() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, max_queue_size=3)
    callers = start(queue.submit, *range(10))
    found = await outcomes(callers)
    assert kinds(found) == [0, 1, 2, 3, 4, 5, *[QueueFull] * 4]  # three sent at once, three wait
    assert "3 items are already waiting for noted" in str(found[-1])
    assert noted.batches == [[0, 1, 2], [3, 4, 5]]
    assert queue.stats().rejected == 4
    assert await queue.submit(11) == 11


async def test_an_item_has_a_deadline_and_is_not_sent_after_it() -> None:
    noted = Noted(seconds=10)
    queue = BatchQueue(noted, timeout=30)
    first = start(queue.submit, 0)
    await turns()
    late = start(queue.submit, 1, timeout=4)
    with pytest.raises(RequestTimeout, match=r"noted gave no result within the timeout of 4 s \(queueing included\); it was still waiting"):
        await late[0]
    assert now() == 4
    assert await asyncio.gather(*first, queue.submit(2)) == [0, 2]
    assert noted.batches == [[0], [2]]
    assert queue.stats().expired == 1


async def test_urgent_items_go_first_and_nothing_starves() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted, max_batch_size=2)
    callers = start(queue.submit, "first", "first")
    await turns()
    callers += start(queue.submit, "low", priority=9)
    for second in range(200):
        callers += [*start(queue.submit, f"normal {second}"), *start(queue.submit, f"high {second}", priority=0)]
        await asyncio.sleep(1)
    sent = {item: when for items, when in zip(noted.batches, noted.times, strict=True) for item in items}
    assert sent["high 0"] <= sent["normal 0"]
    assert 60 <= sent["low"] <= 63  # normal ones that come 60 seconds later, four levels of 15, go after it
    highs = [int(item.removeprefix("high ")) for item in sent if item.startswith("high")]
    assert highs == sorted(highs)
    await asyncio.gather(*callers)


def sized(noted: Noted, **settings: Any) -> BatchQueue[int, int]:
    return BatchQueue(noted, batch_size_fn=sum, **settings)


async def test_the_size_of_a_batch_is_what_the_function_says_of_the_first_arguments() -> None:
    seen = []

    def tokens(items: list[str]) -> int:
        seen.append(items)
        return sum(map(len, items))

    class C:
        @batch(max_batch_size=10, batch_size_fn=tokens)
        async def method(self, texts: list[str], others: list[int]) -> list[str]:
            return [f"{text}/{len(texts)}" for text in texts]

    c = C()
    found = await asyncio.gather(c.method("aaaa", 1), c.method("bbbb", 2), c.method(others=3, texts="cccc"), c.method("dd", 4))  # type: ignore[call-arg]
    assert found == ["aaaa/2", "bbbb/2", "cccc/2", "dd/2"]
    assert all(isinstance(text, str) for items in seen for text in items)


async def test_an_item_that_fits_into_no_batch_is_the_error_of_its_caller_also_if_the_limit_is_lowered_while_it_waits() -> None:
    noted = Noted(seconds=1)
    queue = sized(noted)
    found = await outcomes(start(queue.submit, 1, 11, 2))
    assert kinds(found) == [1, RuntimeError, 2]
    assert "Size of item is greater than max_batch_size. Please increase" in str(found[1])
    callers = start(queue.submit, 9)
    await turns()
    callers += start(queue.submit, 8, 7, 3)
    await turns()
    queue.set_max_batch_size(5)
    callers[2].cancel()  # an item too large whose caller leaves harms no other
    assert kinds(await outcomes(callers)) == [9, RuntimeError, asyncio.CancelledError, 3]
    assert noted.batches == [[1, 2], [9], [3]]
    assert await queue.submit(3) == 3


async def test_an_item_that_does_not_fit_closes_the_batch_before_the_timer() -> None:
    noted = Noted()
    queue = sized(noted, batch_wait_timeout_s=100)
    callers = start(queue.submit, 4, 4)
    await asyncio.sleep(1)
    assert noted.batches == []
    callers += start(queue.submit, 4)
    await turns()
    assert noted.batches == [[4, 4]]
    await asyncio.gather(*callers)
    assert now() == 101


async def test_sizes_that_are_no_integers_fill_batches_with_few_calls_and_within_the_limit() -> None:
    calls: list[int] = []

    def tokens(items: list[int]) -> float:
        calls.append(len(items))
        if len(items) > 40:
            raise ZeroDivisionError
        return 2.5 * len(items)

    noted = Noted()
    found = await asyncio.gather(*map(BatchQueue(noted, max_batch_size=100, batch_size_fn=tokens).submit, range(100)))
    assert found == [*range(100)]
    assert noted.sizes == [40, 40, 20]
    assert len(calls) < 110


async def test_a_size_function_that_raises_or_gives_no_number_is_the_error_of_that_caller_alone() -> None:
    noted = Noted()
    queue = BatchQueue(noted, batch_size_fn=lambda items: sum(map(len, items)))
    assert kinds(await outcomes(start(queue.submit, "ab", 3, "c"))) == ["ab", TypeError, "c"]
    assert await queue.submit("d") == "d"

    def only_alone(items: list[Any]) -> float:
        if len(items) > 1:
            raise ZeroDivisionError
        return 4

    found = await asyncio.gather(*map(BatchQueue(noted, batch_size_fn=only_alone).submit, range(5)))
    assert found == [0, 1, 2, 3, 4]
    assert noted.sizes[2:] == [2, 2, 1]
    for size in (-1, float("nan"), "x", None):
        queue = BatchQueue(Noted(), batch_size_fn=lambda items, size=size: size if items == ["bad"] else len(items))  # type: ignore[misc]
        assert await outcomes(start(queue.submit, "good", "fine")) == ["good", "fine"]
        assert isinstance((await outcomes(start(queue.submit, "bad")))[0], ValueError | TypeError), size
