"""The examples of judges are run as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALL = "import runpy\nfor name in ('judge_llm.py', 'judge_pairs.py', 'judge_rubric.py'):\n    runpy.run_path(name, run_name='__main__')"


def test_the_examples_print_what_they_say_and_nothing_else_although_each_warning_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", ALL], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    asked, mean, one, first, second, neither, *by_rubric = done.stdout.splitlines()
    assert (asked, mean) == ("40 of 40 judged by 2 models in 32 requests", "mean reward 0.60")
    assert one.startswith("one more: 1.0 because of 'same ")
    assert one.endswith("by judge-7b, judge-70b")
    assert "'7' or 'One of the primes is 7.': first" in first
    assert "'It is 11, I think.' or '11': second" in second
    assert "'13' or '17': tie" in neither
    assert re.fullmatch(r"0\.\d\d, confidence 0\.\d\d", by_rubric[0])
    assert [line.split()[0] for line in by_rubric[1:-1]] == ["right", "clear", "tone", "padded", "safe"]
    assert by_rubric[-1].startswith("40 of 40 judged by 5 criteria in 16 requests; ")
