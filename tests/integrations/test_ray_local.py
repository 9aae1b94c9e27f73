"""The same pool without Ray: in this process, with the same settings; and what is said where Ray is asked for and missing."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
from shared_tools import each, until

from qreward.errors import ConfigError, InvalidResponse, RequestTimeout
from qreward.integrations.ray import PoolStats, ScorerPool, deployment

pytestmark = pytest.mark.real_time


class Model:
    """Rewards by a scale; takes the completions alone."""

    made = 0

    def __init__(self, scale: float = 1.0, *, bias: float = 0.0) -> None:
        Model.made += 1
        self.scale, self.bias = scale, bias

    def score(self, completions: list[str]) -> list[float]:
        return [len(text) * self.scale + self.bias for text in completions]

    async def columns(self, completions: list[str], metadata: list[dict[str, Any]]) -> dict[str, Any]:
        return {"rewards": [meta["reward"] for meta in metadata], "length": [len(text) for text in completions]}


def echo(items: list[Any]) -> list[Any]:
    return items


async def test_without_ray_the_scorer_of_a_class_or_a_factory_is_in_this_process() -> None:
    async with ScorerPool(Model, actors=2, num_gpus=1, init_args=(2.0,), init_kwargs={"bias": 1.0}, method="score") as pool:
        assert await pool(["a", "bb"]) == [3.0, 5.0]
        assert pool.stats().backend == "local"
    async with ScorerPool(lambda scale: Model(scale).score, factory=True, init_args=(3.0,)) as pool:
        assert await pool(["a"]) == [3.0]


async def test_a_buffer_gives_what_the_scorer_takes_and_takes_columns_back() -> None:
    async with ScorerPool(Model, method="columns", actors=3) as pool, pool.buffer(max_batch_size=2) as buffer:
        answer: Any = await buffer.add_query({"query": ["a", "bb", "ccc"], "metadata": [{"reward": at} for at in (5, 6, 7)]})
        assert answer.rewards == [5.0, 6.0, 7.0]
        assert answer.metas == [{"length": 1}, {"length": 2}, {"length": 3}]
    async with ScorerPool(Model, method="score") as pool, pool.buffer() as buffer:  # of completions alone
        answer = await buffer.add_query({"query": "abc", "metadata": {"x": 1}})
        assert answer.reward == 3.0


async def test_a_queue_and_a_buffer_send_as_many_batches_at_once_as_the_actors_take() -> None:
    meet = asyncio.Barrier(4)

    async def scorer(items: list[str]) -> list[float]:
        await meet.wait()
        return [float(len(item)) for item in items]

    async with ScorerPool(scorer, actors=2, max_concurrent_batches=2) as pool, asyncio.timeout(30):
        async with pool.queue(max_batch_size=1) as queue:
            assert await asyncio.gather(*map(queue.submit, ["a", "bb", "ccc", "dddd"])) == [1, 2, 3, 4]
        async with pool.buffer(max_batch_size=1) as buffer:
            assert [one.reward for one in await buffer.score(["a", "bb", "ccc", "dddd"])] == [1, 2, 3, 4]


async def test_errors_reach_their_own_callers_as_they_were_raised() -> None:
    bad = KeyError("one")

    def scorer(items: list[str]) -> list[Any]:
        if "all" in items:
            raise SystemExit(3)
        return [bad if item == "one" else item for item in items]

    async with ScorerPool(scorer) as pool, pool.queue() as queue:
        outcomes = await asyncio.gather(*map(queue.submit, ["a", "one", "b"]), return_exceptions=True)
        assert outcomes == ["a", bad, "b"]
        with pytest.raises(RuntimeError, match="the scorer raised SystemExit: 3"):
            await queue.submit("all")


async def test_an_awaited_scorer_runs_in_the_loop_of_the_pool_and_is_cancelled_with_its_caller() -> None:
    seen: list[Any] = []

    async def scorer(items: list[str]) -> list[str]:
        seen.append(asyncio.get_running_loop())
        try:
            await asyncio.sleep(3600 if "wait" in items else 0)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return items

    async with ScorerPool(scorer, batch_timeout=1.0) as pool:
        assert await pool(["a"]) == ["a"]
        with pytest.raises(RequestTimeout):
            await pool(["wait"])
        assert await pool(["b"]) == ["b"]
    loop = seen[0]
    assert seen == [loop, loop, "cancelled", loop]
    assert loop is not asyncio.get_running_loop()


async def test_close_asks_the_scorers_to_put_away_what_they_have() -> None:
    closed: list[Any] = []

    class Tidy(Model):
        def close(self) -> None:
            closed.append("closed")

    class TidyLater(Model):
        async def close(self) -> None:
            await asyncio.sleep(0)
            closed.append("closed later")

    async with ScorerPool(Tidy, method="score", actors=2) as pool:
        await pool(["a"])
        await until(lambda: pool.stats().ready == 2)
    async with ScorerPool(TidyLater, method="score") as pool:
        await pool(["a"])
    assert closed == ["closed", "closed", "closed later"]


def test_a_pool_that_is_let_go_of_ends_its_thread() -> None:
    async def main() -> None:
        await ScorerPool(echo)(["a"])

    asyncio.run(main())
    gc.collect()
    asyncio.run(until(lambda: not any(thread.name == "qreward-scorer-pool" for thread in threading.enumerate())))


SCRIPT = """
import asyncio, os, sys, threading
from qreward.integrations.ray import ScorerPool

def score(texts):
    if "hang" in texts:
        threading.Event().wait()
    return [len(text) for text in texts]

async def hang():
    await asyncio.wait([asyncio.ensure_future(pool(["hang"]))], timeout=0.05)

pool = ScorerPool(score, actors=2)
assert asyncio.run(pool(["a"])) == [1]
if (child := os.fork()) == 0:
    print(asyncio.run(pool(["aa"])), flush=True)
    sys.exit()
os.waitpid(child, 0)
print(asyncio.run(pool(["aaa"])))
asyncio.run(hang())
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_pool_works_in_a_forked_child_and_keeps_no_process_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["[2]", "[3]"], "")


def test_a_pool_is_pickled_by_what_it_is_made_of() -> None:
    pool = ScorerPool(Model, actors=3, method="score", init_args=(2.0,), num_gpus=1)
    again = pickle.loads(pickle.dumps(pool))
    assert (again.slots, again._spec, again._config, again.stats()) == (3, pool._spec, pool._config, PoolStats())
    assert repr(pool) == "ScorerPool(Model.score: 0 of 3 actors ready, 0 batches in flight)"


def test_a_wrong_setting_is_refused_at_once() -> None:
    table: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"actors": 0}, ConfigError, "actors must be an integer >= 1, got 0"),
        ({"max_concurrent_batches": 1.5}, TypeError, "max_concurrent_batches must be an integer"),
        ({"batch_timeout": 0}, ConfigError, "batch_timeout must be a positive number of seconds or None"),
        ({"start_timeout": "1"}, TypeError, "start_timeout must be a number of seconds"),
        ({"max_restarts": -1}, ConfigError, "max_restarts must be an integer >= 0"),
        ({"backend": "dask"}, ConfigError, "backend must be one of 'auto', 'ray', 'local', not 'dask'"),
        ({"ray_options": {"max_concurrency": 3}}, ConfigError, "max_concurrency cannot be set in ray_options"),
        ({"init_args": (1,)}, TypeError, "init_args and init_kwargs are for a class"),
        ({"method": "scores"}, TypeError, "echo.scores cannot be called"),
    ]
    wrong = []
    for given, kind, says in table:
        try:
            found: Any = ScorerPool(echo, **given)
        except (ConfigError, TypeError) as error:
            found = error
        if not (isinstance(found, kind) and says in str(found)):
            wrong.append((given, found))
    assert wrong == []


@each("returned", [None, 1.0, "ab", [1.0], [1.0] * 3])
async def test_what_is_not_one_result_for_each_item_is_an_error_and_no_part_of_the_batch_is_tried(returned: Any) -> None:
    batches: list[list[str]] = []

    def scorer(texts: list[str]) -> Any:
        batches.append(texts)
        return returned

    async with ScorerPool(scorer) as pool, pool.buffer() as buffer:
        with pytest.raises(InvalidResponse):
            await pool(["a", "b"])
        assert [one.reward for one in await buffer.score(["a", "b"])] == [None, None]
        with pytest.raises(ConfigError, match=r"of equal length; got lengths \[1, 2\]"):
            await pool(["a"], [{}, {}])
    assert batches == [["a", "b"]] * 2


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'qreward\[ray\]'"):
        ScorerPool(echo, backend="ray")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'qreward\[ray\]'"):
        deployment(echo)
