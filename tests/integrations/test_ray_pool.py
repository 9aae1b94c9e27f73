"""ScorerPool over actors that die, hang, cannot be made: each item has exactly one outcome, and only the one that kills fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from ray_fakes import FakeRay, here, installed
from shared_tools import until

from qreward.batching.reward_buffer import InvalidScores
from qreward.errors import ClientClosed, ConfigError, RequestTimeout
from qreward.integrations.ray import ActorDied, ScorerPool
from qreward.integrations.ray import pool as pool_module

pytestmark = pytest.mark.real_time


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    monkeypatch.setattr(pool_module, "FIRST_DELAY", 0.001)
    Scorer.gate.clear()
    yield from installed(monkeypatch)
    Scorer.gate.set()


class Scorer:
    """Lengths; "poison" kills the actor, "bad" is an error of its own, "worse" one of the batch, "wait" waits for a gate."""

    gate = threading.Event()
    batches: list[list[str]]
    running = peak = 0

    def __init__(self) -> None:
        Scorer.batches = []

    def __call__(self, texts: list[str]) -> list[Any]:
        Scorer.batches.append(texts)
        if "poison" in texts:
            here().die()
        if "worse" in texts:
            raise LookupError("worse")
        if "wait" in texts:
            assert self.gate.wait(60)
        return [ValueError("bad") if text == "bad" else len(text) for text in texts]


async def awaited(texts: list[str]) -> list[int]:
    await asyncio.sleep(3600 if "wait" in texts else 0)
    if "poison" in texts:
        here().die()
    return [len(text) for text in texts]


def kinds(outcomes: Iterable[Any]) -> list[Any]:
    return [type(one) if isinstance(one, BaseException) else one for one in outcomes]


def busy(ray: FakeRay) -> int:
    return sum(actor.busy for actor in ray.living)


@pytest.mark.parametrize("scorer", [Scorer, awaited], ids=["def", "async def"])
async def test_a_batch_is_scored_by_an_actor_and_comes_back_in_order(ray: FakeRay, scorer: Any) -> None:
    async with ScorerPool(scorer, actors=2) as pool:
        assert await pool(["a", "bbb", "cc"]) == [1, 3, 2]
        assert await pool([]) == []
        assert pool.stats().backend == "ray"
    assert len(ray.actors) <= 2
    assert not ray.living


async def test_what_is_asked_of_ray_for_each_actor_is_passed_on(ray: FakeRay) -> None:
    asked: dict[str, Any] = {"num_cpus": 2, "num_gpus": 0.5, "resources": {"tpu": 1}, "runtime_env": {"pip": ["x"]}}
    async with ScorerPool(Scorer, max_concurrent_batches=3, ray_options={"memory": 7}, **asked) as pool:
        await pool(["a"])
        own = {"max_concurrency": 4, "max_restarts": 0, "max_task_retries": 0}
        assert ray.actors[0].options == asked | {"memory": 7} | own


async def test_when_an_actor_dies_its_batch_goes_back_and_another_actor_is_made(ray: FakeRay) -> None:
    async with ScorerPool(Scorer) as pool:
        call = asyncio.ensure_future(pool(["wait", "a"]))
        await until(lambda: busy(ray) == 1)
        ray.actors[0].die()
        await until(lambda: len(ray.actors) == 2)
        Scorer.gate.set()
        assert await call == [4, 1]
        assert (pool.stats().retried, pool.stats().deaths, pool.stats().poisonous) == (1, 1, 0)


@pytest.mark.parametrize("scorer", [Scorer, awaited], ids=["def", "async def"])
async def test_only_the_item_that_kills_its_actor_fails(ray: FakeRay, scorer: Any) -> None:
    async with ScorerPool(scorer, actors=2) as pool, pool.queue(max_batch_size=16) as queue:
        texts = ["poison" if at == 5 else "x" * at for at in range(16)]
        outcomes = await asyncio.gather(*map(queue.submit, texts), return_exceptions=True)
        assert kinds(outcomes) == [ActorDied if at == 5 else at for at in range(16)]
        assert "its worker process has died" in str(outcomes[5])
        assert pool.stats().poisonous == 1
        assert pool.stats().deaths == 2 + 4  # twice the whole, then once each time it is halved, and once the item


async def test_batches_that_were_beside_it_on_the_actor_are_not_blamed(ray: FakeRay) -> None:
    async with ScorerPool(Scorer, max_concurrent_batches=4) as pool:
        good = [asyncio.ensure_future(pool(["wait", "a"])) for _ in range(3)]
        await until(lambda: busy(ray) == 3)
        bad = asyncio.ensure_future(pool(["poison"]))
        await until(lambda: len(ray.actors) > 1)
        Scorer.gate.set()
        assert kinds(await bad) == [ActorDied]
        assert await asyncio.gather(*good) == [[4, 1]] * 3
        assert pool.stats().poisonous == 1


async def test_errors_of_the_scorer_are_raised_for_a_batch_or_returned_beside_a_poisonous_item(ray: FakeRay) -> None:
    async with ScorerPool(Scorer) as pool:
        with pytest.raises(LookupError, match="worse") as caught:
            await pool(["a", "worse"])
        assert "In the actor:" in caught.value.__notes__[0]
        assert kinds(await pool(["a", "bad"])) == [1, ValueError]
        assert pool.stats().deaths == 0
        outcomes = await pool(["poison", "a", "worse", "bad", "bb", "ccc"])
        assert kinds(outcomes) == [ActorDied, 1, LookupError, ValueError, 2, 3]

    def scorer(texts: list[str]) -> list[int]:
        if "poison" in texts:
            here().die()
        return [7]

    async with ScorerPool(scorer) as pool:
        with pytest.raises(InvalidScores, match=r"the scorer returned 1 results for \d items"):
            await pool(["poison", "a", "b", "c", "d", "e"])


async def test_a_node_that_is_preempted_is_no_fault_of_its_batch(ray: FakeRay) -> None:
    async with ScorerPool(Scorer) as pool:
        call = asyncio.ensure_future(pool(["wait"]))
        for lives in range(1, 5):
            await until(lambda lives=lives: len(ray.actors) == lives and busy(ray) == 1)
            ray.actors[-1].die(preempted=True)
        Scorer.gate.set()
        assert await call == [4]
        assert pool.stats().retried == 4


async def test_a_class_that_raises_is_tried_three_times_and_its_error_is_in_the_message(ray: FakeRay) -> None:
    class Broken(Scorer):
        def __init__(self) -> None:
            raise OSError("no weights")

    async with ScorerPool(Broken, max_restarts=100) as pool:
        calls = await asyncio.gather(pool(["a"]), pool(["b"]), return_exceptions=True)
        assert kinds(calls) == [ActorDied, ActorDied]
        assert "OSError: no weights" in str(calls[0])
        assert len(ray.actors) == 3
        with pytest.raises(ConnectionError, match="no actor is left"):
            await pool(["c"])
        assert pool.stats().lost == 1


async def test_an_actor_that_is_not_ready_in_time_is_tried_again_and_given_up(ray: FakeRay) -> None:
    ray.gate.clear()
    async with ScorerPool(Scorer, start_timeout=0.01, num_gpus=8) as pool:
        with pytest.raises(ActorDied, match=r"not ready within 0\.01 s; are there the resources"):
            await pool(["a"])
    ray.gate.set()


async def test_a_caller_that_leaves_cancels_its_batch_in_ray_and_the_slot_is_free_when_the_actor_is(ray: FakeRay) -> None:
    async with ScorerPool(Scorer) as pool:
        call = asyncio.ensure_future(pool(["wait"]))
        await until(lambda: busy(ray) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: ray.cancelled)
        later = asyncio.ensure_future(pool(["a"]))
        await until(lambda: pool.stats().waiting == 1)  # the thread in the actor goes on
        Scorer.gate.set()
        assert await later == [1]


async def test_an_awaited_scorer_is_cancelled_in_its_actor(ray: FakeRay) -> None:
    async with ScorerPool(awaited) as pool:
        call = asyncio.ensure_future(pool(["wait"]))
        await until(lambda: busy(ray) == 1)
        call.cancel()
        assert await pool(["a"]) == [1]
        assert call.cancelled()
        assert pool.stats().deaths == 0


async def test_a_batch_that_takes_too_long_fails_and_its_actor_is_made_again_if_it_does_not_let_go(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "GRACE", 0.01)
    async with ScorerPool(Scorer, batch_timeout=1.0) as pool:
        with pytest.raises(RequestTimeout, match=r"Scorer gave no result within the batch_timeout of 1 s"):
            await pool(["wait"])
        assert await pool(["a"]) == [1]
        assert len(ray.actors) == 2
        assert pool.stats().timeouts == 1


async def test_those_beside_a_batch_that_hangs_are_sent_again_without_blame(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "GRACE", 0.0)
    meet = threading.Barrier(2)

    def scorer(texts: list[str]) -> list[int]:
        if here() is ray.actors[0]:
            Scorer.gate.wait(60)
        else:
            meet.wait(60)  # who is blamed is sent alone, and would meet nobody
        return [len(text) for text in texts]

    async with ScorerPool(scorer, max_concurrent_batches=3) as pool:
        hangs = asyncio.ensure_future(pool(["hang"]))
        await until(lambda: busy(ray) == 1)
        assert pool._actors is not None
        (actor,) = pool._actors.ready
        beside = [asyncio.ensure_future(pool([name])) for name in ("a", "bb")]
        await until(lambda: busy(ray) == 3)
        hangs.cancel()
        await asyncio.wait([hangs])
        pool._actors.loop.call_soon_threadsafe(pool._actors.kill_if_busy, actor, asyncio.Future())  # as when its time is over
        assert await asyncio.gather(*beside) == [[1], [2]]
        assert (pool.stats().deaths, pool.stats().poisonous) == (1, 0)


async def test_the_loop_goes_on_while_ray_takes_a_batch_and_a_caller_that_leaves_has_it_cancelled_then(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScorerPool(awaited) as pool:
        await pool(["a"])
        taking, taken, plain = threading.Event(), threading.Event(), type(ray.actors[0])._call

        def slowly(*args: Any) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            taking.set()
            assert taken.wait(60)
            return plain(*args)

        with monkeypatch.context() as patch:
            patch.setattr(type(ray.actors[0]), "_call", slowly)
            call = asyncio.ensure_future(pool(["wait"]))
            await until(taking.is_set)
            call.cancel()
            await asyncio.wait([call])
            assert not ray.cancelled
            taken.set()
            await until(lambda: ray.cancelled)
        assert call.cancelled()


async def test_close_finishes_what_is_under_way_asks_the_scorer_to_put_away_and_takes_nothing_more(ray: FakeRay) -> None:
    put_away = []

    class Tidy(Scorer):
        def close(self) -> None:
            put_away.append(1)

    pool = ScorerPool(Tidy)
    calls = [asyncio.ensure_future(pool(["wait"])) for _ in range(2)]
    await until(lambda: busy(ray) == 1)
    closing = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0)  # it has begun
    with pytest.raises(ClientClosed):
        await pool(["late"])
    Scorer.gate.set()
    await closing
    assert [call.result() for call in calls] == [[4], [4]]
    assert put_away == [1]
    assert not ray.living
    await pool.close()


async def test_what_comes_while_the_pool_ends_is_not_cancelled(ray: FakeRay) -> None:
    """Every close returns, and a batch fails with ``ClientClosed``."""
    pool = ScorerPool(Scorer)
    await pool(["early"])
    closes = [asyncio.ensure_future(pool.close()) for _ in range(3)]
    await asyncio.sleep(0)  # they have begun
    closes[1].cancel()
    while not closes[2].done():
        with pytest.raises(ClientClosed):
            await pool(["late"])
        await asyncio.sleep(0)
    assert [close.cancelled() for close in closes] == [False, True, False]
    assert not ray.living
    await pool.close()


async def test_close_without_draining_fails_everything_and_kills_the_actors(ray: FakeRay) -> None:
    pool = ScorerPool(Scorer)
    calls = [asyncio.ensure_future(pool(["wait"])) for _ in range(3)]
    await until(lambda: busy(ray) == 1)
    await pool.close(drain=False)
    assert kinds(await asyncio.gather(*calls, return_exceptions=True)) == [ClientClosed] * 3
    assert not ray.living
    never_used = ScorerPool(Scorer)
    await never_used.close()
    with pytest.raises(ClientClosed):
        await never_used([])
    assert len(ray.actors) == 1


async def test_close_without_draining_fails_batches_that_have_not_begun(ray: FakeRay) -> None:
    pool, busy_loop = ScorerPool(Scorer), threading.Event()
    await pool([])
    assert pool._actors is not None
    pool._actors.loop.call_soon_threadsafe(busy_loop.wait, 10)
    calls = [asyncio.ensure_future(pool(["wait"])) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(pool.close(drain=False))
    await asyncio.sleep(0)
    busy_loop.set()
    async with asyncio.timeout(10):
        assert kinds(await asyncio.gather(*calls, return_exceptions=True)) == [ClientClosed] * 3
        await closing


def test_several_loops_share_the_actors(ray: FakeRay) -> None:
    pool = ScorerPool(Scorer, actors=2)
    asyncio.run(pool([]))
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        async def ask() -> list[Any]:
            return await asyncio.gather(*(pool(["x" * number]) for _ in range(20)))

        found[number] = asyncio.run(ask())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {number: [[number]] * 20 for number in range(4)}
    assert len(ray.actors) == 2
    asyncio.run(pool.close())


async def test_ray_that_is_not_connected_or_goes_away_is_an_error_and_starts_no_cluster(ray: FakeRay) -> None:
    ray.connected = False
    pool = ScorerPool(Scorer, backend="ray")
    with pytest.raises(ConfigError, match=r"call ray\.init\(\) first"):
        await pool(["a"])
    ray.connected = True
    assert await pool(["a"]) == [1]
    ray.connected = False
    ray.actors[0].die()
    with pytest.raises(ActorDied, match="not connected to Ray any more"):
        await pool(["a"])
    assert len(ray.actors) == 1
    await pool.close()
