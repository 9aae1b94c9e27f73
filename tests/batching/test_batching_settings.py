"""Settings of batches: what each takes and refuses, the defaults, and how they are changed while in use."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from batching_tools import Noted, now, settings_of, start, turns

from qreward.batching import BatchQueue, BatchSettings, batch
from qreward.batching.settings import Options
from qreward.errors import ConfigError

NAN, INF = float("nan"), float("inf")


async def echo(items: list[Any]) -> list[Any]:
    return items


def test_a_wrong_setting_is_refused_by_its_name() -> None:
    size, wait, slots = "max_batch_size", "batch_wait_timeout_s", "max_concurrent_batches"
    table: list[tuple[str, Any, type[Exception] | tuple[type[Exception], ...], str]] = [
        (size, "a", TypeError, "must be integer >= 1, got a"),
        *((size, wrong, TypeError, "must be integer >= 1") for wrong in (1.1, True, None, INF, NAN)),
        *((size, low, ValueError, "must be an integer >= 1, got") for low in (0, -1, 0.0)),
        *((wait, wrong, TypeError, "must be a float >= 0, got") for wrong in ("a", None, True)),
        *((wait, low, ValueError, "must be a float >= 0, got") for low in (-0.1, NAN, INF)),
        *((slots, wrong, TypeError, "must be an integer >= 1") for wrong in (1.0, "a", None, True)),
        *((slots, low, ConfigError, "must be an integer >= 1") for low in (0, -1)),
        ("batch_size_fn", 3, TypeError, "must be a callable or None, got <class 'int'>"),
        *(("timeout", wrong, (TypeError, ConfigError), "") for wrong in (0, INF, "1", True)),
        *(("max_queue_size", wrong, (TypeError, ConfigError), "") for wrong in (0, 1.5)),
        ("on_batch", 3, (TypeError, ConfigError), ""),
        ("batch_key_fn", "k", (TypeError, ConfigError), ""),
    ]
    faults = []
    for name, wrong, kind, said in table:
        for make in (batch, lambda **settings: BatchQueue(echo, **settings)):
            try:
                make(**{name: wrong})
                faults.append((name, wrong, "was taken"))
            except Exception as error:
                if not isinstance(error, kind) or f"{name} {said}".strip() not in str(error):
                    faults.append((name, wrong, repr(error)))
    assert faults == []


def test_a_right_setting_is_kept_and_a_size_as_a_whole_number() -> None:
    for right in (1.0, 2.0, 3):
        kept = settings_of(batch(max_batch_size=right)(echo)).max_batch_size  # type: ignore[arg-type]
        assert (kept, type(kept)) == (right, int)
    for wait in (0, 0.0, 2):
        assert settings_of(batch(batch_wait_timeout_s=wait)(echo)).batch_wait_timeout_s == wait


def test_an_unknown_setting_offers_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'max_batch'; did you mean 'max_batch_size'"):
        BatchQueue(echo, max_batch=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="the settings are 'max_batch_size', "):
        batch(zzz=3)  # type: ignore[call-overload]


class Scorer:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    @batch(max_batch_size=2, batch_wait_timeout_s=1000)
    async def method(self, items: list[int]) -> list[int]:
        self.sizes.append(len(items))
        return items


async def test_setters_and_getters_work_before_and_after_first_use_and_hold_for_all_instances() -> None:
    one, other = Scorer(), Scorer()
    assert (settings_of(one.method).max_batch_size, settings_of(one.method).batch_wait_timeout_s) == (2, 1000)
    await asyncio.gather(one.method(1), one.method(2))
    one.method.set_max_batch_size(3)
    one.method.set_batch_wait_timeout_s(15_000)
    assert (settings_of(Scorer.method).max_batch_size, settings_of(other.method).batch_wait_timeout_s) == (3, 15_000)
    await asyncio.gather(*map(one.method, range(3)), *map(other.method, range(3)))
    assert (one.sizes, other.sizes, now()) == ([2, 3], [3], 0)
    Scorer.method.set_max_batch_size(2)
    Scorer.method.set_batch_wait_timeout_s(1000)


async def test_the_number_of_concurrent_batches_can_be_set_while_batches_wait() -> None:
    noted = Noted(seconds=10)
    queue = BatchQueue(noted, max_batch_size=1)
    callers = start(queue.submit, *range(6))
    await asyncio.sleep(1)
    assert noted.peak == 1
    queue.set_max_concurrent_batches(3)
    await asyncio.sleep(1)
    assert noted.peak == 3
    queue.set_max_concurrent_batches(1)
    await asyncio.sleep(10)
    assert noted.running == 1
    await asyncio.gather(*callers)
    assert noted.times == [0, 1, 1, 11, 21, 31]


async def test_all_other_settings_can_be_changed() -> None:
    noted = Noted()
    function = batch(noted)
    function.change(timeout=3, max_queue_size=5, batch_size_fn=sum)
    assert await asyncio.gather(*start(function, 4, 4, 4)) == [4, 4, 4]
    assert noted.batches == [[4, 4], [4]]


async def test_a_setter_refuses_a_wrong_value_and_changes_nothing() -> None:
    function = batch(max_batch_size=2)(Noted())
    for setter, wrong in (
        (function.set_max_batch_size, 0),
        (function.set_max_batch_size, "x"),
        (function.set_batch_wait_timeout_s, "x"),
        (function.set_batch_wait_timeout_s, -1),
        (function.set_max_concurrent_batches, 0),
    ):
        with pytest.raises((TypeError, ValueError)):
            setter(wrong)  # type: ignore[arg-type]
    assert (settings_of(function).max_batch_size, settings_of(function).batch_wait_timeout_s) == (2, 0.0)
    assert await function(1) == 1


def test_the_settings_are_the_same_in_code_for_type_checkers_and_on_the_page() -> None:
    names = {field.name: field.default for field in fields(BatchSettings)}
    assert set(Options.__annotations__) == set(names)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "batching.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == {name: repr(default) for name, default in names.items()}


async def test_a_batch_that_fills_keeps_the_settings_with_which_it_began() -> None:
    noted = Noted()
    queue = BatchQueue(noted, max_batch_size=3, batch_wait_timeout_s=1000)
    calls = start(queue.submit, 1, 2)
    await turns()
    queue.set_max_batch_size(1)
    queue.set_batch_wait_timeout_s(0)
    await turns()
    assert noted.batches == []
    assert await asyncio.gather(*calls, *start(queue.submit, 3, 4)) == [1, 2, 3, 4]
    assert noted.batches == [[1, 2, 3], [4]]
