"""``@batch`` on methods, instances and their queues, other decorators, and what travels to another process."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import io
import marshal
import pickle
import weakref
from collections.abc import AsyncIterator
from types import CellType, FunctionType
from typing import Any

import pytest
from batching_tools import kinds, outcomes, settings_of, start, turns

from qreward.batching import BatchQueue, batch
from qreward.batching.decorator import DecoratedQueue
from qreward.errors import ClientClosed
from qreward.testing.virtual_time import run_in_virtual_time


async def echo(items: list[Any]) -> list[Any]:
    return items


@batch(max_batch_size=3)
async def of_a_module(items: list[int]) -> list[int]:
    return [item + 1 for item in items]


async def test_the_wrapper_looks_like_the_function_and_works_wherever_it_is_defined() -> None:
    class C:
        @batch
        async def method(self, items: list[int]) -> list[int]:
            """Says what it does."""
            return [item + 1 for item in items]

        @staticmethod
        @batch
        async def static(items: list[int]) -> list[int]:
            return [item + 2 for item in items]

        @classmethod
        @batch
        async def of_class(cls, items: list[int]) -> list[tuple[str, int]]:
            return [(cls.__name__, item) for item in items]

        @batch
        @staticmethod
        async def swapped(items: list[int]) -> list[int]:
            return [item + 3 for item in items]

        @batch
        async def __call__(self, items: list[int]) -> list[int]:
            return [item + 4 for item in items]

    class D(C):
        pass

    c: Any = C()
    assert await asyncio.gather(c.method(1), C.method(c, 2), D().method(3)) == [2, 3, 4]  # type: ignore[call-arg, arg-type]
    assert await asyncio.gather(c.static(1), C.static(2), D.static(3)) == [3, 4, 5]
    assert await asyncio.gather(c.of_class(1), D.of_class(2)) == [("C", 1), ("D", 2)]  # type: ignore[call-arg, arg-type]
    assert await asyncio.gather(c.swapped(1), c(1)) == [4, 5]
    assert (C.method.__name__, C.method.__doc__) == ("method", "Says what it does.")
    assert inspect.iscoroutinefunction(C.method)
    assert inspect.iscoroutinefunction(C.method.__wrapped__)
    assert C.method.__wrapped__ is not C.method


def traced(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def bare(function: Any) -> Any:
    return lambda *args, **kwargs: function(*args, **kwargs)  # noqa: PLW0108 - a decorator that leaves no trace


class Decorated:
    """Methods with other decorators around and below ``@batch``."""

    @traced
    @batch
    async def around(self, items: list[int]) -> list[Any]:
        return [(type(self).__name__, item) for item in items]

    @bare
    @batch
    async def without_trace(self, items: list[int]) -> list[Any]:
        return [(type(self).__name__, item) for item in items]

    @batch()
    @traced
    async def below(self, items: list[int]) -> list[Any]:
        return [(type(self).__name__, item) for item in items]


def test_other_decorators_do_not_change_what_is_a_method() -> None:
    async def test() -> None:
        it: Any = Decorated()
        calls = [it.around(1), it.without_trace(2), it.below(3)]
        assert await asyncio.gather(*calls) == [("Decorated", item) for item in (1, 2, 3)]

    asyncio.run(test())  # one of them runs in a thread, which knows no virtual time


async def test_a_bound_method_can_be_batched() -> None:
    class C:
        def __init__(self, plus: int) -> None:
            self.plus = plus

        async def method(self, items: list[int]) -> list[int]:
            return [item + self.plus for item in items]

        @classmethod
        async def of_class(cls, items: list[int]) -> list[tuple[str, int]]:
            return [(cls.__name__, item) for item in items]

    method, of_class = batch(max_batch_size=4)(C(5).method), batch(C.of_class)
    assert await asyncio.gather(method(1), method(items=2), of_class(3)) == [6, 7, ("C", 3)]  # type: ignore[call-arg]
    assert method.stats().batches == 1
    assert method.__name__ == "method"


class Held:
    """Its items are run with the instance they were submitted to."""

    def __init__(self, name: str) -> None:
        self.name = name

    @batch(max_batch_size=10)
    async def method(self, items: list[int]) -> list[str]:
        return [f"{self.name}{item} of {len(items)}" for item in items]

    def __eq__(self, other: object) -> bool:  # equal instances are not the same
        return isinstance(other, Held)

    __hash__ = None  # type: ignore[assignment]


class Slotted:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @batch
    async def method(self, items: list[int]) -> list[str]:
        return [f"{self.name}{item} of {len(items)}" for item in items]


async def test_each_instance_has_its_own_batches() -> None:
    for kind in (Held, Slotted):
        a, b = kind("a"), kind("b")
        assert await asyncio.gather(a.method(1), b.method(2), a.method(3)) == ["a1 of 2", "b2 of 1", "a3 of 2"], kind


async def test_an_instance_is_not_kept_alive_by_its_queue_and_one_in_its_place_has_a_queue_of_its_own() -> None:
    alive = []
    for kind in (Held, Slotted):
        for _ in range(10):
            instance = kind("x")
            assert await instance.method(1) == "x1 of 1"
            if kind is Held:
                alive.append(weakref.ref(instance))
            del instance
            await turns()
    gc.collect()
    assert [reference() for reference in alive] == [None] * 10


def test_instances_may_be_freed_while_their_event_loops_are_looked_through_which_only_a_new_loop_does() -> None:
    held: list[list[Held]] = []
    looks = 0

    class Loop(asyncio.SelectorEventLoop):
        def is_closed(self) -> bool:
            nonlocal looks
            looks += 1
            held.clear()  # as another thread may do at any time
            return super().is_closed()

    async def use(count: int) -> None:
        nonlocal looks
        loop = asyncio.get_running_loop()
        instances = [Held(str(number)) for number in range(count)]
        for instance in instances:
            assert await instance.method(1) == f"{instance.name}1 of 1"
        held.append(instances)
        looks = 0
        instances.append(Held("x"))
        assert await instances[-1].method(1) == "x1 of 1"
        assert looks == 0, loop

    loops = [Loop() for _ in range(2)]
    for loop in loops:
        loop.run_until_complete(use(20))
    for loop in loops:
        loop.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_event_loop_that_is_never_closed_is_freed_with_the_instances_that_it_served() -> None:
    async def use() -> weakref.ref[asyncio.AbstractEventLoop]:
        assert await Held("x").method(1) == "x1 of 1"
        return weakref.ref(asyncio.get_running_loop())

    freed = asyncio.new_event_loop().run_until_complete(use())
    gc.collect()
    assert freed() is None


async def test_the_queue_is_made_when_it_is_first_used_and_a_batched_function_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(of_a_module))
    assert again is of_a_module
    decorated = pickle.loads(pickle.dumps(DecoratedQueue(echo, max_batch_size=4)))  # as in a closure, by cloudpickle
    queue = pickle.loads(pickle.dumps(BatchQueue(echo, max_batch_size=5, timeout=3)))
    assert decorated.settings.max_batch_size == 4
    assert (queue.settings.max_batch_size, queue.settings.timeout) == (5, 3)

    assert await asyncio.gather(decorated.result_of(*decorated.prepared((1,), {})), queue.submit(2)) == [1, 2]


class ByValue(pickle.Pickler):
    """Pickles the functions and classes of this module by value, as Ray's pickler does with those of a script."""

    def reducer_override(self, thing: Any) -> Any:
        if getattr(thing, "__module__", None) == __name__ and isinstance(thing, FunctionType) and thing is not _function:
            held = [cell.cell_contents for cell in thing.__closure__ or ()]
            return _function, (marshal.dumps(thing.__code__), held, vars(thing), thing.__qualname__, thing.__defaults__)
        if thing is Deployed:
            members = {name: value for name, value in vars(thing).items() if name not in {"__dict__", "__weakref__"}}
            return type, (thing.__name__, thing.__bases__, members)
        return NotImplemented


def _function(code: bytes, held: list[Any], attributes: dict[str, Any], name: str, defaults: Any) -> Any:
    made = FunctionType(marshal.loads(code), globals(), None, defaults, tuple(map(CellType, held)))
    made.__qualname__ = name
    vars(made).update(attributes)
    return made


def travelled(thing: Any) -> Any:
    """What arrives in another process."""
    stream = io.BytesIO()
    ByValue(stream).dump(thing)
    return pickle.loads(stream.getvalue())


class Deployed:
    """As a user would hand it to Ray Serve."""

    def __init__(self, plus: int) -> None:
        self.plus = plus

    @batch(max_batch_size=4)
    async def method(self, items: list[int]) -> list[int]:
        return [item + self.plus for item in items]

    @batch(max_batch_size=2)
    async def streamed(self, items: list[int]) -> Any:
        yield [item + self.plus for item in items]


def test_a_class_with_batched_methods_can_be_sent_to_another_process() -> None:
    async def test() -> None:
        here: Any = Deployed(1)
        assert await asyncio.gather(here.method(1), here.method(2)) == [2, 3]
        Deployed.method.set_max_batch_size(7)
        there: Any = travelled(Deployed)
        instance = there(10)
        assert there is not Deployed
        assert await asyncio.gather(instance.method(1), instance.method(items=2)) == [11, 12]
        assert [piece async for piece in instance.streamed(3)] == [13]
        # the settings travel; queues, counts and later changes do not
        assert (settings_of(there.method).max_batch_size, there.method.stats().batches) == (7, 1)
        there.method.set_max_batch_size(9)
        await there.method.close()
        assert (settings_of(there.method).max_batch_size, settings_of(Deployed.method).max_batch_size) == (9, 7)
        assert await here.method(3) == 4
        assert kinds(await outcomes(start(instance.method, 1))) == [ClientClosed]

    try:
        run_in_virtual_time(test())
    finally:
        Deployed.method.set_max_batch_size(4)


async def test_a_batched_function_can_be_sent_to_another_process_with_its_controls() -> None:
    there = travelled(of_a_module)
    set_there = travelled(of_a_module.set_max_batch_size)
    assert await there(1) == 2
    assert settings_of(there).max_batch_size == 3
    set_there(5)
    assert set_there.__self__.settings.max_batch_size == 5
    assert settings_of(of_a_module).max_batch_size == 3


async def test_every_form_of_an_async_function_of_lists_is_awaited_and_needs_no_parentheses() -> None:
    class Scorer:
        async def __call__(self, bonus: int, items: list[int]) -> list[int]:
            return [item + bonus for item in items]

    class Streamer:
        async def __call__(self, bonus: int, items: list[int]) -> AsyncIterator[list[int]]:
            yield [item + bonus for item in items]

    assert await batch(functools.partial(Scorer(), 1))(2) == 3
    assert [piece async for piece in batch(functools.partial(Streamer(), 1))(2)] == [3]
