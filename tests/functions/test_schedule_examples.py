"""The examples of ``@schedule`` run as a reader would run them, and show what they say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "adaptive_limit": ["600 of 600 calls returned a result", "came down from 32"],
    "circuit_breaker": [
        "'CircuitOpen', 'CircuitOpen', 'CircuitOpen']",
        "called 3 times; judge-a is not affected: 2.0",
        "2.0 2.0",
        "open circuits: 0",
    ],
    "combined": ["300 scores", "after the update: a score of 0.8, at most 4 calls at once"],
    "default": ["42.0 None", "-4.5", "not one of exception_types: could not convert"],
    "hedge": ["try 0 was cancelled", "try 1 returned", "a blocking function: try"],
    "limit": ["three windows of five for each of 2 keys", "key-a: at most 5 calls", "key-b: at most 5 calls"],
    "metrics": ["ok: 1 tries, 0 retries", "{'None': 1, 'ConnectionError': 2, 'timeout': 1, 'circuit_open': 1}"],
    "priority": ["batch 0, batch 1, urgent 0, urgent 1, batch 2, "],
    "reload": [
        """at most 5 at once: timeout=30.0 max_concurrency=5
at most 20 at once: timeout=30.0 retry_times=3 max_concurrency=20
invalid: max_concurrency: 0 does not switch it off; use None to switch it off
at most 20 at once: timeout=30.0 retry_times=3 max_concurrency=20
at most 2 at once: timeout=30.0 max_concurrency=2
"""
    ],
    "retry": [
        "try 1 failed after",
        "retry 1 of 4",
        "score 0.8 after 2 retries",
        "not retried: could not convert string to float: 'no number'; 1 try",
    ],
    "sync": ["one call: 0.9", "a method: 1.9", "in a loop: 4", "40 scores, at most 4 calls at once"],
    "timeout": ["async: done in time", "the coroutine was cancelled", "did not end within its timeout of 0.2 s"],
}
SETTING_UP_LOGGING = {"reload", "retry"}


def test_there_is_an_example_for_each_part() -> None:
    assert {path.stem.removeprefix("schedule_") for path in EXAMPLES.glob("schedule_*.py")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(EXAMPLES)
    script = f"schedule_{name}.py"
    if name in SETTING_UP_LOGGING:  # which is not for this process
        subprocess.run([sys.executable, "-W", "error", script], timeout=60, check=True)
    else:
        runpy.run_path(script, run_name="__main__")
    shown = capfd.readouterr()
    assert [words for words in SHOWN[name] if words not in shown.out] == [], shown.out
    assert shown.err == ""
