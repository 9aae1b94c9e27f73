"""A plugin of ms-swift that adds a judge to its reward functions. Run as a program, it judges a batch as ms-swift does.

In a training: ``QREWARD_REWARD=reward.yaml swift rlhf --external_plugins examples/trainers/ms_swift_plugin.py --reward_funcs qreward ...``.
Run it: ``python examples/trainers/ms_swift_plugin.py``, after ``pip install ms-swift``.
"""

from __future__ import annotations

from swift.rewards import orms

from qreward.integrations.ms_swift import QRewardORM

orms["qreward"] = QRewardORM


def main() -> None:
    from swift.rl_core.data import GRPOSample  # noqa: PLC0415 - only the program needs it
    from swift.rl_core.grpo_algorithm import compute_rewards_per_func  # noqa: PLC0415

    from qreward.testing import FakeEndpoint, FakeFleet  # noqa: PLC0415

    samples = [
        GRPOSample.from_row(
            {
                "messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": answer}],
                "solution": "4",
            }
        )
        for answer in ("4", "5", "four")
    ]
    with FakeFleet([FakeEndpoint("gpu-0", responder="judge")]) as fleet:
        endpoints = [{"base_url": url} for url in fleet.urls.values()]
        QRewardORM.settings = {"client": {"endpoints": endpoints}, "judge": {"model": "judge-7b", "scale": [0, 1]}}
        print(compute_rewards_per_func(samples, [orms["qreward"]()], [None], device="cpu").flatten().tolist())


if __name__ == "__main__":
    main()
