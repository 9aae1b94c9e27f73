"""The actors of both backends: how a scorer is made and called there, and that what it gives or raises can travel."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ray_fakes import FakeRay, installed
from shared_tools import until

from qreward.batching.reward_buffer import InvalidScores
from qreward.integrations.ray.pool import RemoteActor, ScorerActor, ScorerSpec, portable, rows_of

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    yield from installed(monkeypatch)


class Unpicklable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Model:
    def __call__(self, items: list[Any]) -> list[Any]:
        return items

    async def later(self, items: list[Any]) -> list[Any]:
        return items

    def pieces(self, items: list[Any]) -> Iterator[Any]:
        yield from items


def plain(items: list[Any]) -> list[Any]:
    return items


class Silent:
    """Has no ``__call__``; its class has, as every class."""


def test_what_cannot_score_is_refused_and_what_a_factory_makes_when_it_is_made() -> None:
    table: list[tuple[Any, dict[str, Any], str]] = [
        (Silent, {}, "Silent cannot be called"),
        (Silent(), {}, "Silent cannot be called"),
        (Model, {"method": "pieces"}, r"Model.pieces must return its results, not yield"),
        (7, {"factory": True}, "a factory must be a function"),
    ]
    for scorer, more, says in table:
        with pytest.raises(TypeError, match=says):
            ScorerSpec(scorer, **more)
    with pytest.raises(TypeError, match="Silent cannot be called"):
        ScorerActor(ScorerSpec(Silent, factory=True))


async def test_a_scorer_is_given_as_many_lists_as_it_takes() -> None:
    columns: tuple[list[Any], ...] = (["a"], [{}])
    table: list[tuple[Any, Any]] = [
        (plain, ["a"]),
        (lambda texts, metas: (texts, metas), columns),
        (lambda texts, metas=None: (texts, metas), columns),
        (lambda *lists: lists, columns),
    ]
    for scorer, given in table:
        assert await ScorerActor(ScorerSpec(scorer)).score(columns) == given


def leave(_: list[Any]) -> list[Any]:
    raise SystemExit(1)


async def failing(_: list[Any]) -> list[Any]:
    raise KeyError("no score")


async def test_an_actor_gives_what_the_scorer_raises_as_a_value_and_lives_on() -> None:
    table: list[tuple[Any, type[Exception], str, str]] = [
        (lambda items: 1 / 0, ZeroDivisionError, "division by zero", "in <lambda>"),
        (failing, KeyError, "'no score'", "in failing"),
        (leave, RuntimeError, "the scorer raised SystemExit: 1", "in leave"),
    ]
    for scorer, kind, says, place in table:
        well, error = await RemoteActor(ScorerSpec(scorer)).run((["a"],))
        assert (well, type(error), str(error)) == (False, kind, says)
        assert error.__notes__[0].startswith("In the actor:\nTraceback")
        assert kind is RuntimeError or place in error.__notes__[0]


async def test_exceptions_that_cannot_travel_say_the_same_in_another_type() -> None:
    class Local(Exception):
        pass

    held = ValueError(threading.Lock())
    results: list[Any] = [1, ValueError("fine"), Unpicklable("a", "b"), Local("here"), held]
    well, given = await RemoteActor(ScorerSpec(lambda items: results)).run((["a"],))
    assert well
    assert [type(one) for one in given] == [int, ValueError, RuntimeError, RuntimeError, RuntimeError]
    assert str(given[2]) == "Unpicklable: a and b"
    assert str(pickle.loads(pickle.dumps(given))[3]) == "Local: here"
    assert portable(results[1]) is results[1]


async def test_an_actor_awaits_the_scorer_or_runs_it_in_a_thread_with_which_a_batch_ends() -> None:
    begun, gate, threads = threading.Event(), threading.Event(), set[Any]()

    def blocking(items: list[Any]) -> list[Any]:
        threads.add(threading.current_thread())
        begun.set()
        assert gate.wait(60)
        return items

    assert await ScorerActor(ScorerSpec(Model, method="later")).score((["a"],)) == ["a"]
    call = asyncio.ensure_future(ScorerActor(ScorerSpec(lambda: blocking, factory=True)).score((["a"],)))
    await until(begun.is_set)
    call.cancel()
    await asyncio.sleep(0.01)
    assert not call.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await ScorerActor(ScorerSpec(blocking)).score((["b"],)) == ["b"]
    assert threading.main_thread() not in threads


async def test_a_scorer_is_asked_to_put_away_what_it_has() -> None:
    closed = []

    class Tidy(Model):
        async def close(self) -> None:
            closed.append(self)

    for spec in (ScorerSpec(Tidy, method="later"), ScorerSpec(Model, method="later"), ScorerSpec(Model)):
        await ScorerActor(spec).end()
    assert len(closed) == 1


def test_parts_are_rows_whatever_shape_they_came_in() -> None:
    assert rows_of((1, 2), 2) == [1, 2]
    first, second = rows_of({"rewards": [1.0, None], "errors": [None, "odd"], "length": [3, 4]}, 2)
    assert (first["reward"], first["meta"]) == (1.0, {"length": 3})
    assert (second["reward"], second["error"]) == (None, "odd")
    with pytest.raises(InvalidScores, match="3 results for 2 items"):
        rows_of([1, 2, 3], 2)
    for odd in (None, "ab", iter([1, 2])):
        with pytest.raises(InvalidScores, match="must return a list"):
            rows_of(odd, 2)
