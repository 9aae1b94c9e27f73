"""The examples of ``@schedule`` run as a reader would run them, and show what they say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "sync": ["one call: 0.9", "40 scores, 41 calls, never more than 4 at once", "a method: 1.9", "in a loop: 5.4"],
    "debug": ["failed after", "ConnectionError", "waits for the rate limit", "retry 1 of 3", "scores: [1.0, 1.0]"],
    "timeout": ["done in time", "the function was cancelled", "did not end within its timeout of 0.2 s"],
    "limit": ["three windows of five for each of 2 keys", "key-a: at most 5 calls", "key-b: at most 5 calls"],
    "retry": ["score: 0.8", "150 ms: True; 2 retries", "could not convert string to float: 'no number'; 1 try"],
    "default_value": ["1.0 None", "-4.5", "a mistake of the program is not hidden"],
    "hedged_request": ["try 0 lost, and was cancelled", "try 1 won", "a blocking function: True"],
    "circuit_breaker": [
        "'CircuitOpen', 'CircuitOpen', 'CircuitOpen']",
        "asked 3 times; judge-a is not affected: 2.0",
        "2.0 2.0",
        "open circuits: 0",
    ],
    "adaptive_limit": ["600 results, none lost", "came down from 32"],
    "metrics_callback": ["{'ok': 1, 'failed': 2, 'timeout': 1, 'circuit_open': 1}"],
    "priority": ["bulk 0\nbulk 1\nURGENT 0\nURGENT 1\nbulk 2"],
    "telemetry": ["judge', 'error.type': 'ConnectionError'} 1 calls", "judge'} 2 calls", "parse'} 1 calls"],
    "config_hot_reload": [
        """at most 5 at once: timeout=30.0 max_concurrency=5
at most 20 at once: timeout=30.0 retry_times=3 max_concurrency=20
refused: max_concurrency: 0 does not switch it off; use None to switch it off
at most 20 at once: timeout=30.0 retry_times=3 max_concurrency=20
at most 2 at once: timeout=30.0 max_concurrency=2
"""
    ],
    "combined": ["300 scores", "at most 4 at once from now on: 0.8"],
}
SETTING_UP_LOGGING = {"debug", "config_hot_reload"}


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
