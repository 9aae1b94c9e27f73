"""``@batch``: each caller passes one item, and the function receives lists, which grow with the load.

Run it: ``python examples/batch_decorator.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from qreward import batch


class RewardModel:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    @batch(max_batch_size=32)
    async def score(self, prompts: list[str], answers: list[str]) -> list[float | Exception]:
        self.sizes.append(len(prompts))
        await asyncio.sleep(0.02)
        return [self.reward(*pair) for pair in zip(prompts, answers, strict=True)]

    @batch
    async def explain(self, answers: list[str]) -> AsyncIterator[list[str]]:
        for step in ("read", "compared", "scored"):
            yield [f"{step} {answer}" for answer in answers]

    def reward(self, prompt: str, answer: str) -> float | Exception:
        if not answer:
            return ValueError(f"no answer to {prompt!r}")  # in the list: raised for this caller alone
        return float(answer == str(eval(prompt)))  # noqa: S307 - of our own sums


async def main() -> None:
    model = RewardModel()
    print("one call:", await model.score("6 * 7", "42"), "in batches of", model.sizes)

    model.sizes.clear()
    rewards = await asyncio.gather(*(model.score(f"{n} * 2", str(n * 2 - n % 2)) for n in range(100)))
    print(f"100 at once: mean reward {sum(map(float, rewards)) / 100}, in batches of {model.sizes}")

    good, bad = await asyncio.gather(model.score("1 + 1", "2"), model.score("1 + 2", ""), return_exceptions=True)
    print(f"a bad neighbour: {good} and {bad!r}")

    streams = [model.explain(answer) for answer in ("42", "43")]
    print("streams:", [[step async for step in stream] for stream in streams])

    stats = model.score.stats()
    print(f"{stats.items} items in {stats.batches} batches")
    await model.score.close()


if __name__ == "__main__":
    asyncio.run(main())
