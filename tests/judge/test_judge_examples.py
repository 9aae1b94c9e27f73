"""The examples of judges are run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def lines_of(name: str, **variables: str) -> list[str]:
    """What an example prints; it must end well and say nothing else, although each warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", name],
        cwd=EXAMPLES,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_the_llm_judge_asks_two_models_and_equal_rollouts_once() -> None:
    asked, mean, one = lines_of("judge_llm.py")
    assert asked == "40 of 40 judged by 2 models in 32 requests"
    assert mean == "mean reward 0.60"
    assert one.startswith("one more: 1.0 because of 'same ")
    assert one.endswith("by judge-7b, judge-70b")


def test_the_pairs_show_what_is_better_in_both_orders_and_find_out_a_judge_that_likes_a_place() -> None:
    first, second, neither = lines_of("judge_pairs.py")
    assert "'7' or 'One of the primes is 7.': first" in first
    assert "'It is 11, I think.' or '11': second" in second
    assert "'13' or '17': tie" in neither
