"""The examples of judges are run as a reader would run them, and each warning is an error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("judge_score", "judge_compare", "judge_rubric", "judge_rank", "judge_cascade", "judge_calibration")
ALL = f"import runpy\nfor name in {NAMES}:\n    runpy.run_path(f'{{name}}.py', run_name='__main__')"


def test_the_examples_print_what_they_say_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", ALL], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    asked, mean, one, first, second, neither, *others = done.stdout.splitlines()
    assert (asked, mean) == ("40 of 40 judged by 2 models in 32 requests", "mean reward 0.60")
    assert one.startswith("one item: 1.0 because of 'same ")
    assert "'7' or 'One of the primes is 7.': first" in first
    assert "'It is 11, I think.' or '11': second" in second
    assert "'13' or '17': tie" in neither
    begin = next(number for number, line in enumerate(others) if line.startswith("platt, "))
    by_rubric, (few, many, cascade), calibration = others[: begin - 3], others[begin - 3 : begin], others[begin:]
    assert re.fullmatch(r"0\.\d\d, confidence 0\.\d\d", by_rubric[0])
    assert [line.split()[0] for line in by_rubric[1:-1]] == ["right", "clear", "tone", "padded", "safe"]
    assert by_rubric[-1].startswith("40 of 40 judged by 5 criteria in 16 requests; ")
    assert "3 pairs; best: 99, " in few
    assert "34 pairs; best: 1000, ahead of the average in 9" in many
    assert cascade == "decided by {'small': 15, 'strong': 5}; 25% escalated; mean 1.00"
    as_it_is, calibrated = (int(re.findall(r"(\d+)% are good", line)[0]) for line in calibration[3:5])
    assert as_it_is < 40
    assert 60 <= calibrated <= 80
    assert calibration[-1].startswith("Krippendorff's alpha of all judges: 0.")
