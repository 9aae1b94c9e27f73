"""The judge of ``rlvr_llm_judge.yaml`` on fake endpoints, as a reward worker of ROLL uses it; without ROLL, a GPU or a network.

Run it: ``python examples/roll_example/try_it.py``.

The addresses are those of the fake endpoints, one of which fails now and then. All other settings are those of the two YAML files.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import yaml

from qreward.integrations.roll import ADAPTER, RewardUnavailable, judge_rows, rows_of, settings_of
from qreward.integrations.trainers import RewardConfig
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

HERE = Path(__file__).parent
FLEET = (
    FakeEndpoint("gpu-0", responder="judge", latency=Latency(base=0.05)),
    FakeEndpoint("gpu-1", responder="judge", latency=Latency(base=0.05), faults=Faults(error_500=0.1)),
)


def settings(fleet: FakeFleet, **more: object) -> RewardConfig:
    """As the worker reads them from the yaml's section and its file, but for the addresses."""
    section = yaml.safe_load((HERE / "rlvr_llm_judge.yaml").read_text(encoding="utf-8"))["rewards"]["llm_judge"]
    section["system_envs"] = {"QREWARD_REWARD": str(HERE / "reward.yaml")}
    section["reward_manager_config"] += [{"client": {"endpoints": [{"base_url": url} for url in fleet.urls.values()]}, **more}]
    return settings_of(SimpleNamespace(**section), {})


async def main() -> None:
    os.environ.setdefault("JUDGE_KEY", "not-secret")
    asked = [[{"role": "user", "content": f"What is {n} times 7?"}] for n in range(64)]
    rows = rows_of({"messages": asked, "ground_truth": [str(n * 7) for n in range(64)]}, [""] * 64, [str(n * 7 + n % 2) for n in range(64)])
    async with FakeFleet(FLEET) as fleet:
        config = settings(fleet)
        rewards, metrics = await judge_rows(ADAPTER.rewarder(config), rows)
        print(f"{len(rewards)} responses: mean reward {fmean(rewards):.2f}, judged {fmean(metrics['judge/ok']):.0%}")
        for name in fleet.names:
            fleet.set(name, faults=Faults(error_500=1.0))
        for choice in ({}, {"on_failure": -1}):
            config = settings(fleet, deadline=1, **choice)
            try:
                rewards, _ = await judge_rows(ADAPTER.rewarder(config), rows[:2])
                print("a dead fleet:", rewards)
            except RewardUnavailable as error:
                print("a dead fleet:", str(error).partition(";")[0])


if __name__ == "__main__":
    asyncio.run(main())
