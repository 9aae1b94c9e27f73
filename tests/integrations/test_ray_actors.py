"""Which actor takes which batch, and how actors are restarted: the rules, and the invariants under random events."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from scale import seeds

from qreward.integrations.ray import ActorDied
from qreward.integrations.ray import pool as pool_module
from qreward.integrations.ray.pool import STARTS, ActorLost, Actors, LocalActor, PoolConfig, ScorerSpec


class Backend:
    """What happened to the actors of a test."""

    def __init__(self) -> None:
        self.starts: list[asyncio.Future[None]] = []
        self.killed: list[int] = []

    def actor_class(self) -> type[LocalActor]:
        backend = self

        class Played(LocalActor):
            """Starts when it is told to, and does nothing."""

            number = -1

            async def start(self) -> None:
                self.number = len(backend.starts)
                backend.starts.append(asyncio.get_running_loop().create_future())
                await backend.starts[-1]

            async def end(self) -> None:
                pass

            def kill(self) -> None:
                backend.killed.append(self.number)

        return Played


class Stage:
    """Actors whose batches only take and give back their slots."""

    def __init__(self, actors: Actors, backend: Backend) -> None:
        self.actors, self.backend = actors, backend

    async def started(self, count: int) -> None:
        for _ in range(count):
            await self.turns()
            next(start for start in self.backend.starts if not start.done()).set_result(None)
            await self.turns()

    async def turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def ask(self, count: int = 1, alone: bool = False) -> list[asyncio.Task[Any]]:
        asked = [asyncio.ensure_future(self.actors._taken(self.slots(alone), first=alone)) for _ in range(count)]
        await self.turns()
        return asked

    def slots(self, alone: bool) -> int:
        return self.actors._config.max_concurrent_batches if alone else 1

    async def done(self, batch: asyncio.Task[Any], alone: bool = False) -> None:
        actor = batch.result()
        actor.finished = True
        actor.free += self.slots(alone)
        self.actors.changed.set()
        await self.turns()

    async def die(self, actor: LocalActor) -> None:
        self.actors._lose(actor, ActorLost("it died"))
        await self.turns()


def handles(batches: list[asyncio.Task[Any]]) -> list[int | None]:
    return [batch.result().number if batch.done() else None for batch in batches]


def on_stage(**settings: Any) -> Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in the event loop of a actors."""

    def decorated(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def running() -> None:
            backend = Backend()
            actors = Actors(backend.actor_class(), ScorerSpec(sorted), PoolConfig(**settings))
            threads = threading.active_count()
            try:
                asyncio.run_coroutine_threadsafe(asyncio.wait_for(test(Stage(actors, backend)), 60), actors.loop).result(60)
            finally:
                actors.portal.close()
            assert threading.active_count() <= threads

        return running

    return decorated


@on_stage(actors=3, max_concurrent_batches=2)
async def test_a_batch_goes_to_the_ready_actor_with_the_fewest(stage: Stage) -> None:
    batches = await stage.ask(7)
    assert handles(batches) == [None] * 7
    stage.backend.starts[1].set_result(None)
    await stage.turns()
    assert handles(batches) == [1, 1, *[None] * 5]
    await stage.started(2)
    assert handles(batches) == [1, 1, 0, 0, 2, 2, None]
    await stage.done(batches[0])
    assert handles(batches[6:]) == [1]
    for place in (1, 6, 2, 3, 4, 5):
        await stage.done(batches[place])
    assert handles(await stage.ask(6)) == [0, 2, 1, 0, 2, 1], "of equals, the one whose turn was longest ago"


@on_stage(max_concurrent_batches=2)
async def test_a_batch_that_must_be_alone_goes_first_and_holds_an_actor_free_for_itself(stage: Stage) -> None:
    await stage.started(1)
    one, two, late = await stage.ask(3)
    (suspect,) = await stage.ask(alone=True)
    await stage.done(one)  # there is room, but not for company
    assert handles([suspect, late]) == [None, None]
    await stage.done(two)
    (later,) = await stage.ask()
    assert handles([suspect, late, later]) == [0, None, None]
    await stage.done(suspect, alone=True)
    assert handles([late, later]) == [0, 0]


@on_stage()
async def test_a_batch_that_must_be_alone_also_goes_first_where_each_batch_is_alone(stage: Stage) -> None:
    await stage.started(1)
    one, two = await stage.ask(2)
    (suspect,) = await stage.ask(alone=True)
    await stage.done(one)
    assert handles([suspect, two]) == [0, None]


@on_stage(actors=2, max_concurrent_batches=3)
async def test_a_batch_that_must_be_alone_waits_for_an_idle_actor_and_others_wait_behind_it(stage: Stage) -> None:
    await stage.started(2)
    one, *_ = await stage.ask(3)
    (suspect,) = await stage.ask(alone=True)
    (late,) = await stage.ask()
    assert handles([one, suspect, late]) == [0, None, None]
    await stage.done(_[0])
    assert handles([suspect, late]) == [1, 0]


def test_restarts_are_ever_slower_until_a_batch_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LONGEST_DELAY", 0.3)
    delays: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds:
            delays.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)

    async def test(stage: Stage) -> None:
        for at in range(8):
            await stage.started(1)
            if at == 4:
                (batch,) = await stage.ask()
                await stage.done(batch)
            (actor,) = stage.actors.ready
            await stage.die(actor)
            await stage.die(actor)  # reported twice
        assert delays == [0.1, 0.2, 0.3, 0.1, 0.2]
        assert stage.actors.counts["deaths"] == 8
        assert stage.backend.killed == list(range(8))

    on_stage(max_restarts=5)(test)


@on_stage(actors=2, max_restarts=0)
async def test_an_actor_that_dies_too_often_is_given_up_and_with_the_last_all_that_waits(stage: Stage) -> None:
    await stage.started(2)
    batches = await stage.ask(4)
    for _ in range(2):
        await stage.die(stage.actors.ready[0])
    assert stage.actors.given_up == 2
    batches += await stage.ask()
    assert [type(batch.exception()) for batch in batches] == [type(None)] * 2 + [ActorDied] * 3
    assert str(batches[-1].exception()) == "no actor is left to score with; the last one was lost: it died"


def test_an_actor_that_cannot_be_made_is_given_up_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_DELAY", 0.0)

    async def test(stage: Stage) -> None:
        for _ in range(STARTS):
            await stage.turns()
            stage.backend.starts[-1].set_exception(OSError("no weights"))
            await stage.turns()
        assert (stage.actors.given_up, len(stage.backend.starts)) == (1, STARTS)

    on_stage(max_restarts=100)(test)


class RandomEvents:
    """Batches come, leave and finish, and actors start, fail to start and die, in any order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.waiting: list[tuple[asyncio.Task[Any], bool]] = []
        self.on_actors: list[tuple[asyncio.Task[Any], bool]] = []

    async def ask(self, stage: Stage) -> None:
        alone = self.rng.random() < 0.3
        self.waiting.extend((batch, alone) for batch in await stage.ask(alone=alone))

    async def start(self, stage: Stage) -> None:
        if starting := [start for start in stage.backend.starts if not start.done()]:
            self.rng.choice(starting).set_result(None)

    async def fail_to_start(self, stage: Stage) -> None:
        if starting := [start for start in stage.backend.starts if not start.done()]:
            self.rng.choice(starting).set_exception(OSError("no weights"))

    async def die(self, stage: Stage) -> None:
        if stage.actors.ready:
            await stage.die(self.rng.choice(stage.actors.ready))

    async def finish(self, stage: Stage) -> None:
        if self.on_actors:
            await stage.done(*self.on_actors.pop(self.rng.randrange(len(self.on_actors))))

    async def leave(self, _: Stage) -> None:
        if self.waiting:
            self.rng.choice(self.waiting)[0].cancel()

    async def happen(self, stage: Stage) -> None:
        events = [self.ask, self.start, self.fail_to_start, self.die, self.finish, self.leave]
        (event,) = self.rng.choices(events, [30, 20, 5, 10, 25, 10])
        await event(stage)
        await stage.turns()
        for batch, alone in [entry for entry in self.waiting if entry[0].done()]:
            self.waiting.remove((batch, alone))
            if not batch.cancelled() and batch.exception() is None:
                self.on_actors.append((batch, alone))

    def check(self, actors: Actors) -> None:
        assert actors.counts["waiting"] == len(self.waiting)
        assert actors.given_up < 3 or not self.waiting
        for actor in actors.ready:
            on_it = [alone for batch, alone in self.on_actors if batch.result() is actor]
            assert 2 - actor.free == sum(2 if alone else 1 for alone in on_it) <= 2
            assert not any(on_it) or len(on_it) == 1
            assert actor.free < 2 or not self.waiting  # no batch waits while an actor is idle


@pytest.mark.parametrize("seed", seeds(6))
def test_whatever_happens_nothing_is_lost_and_no_actor_has_too_much(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_DELAY", 0.0)
    events = RandomEvents(seed)

    async def test(stage: Stage) -> None:
        for _ in range(200):
            await events.happen(stage)
            events.check(stage.actors)

    on_stage(actors=3, max_concurrent_batches=2, max_restarts=4)(test)
