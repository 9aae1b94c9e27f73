"""A verifier as an HTTP reward server: requests are scored in batches, and a completion without a score is an error.

Run it: ``python examples/reward_server.py``.
"""

from __future__ import annotations

import asyncio
import re
import time
from fractions import Fraction
from typing import Any

import httpx

from qreward.server import RewardServer

BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
SIZES: list[int] = []


def score(completions: list[str], metadata: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """0.2 for exactly one boxed answer, 0.7 for the right one (0.3 for a wrong sign), 0.1 for a short text."""
    SIZES.append(len(completions))
    time.sleep(0.05)  # meanwhile the next batch fills
    return [judge(completion, Fraction(meta["label"])) for completion, meta in zip(completions, metadata, strict=True)]


def judge(completion: str, truth: Fraction) -> dict[str, Any]:
    answers = BOXED.findall(completion)
    if not answers:
        return {"reward": 0.0, "boxed": 0, "right": 0}
    try:
        answer = Fraction(answers[-1])
    except ValueError:
        return {"error": f"{answers[-1]!r} is no number"}  # an error, and not a wrong reward
    worth = 0.7 if answer == truth else 0.3 if answer == -truth else 0.0
    reward = 0.2 * (len(answers) == 1) + worth + 0.1 * (len(completion) < 200)
    return {"reward": round(reward, 2), "boxed": len(answers), "right": int(answer == truth)}


async def main() -> None:
    async with RewardServer(score, port=0, max_batch_size=32) as server, httpx.AsyncClient(base_url=server.url) as trainer:
        rollouts = [f"{n} halves make \\boxed{{{'-' * (n % 3 == 1)}{n}/2}}" for n in range(1, 13)] + ["I do not know."]
        labels = [f"{n}/2" for n in range(1, 13)] + ["1"]

        requests = [{"query": [text], "prompts": ["?"], "labels": [label]} for text, label in zip(rollouts, labels, strict=True)]
        answers = await asyncio.gather(*(trainer.post("/get_reward", json=request) for request in requests))
        print("rewards:", [answer.json()["rewards"][0] for answer in answers])
        print(f"{sum(SIZES)} completions, fewer calls of the scorer: {len(SIZES) < len(answers)}")

        body = {"query": ["so \\boxed{1/2}", "so \\boxed{one half}"], "metadata": [{"label": "1/2"}] * 2}
        answer = (await trainer.post("/get_reward", json=body)).json()
        print("one without a score:", answer["rewards"], answer["errors"][1])


if __name__ == "__main__":
    asyncio.run(main())
