"""A judge rewards groups of trajectories of ART. One question breaks the judge: its trajectory leaves the group and gets no reward.

Run it: ``python examples/trainers/art_groups.py``, after ``pip install openpipe-art``. Fixed answers stand in for the model.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import art

from qreward.integrations.art import score_group
from qreward.testing import FakeEndpoint, FakeFleet
from qreward.testing.responders import judge


def weak_judge(messages: list[Any]) -> str:
    """Break at the answer 13."""
    if "13\n" in messages[-1]["content"]:
        raise ValueError("13")
    return judge(messages)


async def rollout(question: int, answer: int) -> art.Trajectory:
    messages = [{"role": "user", "content": f"What is {question} + {question}?"}, {"role": "assistant", "content": str(answer)}]
    return art.Trajectory(messages_and_choices=messages, metadata={"answer": str(2 * question)})


async def main() -> None:
    async with FakeFleet([FakeEndpoint("gpu-0", responder=weak_judge)]) as fleet:
        client = {"endpoints": [{"base_url": url} for url in fleet.urls.values()]}
        settings = {"client": client, "judge": {"model": "judge-7b", "scale": [0, 1]}, "deadline": 2}
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(question, 2 * question + wrong) for wrong in (0, 1, 0)) for question in (2, 6, 10)),
            after_each=partial(score_group, settings=settings),
            pbar_desc=None,
        )
    for group in groups:
        rewards = sorted(trajectory.reward for trajectory in group)
        print(f"{group.trajectories[0].metadata['answer']:>2}: {rewards}, {len(group.exceptions)} without a reward")


if __name__ == "__main__":
    asyncio.run(main())
