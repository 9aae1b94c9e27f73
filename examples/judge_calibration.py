"""Calibrate a judge with labelled items, apply the calibration, and measure the agreement of two judges.

Run it: ``python examples/judge_calibration.py``.
It needs ``pip install 'qreward[calibration]'``.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from random import Random

from connect import connect

from qreward.judge import Calibration, Judge, YesNoVerdict, agreement, calibrate
from qreward.testing import FakeEndpoint, SyntheticJudge

# The first judge is too sure of itself and says yes too often. Both judges read in the text how good a response is.
FLEET = tuple(
    FakeEndpoint(name, models=[name], decisions=True, synthetic_judge=judge)
    for name, judge in {
        "hasty": SyntheticJudge(noise=0.6, temperature=0.4, bias=1.5),
        "sober": SyntheticJudge(noise=0.5, seed=1),
    }.items()
)
RNG = Random(0)  # noqa: S311 - for test data, not secrets


def item(number: int) -> dict[str, object]:
    good = RNG.random() < 0.5
    return {"prompt": f"Question {number}?", "response": f"Answer {number}.\ntruth={int(good)}", "label": good}


async def main() -> None:
    gold, fresh = [item(number) for number in range(300)], [item(number) for number in range(300, 1300)]
    labels = [each.pop("label") for each in fresh]
    path = Path(tempfile.mkdtemp()) / "calibration.json"
    async with connect(*FLEET) as client:
        hasty, sober = (Judge(client, model=name, verdict=YesNoVerdict, method="decide") for name in ("hasty", "sober"))
        (await calibrate(hasty, gold, timeout=60)).save(path)
        print(Calibration.load(path))
        calibrated = Judge(client, model="hasty", verdict=YesNoVerdict, method="decide", calibration=path)
        for name, judge in {"as it is": hasty, "calibrated": calibrated}.items():
            scores = (await judge.batch_score(fresh, timeout=60)).scores()
            said = [label for score, label in zip(scores, labels, strict=True) if 0.6 <= score < 0.8]
            print(f"{name}: of {len(said)} responses with a score of 0.6 to 0.8, {sum(said) / len(said):.0%} are good")
        print(await agreement({"hasty": hasty, "sober": sober}, fresh, timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
