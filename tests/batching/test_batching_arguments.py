"""Functions that are batched: what may be decorated, and how the arguments of callers become lists."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from batching_tools import later, outcomes

from qreward.batching import batch
from qreward.errors import ConfigError


async def echo(items: list[Any]) -> list[Any]:
    return items


async def test_batch_works_with_and_without_parentheses_and_its_first_parameter_is_positional_only() -> None:
    async def streamed(items: list[Any]) -> Any:
        yield items

    assert await asyncio.gather(batch(echo)(1), batch()(echo)(2), batch(max_batch_size=3)(echo)(3)) == [1, 2, 3]
    assert [piece async for piece in batch(streamed)(1)] == [1]
    with pytest.raises(ConfigError, match="unknown setting 'function'"):
        batch(function=echo)  # type: ignore[call-overload]


def test_what_cannot_be_decorated_is_refused_and_bare_batch_takes_no_plain_function() -> None:
    def generator(items: list[int]) -> Any:
        yield items

    def plain(items: list[int]) -> list[int]:
        return items

    def method(self: Any, items: list[int]) -> list[int]:
        return items

    not_callable = "can only be used to decorate functions or methods"
    table: list[tuple[Any, Any, str]] = [
        *((batch(), thing, not_callable) for thing in (3, "f", None)),
        *((batch, thing, not_callable) for thing in (3, "f")),
        (batch(), generator, "must be an `async def`"),
        *((batch, function, "async def") for function in (plain, method)),
    ]
    for decorator, thing, message in table:
        with pytest.raises(TypeError, match=message):
            decorator(thing)


async def test_arguments_by_position_and_by_name_in_any_order_may_be_in_one_batch_and_keep_their_values() -> None:
    batches = []

    async def function(k1: list[str], k2: list[str], k3: list[str]) -> list[tuple[str, str, str]]:
        batches.append((k1, k2, k3))
        return list(zip(k1, k2, k3, strict=True))

    class C:
        @batch
        async def method(self, k1: list[str], k2: list[str], *, k3: list[str]) -> list[tuple[str, str, str]]:
            return await function(k1, k2, k3)

    for call in (batch(function), C().method):
        calls: Any = [
            call(k1="a1", k2="a2", k3="a3"),
            call(k3="b3", k2="b2", k1="b1"),
            call("c1", k3="c3", k2="c2"),
            call("d1", "d2", k3="d3"),
        ]
        assert await asyncio.gather(*calls) == [(f"{row}1", f"{row}2", f"{row}3") for row in "abcd"]
    assert batches == [tuple([f"{row}{column}" for row in "abcd"] for column in (1, 2, 3))] * 2


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

    assert await asyncio.gather(function(1, 2), function(3, 4), function(5), function(6, b=1, a=2), function(7, a=3, b=1)) == [  # type: ignore[call-arg]
        3,
        7,
        5,
        9,
        11,
    ]
    assert seen == [(([1, 3], [2, 4]), {}), (([5],), {}), (([6, 7],), {"a": [2, 3], "b": [1, 1]})]
    assert kinds_of(await outcomes([function()])) == [TypeError]  # type: ignore[call-arg]


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


def test_a_method_keeps_no_closed_event_loop_alive() -> None:
    class Model:
        @batch(batch_wait_timeout_s=0)
        async def double(self, items: list[int]) -> list[int]:
            loops.add(asyncio.get_running_loop())
            return [2 * item for item in items]

    loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
    model = Model()
    assert [asyncio.run(model.double(number)) for number in range(5)] == [0, 2, 4, 6, 8]  # type: ignore[arg-type]
    gc.collect()
    assert len(loops) <= 1  # of the latest call
