"""Functions that are batched: what may be decorated, and how the arguments of callers become lists."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from batching_tools import Noted, later, outcomes

from qreward.batching import BatchQueue, batch


async def echo(items: list[Any]) -> list[Any]:
    return items


async def test_batch_works_with_and_without_parentheses_and_its_first_parameter_is_positional_only() -> None:
    assert await asyncio.gather(batch(echo)(1), batch()(echo)(2), batch(max_batch_size=3)(echo)(3)) == [1, 2, 3]
    with pytest.raises(TypeError, match="unknown setting 'function'"):
        batch(function=echo)  # type: ignore[call-overload]


def test_only_functions_and_methods_can_be_decorated_and_no_plain_generator() -> None:
    for thing in (3, "f", None):
        for decorator in (batch(), *([batch] if thing is not None else [])):
            with pytest.raises(TypeError, match="can only be used to decorate functions or methods"):
                decorator(thing)

    def generator(items: list[int]) -> Any:
        yield items

    with pytest.raises(TypeError, match="must be an `async def`"):
        batch()(generator)


def test_bare_batch_on_a_plain_def_says_async_def() -> None:
    def function(items: list[int]) -> list[int]:
        return items

    def method(self: Any, items: list[int]) -> list[int]:
        return items

    for plain in (function, method):
        with pytest.raises(TypeError, match="async def"):
            batch(plain)


def test_batch_with_parentheses_runs_a_plain_def_in_a_thread() -> None:
    threads: set[int] = set()

    @batch(max_batch_size=4)
    def function(items: list[int]) -> list[int]:
        threads.add(threading.get_ident())
        return [item * 2 for item in items]

    async def test() -> list[int]:
        return await asyncio.gather(*map(function, range(6)))

    assert asyncio.run(test()) == [0, 2, 4, 6, 8, 10]
    assert threading.get_ident() not in threads


async def test_bare_batch_takes_an_async_generator() -> None:
    @batch
    async def function(items: list[int]) -> Any:
        yield items

    assert [piece async for piece in function(1)] == [1]


async def test_each_parameter_is_a_list_and_each_caller_gets_one_result() -> None:
    seen = []

    @batch
    async def function(keys: list[str], numbers: list[int]) -> list[str]:
        seen.append((keys, numbers))
        return [key * number for key, number in zip(keys, numbers, strict=True)]

    assert await asyncio.gather(function("a", 1), function("b", 3)) == ["a", "bbb"]
    assert seen == [(["a", "b"], [1, 3])]


async def test_all_forms_of_passing_arguments_work() -> None:
    class C:
        @batch(max_batch_size=2, batch_wait_timeout_s=1000)
        async def call(self, key1: list[str], key2: list[str]) -> list[tuple[str, str]]:
            return list(zip(key1, key2, strict=True))

    @batch(max_batch_size=2, batch_wait_timeout_s=1000)
    async def function(key1: list[str], key2: list[str]) -> list[tuple[str, str]]:
        return list(zip(key1, key2, strict=True))

    forms: dict[str, Any] = {
        "positional": lambda call, a, b: call(a, b),
        "keyword": lambda call, a, b: call(key1=a, key2=b),
        "mixed": lambda call, a, b: call(a, key2=b),
        "out of order": lambda call, a, b: call(key2=b, key1=a),
    }
    for name, form in forms.items():
        for call in (C().call, function):
            assert await asyncio.gather(form(call, "a", "b"), form(call, "c", "d")) == [("a", "b"), ("c", "d")], (name, call)


async def test_callers_with_different_keyword_order_in_one_batch_keep_their_values() -> None:
    sizes = []

    @batch
    async def function(k1: list[str], k2: list[str], *, k3: list[str]) -> list[tuple[str, str, str]]:
        sizes.append(len(k1))
        return list(zip(k1, k2, k3, strict=True))

    calls = [function(k1="a1", k2="a2", k3="a3"), function(k3="b3", k2="b2", k1="b1"), function("c1", k3="c3", k2="c2")]  # type: ignore[call-arg]
    assert await asyncio.gather(*calls) == [("a1", "a2", "a3"), ("b1", "b2", "b3"), ("c1", "c2", "c3")]
    assert sizes == [3]


async def test_a_parameter_that_a_caller_omits_has_the_default_itself_and_not_a_list_of_it() -> None:
    """As with Ray; a list of a false default would be true. Who omits it shares no batch with who gives it, so neither fails."""
    seen: list[Any] = []

    @batch
    async def function(items: list[int], deep: Any = False, *, scale: Any = None) -> list[Any]:
        seen.append((items, deep, scale))
        return [(item, bool(deep), bool(scale)) for item in items]

    calls = [
        function(1),
        function(2, True),
        function(items=3),
        function(4, deep=True),
        function(5, scale=2),
        function(6, True, scale=3),
    ]  # type: ignore[call-arg]
    assert await asyncio.gather(*calls) == [
        (1, False, False),
        (2, True, False),
        (3, False, False),
        (4, True, False),
        (5, False, True),
        (6, True, True),
    ]
    assert seen == [([1, 3], False, None), ([2, 4], [True, True], None), ([5], False, [2]), ([6], [True], [3])]


async def test_the_size_is_of_the_first_parameter_whatever_is_omitted() -> None:
    sized: list[Any] = []

    @batch(batch_size_fn=lambda items: sized.append(items) or len(items))
    async def function(*, texts: list[str], depth: Any = 1, abc: Any = 2) -> list[str]:
        return texts

    assert await asyncio.gather(function(abc=1, texts="a"), function(texts="b"), function(depth=0, abc=0, texts="c")) == ["a", "b", "c"]  # type: ignore[call-arg]
    assert {item for items in sized for item in items} == {"a", "b", "c"}


async def test_arguments_that_do_not_fit_are_the_error_of_that_caller_alone() -> None:
    @batch
    async def function(items: list[int], scale: list[int]) -> list[int]:
        return items

    wrong: list[Any] = [function(1), function(1, 2, 3), function(1, 2, skale=3), function(1, scale=2, items=3)]  # type: ignore[call-arg]
    assert list(map(type, await outcomes([*wrong, function(7, 1)]))) == [TypeError] * 4 + [int]


async def test_callers_that_give_other_names_or_numbers_of_arguments_are_in_other_batches() -> None:
    seen = []

    @batch
    async def function(*items: list[int], **options: list[int]) -> list[int]:
        seen.append((items, options))
        return [sum(row) for row in zip(*items, *options.values(), strict=True)]

    def kinds_of(found: list[Any]) -> list[Any]:
        return [type(one) for one in found]

    assert await asyncio.gather(function(1, 2), function(3, 4), function(5), function(6, b=1, a=2), function(7, a=3, b=1)) == [
        3,
        7,
        5,
        9,
        11,
    ]
    assert seen == [(([1, 3], [2, 4]), {}), (([5],), {}), (([6, 7],), {"a": [2, 3], "b": [1, 1]})]
    assert kinds_of(await outcomes([function()])) == [TypeError]


async def test_a_function_without_a_parameter_for_a_list_fails_when_it_is_called() -> None:
    @batch
    async def function() -> list[int]:
        return []

    class C:
        @batch
        async def method(self) -> list[int]:
            return []

    for call in (function, C().method):
        with pytest.raises(TypeError, match="must have a parameter for the list of items"):
            await call()


def test_a_batched_function_needs_only_an_event_loop_and_a_failed_first_call_leaves_nothing() -> None:
    function = batch(echo)
    with pytest.raises(RuntimeError, match="no running event loop"):
        function(1).send(None)
    assert asyncio.run(later(0, function, 2)) == 2


def test_a_partial_an_object_and_a_function_that_returns_a_coroutine_can_be_batched() -> None:
    async def add(amount: int, items: list[int]) -> list[int]:
        return [item + amount for item in items]

    async def test() -> None:
        assert await BatchQueue(functools.partial(add, 5)).submit(1) == 6
        assert await BatchQueue(Noted()).submit(1) == 1
        assert await BatchQueue(lambda items: add(7, items)).submit(1) == 8

    asyncio.run(test())
