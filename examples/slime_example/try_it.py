"""The judge of ``reward.yaml`` on fake endpoints, called as slime calls it; without slime, a GPU or a network.

Run it: ``python examples/slime_example/try_it.py``.

The addresses are those of the fake endpoints, and one question fails. All other settings are those of the YAML file.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qreward.integrations.slime import group_reward, normalize_rewards, reward
from qreward.settings.files import read_settings
from qreward.testing import FakeEndpoint, FakeFleet, Latency
from qreward.testing.responders import judge

HERE = Path(__file__).parent


@dataclass
class Sample:
    """As slime's own, in what a reward function sees."""

    response: str
    label: str
    metadata: dict[str, Any]
    prompt: str = "<|user|>...<|assistant|>"
    group_index: int = 0
    remove_sample: bool = False
    reward: float = 0.0

    def get_reward_value(self, args: Any) -> float:  # noqa: ARG002 - slime's signature
        return self.reward


def weak_judge(messages: list[Any]) -> str:
    """Breaks whenever it sees 21."""
    if "21\n" in messages[-1]["content"]:
        raise ValueError("21")
    return judge(messages)


async def main() -> None:
    os.environ.setdefault("JUDGE_KEY", "not-secret")
    samples = [Sample(str(n * 7 + n % 2), str(n * 7), {"question": f"What is {n} times 7?"}) for n in range(4)]
    samples[3].response = "21"
    async with FakeFleet([FakeEndpoint(name, responder=weak_judge, latency=Latency(base=0.05)) for name in ("gpu-0", "hosted")]) as fleet:
        settings, _ = read_settings(HERE / "reward.yaml", empty="")
        settings |= {"client": {"endpoints": [{"base_url": url} for url in fleet.urls.values()]}, "deadline": 2}
        args = SimpleNamespace(
            qreward_config=settings, advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False
        )
        for sample, given in zip(samples, await asyncio.gather(*(reward(args, sample) for sample in samples)), strict=True):
            sample.reward = given
            print(f"{sample.response:>2} for {sample.label:>2}: {'removed' if sample.remove_sample else given}")
        print("normalised:", [round(value, 2) for value in normalize_rewards(args, samples)[1]])
        print("as a group:", [round(value, 2) for value in await group_reward(args, samples)])


if __name__ == "__main__":
    asyncio.run(main())
