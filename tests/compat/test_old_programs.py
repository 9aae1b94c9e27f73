"""The examples of QReward 0.1.7, written anew in ``programs/``, run unchanged: same imports, same parameters, same results.

Each line was printed by 0.1.7 too, but for the count of failures in ``schedule_metrics_callback``, which 0.1.7 counted twice.
"""

from __future__ import annotations

import ast
import runpy
import warnings
from collections import Counter
from pathlib import Path

import pytest

from qreward.testing import FakeEndpoint, FakeFleet

PROGRAMS = Path(__file__).parent / "programs"
ECHO = '{"echo":"6955410a7dc6695f"}'
STREAM = '{"echo":"6579e0ff86b6983b"}'
COUNT = '[0, 1, 2, 3, 4] {"echo":"01800906bf86f85d"}'

PRINTED = {
    "batch_call": ['12 12 {"echo":"053c029c82d156a5"}', "2 [[True, True], [True, True]]", "True", "12", "[None, None]"],
    "client_batch_streaming": [COUNT, COUNT, COUNT, "[] [0, 1, 2, 3, 4]"],
    "client_load_balancer": [
        "['east', 'west', 'north', 'east', 'west', 'north']",
        "['west', 'north'] ['north', 'north', 'west', 'west']",
        "['east', 'west', 'north']",
        "6 2",
        "['a', 'b'] True False",
        "no healthy proxy",
    ],
    "client_model_router": [
        "gpt-4 ('gpt-4', ['premium', 'other'])",
        "gpt-3.5-turbo ('gpt-*', ['standard'])",
        "llama-3 None",
        "6 2",
        "{'other'} other",
        "['other', 'premium']",
        "gpt-4 round_robin 1 1 ['gpt4-svc']",
        "deepseek-* round_robin 1 1 ['ds-svc']",
        "['default'] True",
    ],
    "client_streaming": [STREAM, f"True {STREAM}"],
    "schedule_adaptive_limit": ["True", "5 15"],
    "schedule_circuit_breaker": ["fallback", "fallback", "fallback", "blocked", "blocked", "success 99"],
    "schedule_combined": [
        "10 10 True",
        "['critical-0', 'batch-1', 'batch_fallback']",
        "['hedged-0', 'hedged-1', 'hedged-2']",
        "True True True",
    ],
    "schedule_config_hot_reload": ["changed: True 5", "True 5 5", "True 10", "True True 200 3", "True True 500 3", "True True 8"],
    "schedule_debug": ["6"],
    "schedule_default_value": ["[0, None, 5, 0, 0] [5]"],
    "schedule_hedged_request": ["7 2", "True"],
    "schedule_limit": ["two in a window: True", "four at once, in two groups"],
    "schedule_metrics_callback": ["1 1 0 0 True", "3 1 2 2 True", "['done', 'done']", "20 16", "[0, 2, 4] [1, 1, 1]"],
    "schedule_priority": [
        "0 5 9",
        "['background 1', 'critical 1', 'background 2']",
        "4: high; normal; normal, later; low; None True",
    ],
    "schedule_retry": ["1 2 0", "{'any': 3, 'named': 4, 'never': 31}", "BaseException the last word"],
    "schedule_sync": ["5 True"],
    "schedule_telemetry": ["True 8 2", "ended"],
    "schedule_timeout": ["timed out", "timeout_fallback", "gave_up True", "completed", "sync_timeout"],
    "single_call": [ECHO, ECHO, ECHO],
}


def deprecated_lines(program: Path) -> Counter[int]:
    """The lines of a program that should warn: one warning for each old name that is imported, and for each use of ``schedule``."""
    found: Counter[int] = Counter()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qreward"):
            unchanged = {"schedule", "LoadBalanceStrategy"} if node.module == "qreward.client" else {"schedule"}
            found[node.lineno] += sum(alias.name not in unchanged for alias in node.names)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "schedule":
            found[node.lineno] += 1
    return +found


def test_the_programs_of_0_1_7_print_what_they_printed_and_warn_once_at_each_line_to_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(PRINTED)
    printed, warned, expected = {}, {}, {}
    with FakeFleet([FakeEndpoint("mine", api_key="not-secret")]) as fleet:
        monkeypatch.setenv("OPENAI_API_BASE", fleet.urls["mine"])
        monkeypatch.setenv("OPENAI_API_KEY", "not-secret")
        for name in PRINTED:
            path = PROGRAMS / f"{name}.py"
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                runpy.run_path(str(path), run_name="__main__")
            out, err = capsys.readouterr()
            printed[name] = [*out.splitlines(), *err.splitlines()]
            warned[name] = Counter((each.category, each.filename, each.lineno) for each in seen)
            expected[name] = Counter({(DeprecationWarning, str(path), line): number for line, number in deprecated_lines(path).items()})
    assert printed == PRINTED
    assert warned == expected
