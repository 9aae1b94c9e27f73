"""What a batch function may return, which caller gets which error, and what becomes of callers that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from batching_tools import Noted, kinds, outcomes, start, turns, until

from qreward.batching import BatchQueue
from qreward.errors import InvalidResponse, RequestError, ServerError


def returning(make: Callable[..., Any]) -> BatchQueue[Any, Any]:
    async def function(items: list[Any]) -> Any:
        return make(items)

    return BatchQueue(function)


def raising(make: Callable[[], BaseException]) -> BatchQueue[Any, Any]:
    async def function(items: list[Any]) -> list[Any]:
        raise make()

    return BatchQueue(function)


async def test_a_list_of_another_length_is_an_error_for_every_caller() -> None:
    said = "Batched function doesn't preserve batch size. The input list has length 2 but the returned list has length {}."
    for given in ([], [1], [1, 2, 3], (1,)):
        found = await outcomes(start(returning(lambda _, given=given: given).submit, 1, 2))
        assert [(type(error), str(error)) for error in found] == [(InvalidResponse, said.format(len(given)))] * 2
        assert found[0] is not found[1]


class Table:
    """As long as it has rows, but iterating gives the names of its columns, which may be as many."""

    columns, shape = "ab", (2, 2)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter(self.columns)


class Column:
    """Such as an array: has a length and can be iterated, but is no list."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter([10, 20])


async def test_results_are_anything_of_a_length_that_can_be_iterated_in_order_all_else_is_a_type_error() -> None:
    wrong: list[Any] = [{1: "a", 2: "b"}, "ab", b"ab", bytearray(b"ab"), {1, 2}, None, 2, iter([1, 2]), Table()]
    right: list[Any] = [[10, 20], (10, 20), Column(), range(10, 30, 10)]
    table = [*((given, [TypeError, TypeError]) for given in wrong), *((given, [10, 20]) for given in right)]
    found = [(given, kinds(await outcomes(start(returning(lambda _, given=given: given).submit, 1, 2)))) for given, _ in table]
    assert found == table


async def test_an_exception_of_the_function_reaches_each_caller_as_an_object_of_its_own() -> None:
    original = ServerError("the model died", endpoint="gpu-0", status_code=500)
    original.add_note("a note")
    found = await outcomes(start(raising(lambda: original).submit, 1, 2, 3))
    assert kinds(found) == [ServerError] * 3
    assert len({id(error) for error in found} | {id(original)}) == 4
    for error in found:
        assert (str(error), error.endpoint, error.status_code, error.__cause__) == ("the model died", "gpu-0", 500, original)
        assert error.__notes__ == ["a note"]
    found[0].add_note("mine")
    assert found[1].__notes__ == original.__notes__ == ["a note"]
    assert original.__traceback__ is not None
    assert original.__traceback__.tb_frame.f_code.co_name == "function"


async def test_a_lone_caller_gets_the_exception_itself() -> None:
    original = ValueError("bad")
    assert await outcomes(start(raising(lambda: original).submit, 1)) == [original]
    assert original.__cause__ is None


async def test_an_exception_in_the_list_is_raised_for_that_item_alone() -> None:
    shared = KeyError("both")
    queue = returning(lambda items: [item if item < 3 else shared if item < 5 else ValueError(item) for item in items])
    found = await outcomes(start(queue.submit, 1, 3, 2, 4, 5))
    assert kinds(found) == [1, KeyError, 2, KeyError, ValueError]
    assert found[1] is not found[3]
    assert queue.stats().failed == 3


async def test_no_exception_in_the_list_ends_a_callers_task_or_the_program() -> None:
    for error in (StopIteration(1), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        found = await outcomes(start(returning(lambda _, error=error: [1, error]).submit, 1, 2))
        assert found[0] == 1
        assert isinstance(found[1], RequestError | RuntimeError), error
        assert found[1].__cause__ is error


async def test_base_exceptions_of_the_function_end_all_callers_and_leave_the_queue_working() -> None:
    class Abort(BaseException):
        pass

    table = [(asyncio.CancelledError, RequestError), (GeneratorExit, RequestError), (Abort, Abort), (StopIteration, RuntimeError)]
    for kind, expected in table:
        queue = raising(kind)
        found = await outcomes(start(queue.submit, 1, 2))
        assert kinds(found) == [expected] * 2, kind
        assert expected is not RequestError or "the batch was not finished" in str(found[0])
        assert kinds(await outcomes(start(queue.submit, 3))) == [expected], kind


def test_an_interrupt_in_the_function_ends_the_program_and_all_callers() -> None:
    async def test(kind: type[BaseException]) -> None:
        queue = raising(kind)
        await asyncio.gather(*start(queue.submit, 1, 2))

    for kind in (KeyboardInterrupt, SystemExit):
        with pytest.raises(kind):
            asyncio.run(test(kind))


def test_an_exception_in_a_thread_reaches_all_callers() -> None:
    async def test(error: type[Exception]) -> list[Any]:
        def plain(items: list[int]) -> list[int]:
            raise error

        return kinds(await outcomes(start(BatchQueue(plain).submit, 1, 2)))

    assert asyncio.run(test(KeyError)) == [KeyError, KeyError]
    assert asyncio.run(test(StopIteration)) == [RuntimeError, RuntimeError]


async def test_a_caller_that_leaves_the_queue_is_not_in_the_batch() -> None:
    noted = Noted(seconds=1)
    queue = BatchQueue(noted)
    callers = start(queue.submit, 0)
    await turns()
    callers += start(queue.submit, 1, 2, 3)
    await turns()
    callers[2].cancel()
    assert kinds(await outcomes(callers)) == [0, 1, asyncio.CancelledError, 3]
    assert noted.batches == [[0], [1, 3]]
    assert queue.stats().cancelled == 1


async def test_if_all_leave_the_queue_the_function_is_not_called_and_no_timer_is_left() -> None:
    noted = Noted()
    queue = BatchQueue(noted, batch_wait_timeout_s=10, timeout=20)
    callers = start(queue.submit, 1, 2)
    await asyncio.sleep(1)
    for caller in callers:
        caller.cancel()
    await outcomes(callers)
    assert queue.stats().waiting == 0
    loop: Any = asyncio.get_running_loop()
    assert loop.timers() == []
    await asyncio.sleep(20)
    assert noted.batches == []
    assert await asyncio.gather(*start(queue.submit, 3, 4)) == [3, 4]


async def test_a_caller_cancelled_in_the_turn_in_which_the_batch_goes_is_not_in_it() -> None:
    noted = Noted()
    queue = BatchQueue(noted, max_batch_size=2)
    callers = start(queue.submit, 1, 2, 3)
    await asyncio.sleep(0)  # all have been submitted, nothing has been sent
    callers[1].cancel()
    assert kinds(await outcomes(callers)) == [1, asyncio.CancelledError, 3]
    assert noted.batches == [[1, 3]]


async def test_a_caller_that_left_is_not_counted_as_failed() -> None:
    async def slowly(items: list[int]) -> list[Any]:
        await asyncio.sleep(1)
        return list(map(KeyError, items))

    queue = BatchQueue(slowly)
    callers = start(queue.submit, 1, 2)
    await asyncio.sleep(0.5)
    callers[0].cancel()
    assert kinds(await outcomes(callers)) == [asyncio.CancelledError, KeyError]
    await turns()
    assert (queue.stats().failed, queue.stats().cancelled) == (1, 1)


async def test_a_batch_that_is_cancelled_from_outside_before_its_first_step_fails_its_callers_and_frees_its_slot() -> None:
    noted = Noted()
    queue = BatchQueue(noted)
    callers = start(queue.submit, 1)
    before = {*callers, asyncio.current_task()}
    (await until(lambda: asyncio.all_tasks() - before)).pop().cancel()
    assert kinds(await outcomes(callers)) == [RequestError]
    assert noted.batches == []
    assert await queue.submit(2) == 2
    await turns()
    assert queue.stats().in_flight == 0


async def test_callers_that_left_do_not_make_a_batch_full() -> None:
    noted = Noted()
    queue = BatchQueue(noted, max_batch_size=4, batch_wait_timeout_s=10)
    callers = start(queue.submit, 1, 2, 3)
    await asyncio.sleep(1)
    callers[0].cancel()
    callers += start(queue.submit, 4)  # four have come, three are there
    await asyncio.sleep(1)
    assert noted.batches == []
    callers += start(queue.submit, 5)
    await outcomes(callers)
    assert noted.batches == [[2, 3, 4, 5]]
