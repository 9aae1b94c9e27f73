"""The judge of ``reward.yaml`` on a fake endpoint, called as GRPOTrainer calls it; without TRL, a GPU or a network.

Run it: ``python examples/trl_example/try_it.py``.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from brevity import brevity

from qreward.integrations.trl import combined, reward
from qreward.testing import FakeEndpoint, FakeFleet, Faults

HERE = Path(__file__).parent
GROUP = ["42", "It is 41.", "42.0", "forty-two, or 42, as everybody knows"]


def called(function: Any, metrics: dict[str, float]) -> Any:
    """A group of completions of one prompt, with the dataset's column and a handle of the trainer's."""
    prompts = [[{"role": "user", "content": "What is 6 * 7?"}]] * len(GROUP)
    completions = [[{"role": "assistant", "content": text}] for text in GROUP]
    columns: dict[str, Any] = {"solution": ["42"] * len(GROUP), "log_metric": metrics.__setitem__}
    return asyncio.run(function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(GROUP), **columns))


def rounded(rewards: Any) -> list[float | None]:
    return [None if value is None else round(value, 2) for value in rewards]


def main() -> None:
    faults = Faults(error_500=0.05, error_503=0.05)
    with FakeFleet([FakeEndpoint("judge", models=["judge-*"], responder="judge", api_key="not-secret", faults=faults)]) as fleet:
        os.environ |= {"JUDGE_URL": fleet.urls["judge"], "JUDGE_KEY": "not-secret"}
        metrics: dict[str, float] = {}
        judged = reward(HERE / "reward.yaml", name="correctness")
        print("the judge alone:", rounded(called(judged, metrics)))
        print("with brevity:", rounded(called(combined(judged, brevity, weights=[1.0, 0.1]), metrics)))
        print("logged:", ", ".join(sorted(metrics)))
        fleet.kill("judge")
        hasty = reward(HERE / "reward.yaml", name="correctness", deadline=1.0)
        print("no judge is there:", rounded(called(hasty, metrics)))
        print("with brevity:", rounded(called(combined(hasty, brevity, weights=[1.0, 0.1]), metrics)))


if __name__ == "__main__":
    main()
