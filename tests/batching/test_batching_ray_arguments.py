"""Ray Serve's statements 1 to 19: what may be decorated, what may be set, whose arguments are whose, which queue it is."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from batching_tools import Noted, later, outcomes, settings_of, virtually

from qreward.batching import BatchQueue, BatchSettings, batch
from qreward.errors import ConfigError


async def echo(items: list[Any]) -> list[Any]:
    return items


@batch(max_batch_size=3)
async def of_a_module(items: list[int]) -> list[int]:
    return [item + 1 for item in items]


@virtually
async def test_01_batch_works_with_and_without_parentheses_and_its_first_parameter_is_positional_only() -> None:
    assert await asyncio.gather(batch(echo)(1), batch()(echo)(2), batch(max_batch_size=3)(echo)(3)) == [1, 2, 3]
    with pytest.raises(TypeError, match="unknown setting 'function'"):
        batch(function=echo)  # type: ignore[call-overload]


@pytest.mark.parametrize("thing", [3, "f", None])
def test_02_what_cannot_be_called_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="can only be used to decorate functions or methods"):
        batch()(thing)
    if thing is not None:
        with pytest.raises(TypeError, match="can only be used to decorate functions or methods"):
            batch(thing)


def test_03_bare_batch_on_a_plain_def_says_async_def() -> None:
    with pytest.raises(TypeError, match="async def"):

        @batch
        def function(items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match="async def"):

        class C:
            @batch
            def method(self, items: list[int]) -> list[int]:
                return items


def test_04_batch_with_parentheses_runs_a_plain_def_in_a_thread() -> None:
    threads: set[int] = set()

    @batch(max_batch_size=4)
    def function(items: list[int]) -> list[int]:
        threads.add(threading.get_ident())
        return [item * 2 for item in items]

    async def test() -> list[int]:
        return await asyncio.gather(*map(function, range(6)))

    assert asyncio.run(test()) == [0, 2, 4, 6, 8, 10]
    assert threading.get_ident() not in threads


@virtually
async def test_05_bare_batch_takes_an_async_generator() -> None:
    @batch
    async def function(items: list[int]) -> Any:
        yield items

    assert [piece async for piece in function(1)] == [1]


def test_06_max_batch_size_is_a_whole_number_from_1_and_kept_as_one() -> None:
    with pytest.raises(TypeError, match="max_batch_size must be integer >= 1, got a"):
        batch(max_batch_size="a")  # type: ignore[call-overload]
    for wrong in (1.1, True, None, float("inf"), float("nan")):
        with pytest.raises(TypeError, match="max_batch_size must be integer >= 1"):
            batch(max_batch_size=wrong)  # type: ignore[call-overload]
    for low in (0, -1, 0.0):
        with pytest.raises(ValueError, match="max_batch_size must be an integer >= 1, got"):
            batch(max_batch_size=low)  # type: ignore[call-overload]
    kept = settings_of(batch(max_batch_size=2.0)(echo)).max_batch_size  # type: ignore[call-overload]
    assert (kept, type(kept)) == (2, int)
    assert settings_of(batch(max_batch_size=1.0)(echo)).max_batch_size == 1  # type: ignore[call-overload]


def test_07_batch_wait_timeout_s_is_a_finite_number_from_0() -> None:
    for wrong in ("a", None, True):
        with pytest.raises(TypeError, match="batch_wait_timeout_s must be a float >= 0, got"):
            batch(batch_wait_timeout_s=wrong)  # type: ignore[call-overload]
    for low in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="batch_wait_timeout_s must be a float >= 0, got"):
            batch(batch_wait_timeout_s=low)
    for right in (0, 0.0, 2):
        assert settings_of(batch(batch_wait_timeout_s=right)(echo)).batch_wait_timeout_s == right


def test_08_max_concurrent_batches_is_a_whole_number_from_1() -> None:
    for wrong in (1.0, "a", None, True):
        with pytest.raises(TypeError, match="max_concurrent_batches must be an integer >= 1"):
            batch(max_concurrent_batches=wrong)  # type: ignore[call-overload]
    for low in (0, -1):
        with pytest.raises(ConfigError, match="max_concurrent_batches must be an integer >= 1"):
            batch(max_concurrent_batches=low)


def test_09_batch_size_fn_must_be_callable() -> None:
    with pytest.raises(TypeError, match=r"batch_size_fn must be a callable or None, got <class 'int'>"):
        batch(batch_size_fn=3)  # type: ignore[call-overload]


def test_10_the_defaults_are_rays_but_nothing_waits_for_a_timer() -> None:
    settings = BatchQueue(echo).settings
    assert (settings.max_batch_size, settings.max_concurrent_batches, settings.batch_size_fn) == (10, 1, None)
    assert settings.batch_wait_timeout_s == 0.0  # Ray's is 0.01, with which even a lone call waits
    assert settings == BatchSettings()


@virtually
async def test_12_each_parameter_is_a_list_and_each_caller_gets_one_result() -> None:
    seen = []

    @batch
    async def function(keys: list[str], numbers: list[int]) -> list[str]:
        seen.append((keys, numbers))
        return [key * number for key, number in zip(keys, numbers, strict=True)]

    assert await asyncio.gather(function("a", 1), function("b", 3)) == ["a", "bbb"]
    assert seen == [(["a", "b"], [1, 3])]


@pytest.mark.parametrize("form", ["positional", "keyword", "mixed", "out of order"])
@pytest.mark.parametrize("of_class", [True, False])
@virtually
async def test_13_all_forms_of_passing_arguments_work(form: str, of_class: bool) -> None:
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

    call = C().call if of_class else function
    assert await asyncio.gather(forms[form](call, "a", "b"), forms[form](call, "c", "d")) == [("a", "b"), ("c", "d")]


@virtually
async def test_14_callers_with_different_keyword_order_in_one_batch_keep_their_values() -> None:
    sizes = []

    @batch
    async def function(k1: list[str], k2: list[str], *, k3: list[str]) -> list[tuple[str, str, str]]:
        sizes.append(len(k1))
        return list(zip(k1, k2, k3, strict=True))

    calls = [function(k1="a1", k2="a2", k3="a3"), function(k3="b3", k2="b2", k1="b1"), function("c1", k3="c3", k2="c2")]  # type: ignore[call-arg]
    assert await asyncio.gather(*calls) == [("a1", "a2", "a3"), ("b1", "b2", "b3"), ("c1", "c2", "c3")]
    assert sizes == [3]


@virtually
async def test_15_a_parameter_that_a_caller_omits_has_the_default_itself_and_not_a_list_of_it() -> None:
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


@virtually
async def test_15_the_size_is_of_the_first_parameter_whatever_is_omitted() -> None:
    sized: list[Any] = []

    @batch(batch_size_fn=lambda items: sized.append(items) or len(items))
    async def function(*, texts: list[str], depth: Any = 1, abc: Any = 2) -> list[str]:
        return texts

    assert await asyncio.gather(function(abc=1, texts="a"), function(texts="b"), function(depth=0, abc=0, texts="c")) == ["a", "b", "c"]  # type: ignore[call-arg]
    assert {item for items in sized for item in items} == {"a", "b", "c"}


@virtually
async def test_15_arguments_that_do_not_fit_are_the_error_of_that_caller_alone() -> None:
    @batch
    async def function(items: list[int], scale: list[int]) -> list[int]:
        return items

    wrong: list[Any] = [function(1), function(1, 2, 3), function(1, 2, skale=3), function(1, scale=2, items=3)]  # type: ignore[call-arg]
    assert list(map(type, await outcomes([*wrong, function(7, 1)]))) == [TypeError] * 4 + [int]


@virtually
async def test_15_callers_that_give_other_names_or_numbers_of_arguments_are_in_other_batches() -> None:
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


@virtually
async def test_15_a_function_without_a_parameter_for_a_list_fails_when_it_is_called() -> None:
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


def test_18_a_second_event_loop_and_a_second_thread_are_served() -> None:
    noted = Noted()
    queue = BatchQueue(noted)
    found: dict[int, list[int]] = {}

    async def some(first: int) -> list[int]:
        return await asyncio.gather(*map(queue.submit, range(first, first + 5)))

    assert [asyncio.run(some(0)), asyncio.run(some(5))] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    threads = [threading.Thread(target=lambda n=number: found.update({n: asyncio.run(some(10 * n))})) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: list(range(10 * number, 10 * number + 5)) for number in range(1, 5)}
    assert noted.sizes == [5] * 6
    assert len(queue.loop_workers()) == 0
    asyncio.run(some(0))
    assert len(queue._loop_workers) == 1  # nothing is kept of the loops that were closed


def test_a_batched_function_needs_only_an_event_loop_and_a_failed_first_call_leaves_nothing() -> None:
    function = batch(echo)
    with pytest.raises(RuntimeError, match="no running event loop"):
        function(1).send(None)
    assert asyncio.run(later(0, function, 2)) == 2


def test_an_unknown_setting_offers_the_nearest_right_one() -> None:
    with pytest.raises(TypeError, match="unknown setting 'max_batch'; did you mean 'max_batch_size'"):
        BatchQueue(echo, max_batch=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="the settings are 'max_batch_size', "):
        batch(zzz=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"timeout": float("inf")},
        {"timeout": "1"},
        {"timeout": True},
        {"max_queue_size": 0},
        {"max_queue_size": 1.5},
        {"adaptive_batch_size": 1},
        {"carry_contexts": None},
        {"on_batch": 3},
        {"clock": 1.0},
        {"batch_key_fn": "k"},
    ],
)
def test_every_setting_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ConfigError), match=next(iter(wrong))):
        BatchQueue(echo, **wrong)


def test_a_partial_an_object_and_a_function_that_returns_a_coroutine_can_be_batched() -> None:
    async def add(amount: int, items: list[int]) -> list[int]:
        return [item + amount for item in items]

    async def test() -> None:
        assert await BatchQueue(functools.partial(add, 5)).submit(1) == 6
        assert await BatchQueue(Noted()).submit(1) == 1
        assert await BatchQueue(lambda items: add(7, items)).submit(1) == 8

    asyncio.run(test())


def test_a_generator_that_is_not_async_is_refused() -> None:
    def function(items: list[int]) -> Any:
        yield items

    with pytest.raises(TypeError, match="must be an `async def`"):
        batch()(function)
