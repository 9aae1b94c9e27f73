"""The judge of ``reward.yaml`` on a fake endpoint, called as verl calls it; without verl, a GPU or a network.

Run it: ``python examples/verl_example/try_it.py``.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path
from typing import Any

from qreward.testing import FakeEndpoint, FakeFleet, Faults

HERE = Path(__file__).parent
SAMPLES = [
    ("What is 6 * 7?", "42", "42.0"),
    ("What is 6 * 7?", "42", "It is 41."),
    ("What is the capital of France?", "Paris", "paris"),
    ("What is 1 / 2?", "1/2", "0.5"),
]


def sample(question: str, reference: str, response: str) -> dict[str, Any]:
    """As verl calls the function, for data of its own examples."""
    return {"data_source": "demo", "solution_str": response, "ground_truth": reference, "extra_info": {"question": question, "index": 0}}


async def rewards(**reward_kwargs: Any) -> list[Any]:
    compute_score = importlib.import_module("qreward.integrations.verl").compute_score  # what pkg://qreward.integrations.verl means
    calls = [compute_score(**sample(*each), **reward_kwargs) for each in SAMPLES * 8]
    return await asyncio.gather(*calls, return_exceptions=True)


def show(title: str, results: list[Any]) -> None:
    found = [result for result in results if isinstance(result, dict)]
    print(f"{title}: {len(found)} of {len(results)} with the keys {', '.join(found[0])}" if found else f"{title}: {results[0]!r}"[:120])
    if found:
        print(f"  scores {[result['score'] for result in found[:4]]}, judge_ok {sum(result['judge_ok'] for result in found):.0f}")


def main() -> None:
    faults = Faults(error_500=0.05, error_503=0.05)
    with FakeFleet([FakeEndpoint("judge", models=["judge-*"], responder="judge", api_key="not-secret", faults=faults)]) as fleet:
        os.environ |= {"JUDGE_URL": fleet.urls["judge"], "JUDGE_KEY": "not-secret"}
        config = str(HERE / "reward.yaml")
        show("a tenth of the requests fails", asyncio.run(rewards(config=config)))
        fleet.kill("judge")
        show("no judge is there", asyncio.run(rewards(config=config, deadline=1.0)))
        show("and on_failure is -1", asyncio.run(rewards(config=config, deadline=1.0, on_failure=-1.0)))


if __name__ == "__main__":
    main()
