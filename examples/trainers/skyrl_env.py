"""A judge rewards the steps of an environment of SkyRL-Gym: a right and a wrong answer, and a step without a judge, which fails.

Run it: ``python examples/trainers/skyrl_env.py``, after ``pip install skyrl-gym``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import skyrl_gym

from qreward import QRewardError
from qreward.integrations.skyrl import QRewardEnv
from qreward.testing import FakeEndpoint, FakeFleet, Faults

skyrl_gym.register(id="qreward", entry_point="qreward.integrations.skyrl:QRewardEnv")


def episode(answer: str) -> float:
    """Return the reward of an episode, as SkyRL's generator runs one."""
    env = skyrl_gym.make("qreward", env_config={}, extras={"reward_spec": {"ground_truth": "4"}})
    env.init([{"role": "user", "content": "What is 2 + 2?"}])
    return env.step(answer)["reward"]


def main() -> None:
    with FakeFleet([FakeEndpoint("gpu-0", responder="judge")]) as fleet, ThreadPoolExecutor(32) as threads:
        client = {"endpoints": [{"base_url": url} for url in fleet.urls.values()]}
        QRewardEnv.settings = {"client": client, "judge": {"model": "judge-7b", "scale": [0, 1]}, "deadline": 2}
        print(list(threads.map(episode, ["4", "5", "four"])))
        fleet.set("gpu-0", faults=Faults(error_500=1.0))
        try:
            print(episode("4"))
        except QRewardError:
            print("no judge answers: no reward")


if __name__ == "__main__":
    main()
