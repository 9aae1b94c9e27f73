"""A scorer runs on Ray actors or, without Ray, in this process. On Ray, one item ends its actor's process, and no other item is lost.

Run it: ``python examples/ray_scorer.py``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time

from qreward.integrations.ray import ScorerPool


class RewardModel:
    def __init__(self, scale: float) -> None:
        self.scale = scale  # load weights here: this runs once in each actor

    def __call__(self, answers: list[str]) -> list[float | Exception]:
        time.sleep(0.02)
        if "segmentation fault" in answers and "RAY_RAYLET_PID" in os.environ:  # only on Ray
            os.kill(os.getpid(), signal.SIGKILL)
        return [len(answer) * self.scale if answer else ValueError("no answer") for answer in answers]


async def main(backend: str) -> None:
    async with ScorerPool(RewardModel, init_args=(0.5,), actors=2, num_cpus=0.5) as pool, pool.queue(max_batch_size=32) as queue:
        rewards = await asyncio.gather(*(queue.submit("x" * length) for length in range(1, 201)))
        print(f"{backend}: {len(rewards)} rewards, the last {rewards[-1]}, in {queue.stats().batches} batches")

        answers = ["fine", "", "segmentation fault", "fine, too"]
        outcomes = await asyncio.gather(*map(queue.submit, answers), return_exceptions=True)
        for answer, outcome in zip(answers, outcomes, strict=True):
            shown = f"{type(outcome).__name__}: {str(outcome)[:60]}" if isinstance(outcome, Exception) else outcome
            print(f"  {answer!r}: {shown}")
        print(f"  {pool.stats().deaths} deaths, {pool.stats().ready + pool.stats().starting} actors")


if __name__ == "__main__":
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed (pip install 'qreward[ray]'), so the scorers are in this process.")
        asyncio.run(main("local"))
    else:
        import ray

        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False, logging_level="ERROR")
        try:
            asyncio.run(main("ray"))
        finally:
            ray.shutdown()
