"""Programs for QReward 0.1.7, in ``programs/``, run unchanged: same imports, same parameters, same results.

Each line was printed by the released 0.1.7 too, but for ``3 1 2 2 True``: it counted the two failures twice.
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
ECHO = '{"echo":"02b7880d53b72f76"}'
COUNT = '[0, 1, 2, 3, 4] True {"echo":"01800906bf86f85d"}'

PRINTED: dict[str, list[str]] = {
    "proxies": [
        *[ECHO] * 3,
        '5 5 {"echo":"01800906bf86f85d"}',
        "2 [[True, True], [True, True]]",
        "True",
        "5",
        ECHO,
        *[COUNT] * 3,
        "[None, None]",
        "[] [0, 1, 2, 3, 4]",
    ],
    "balancing": [
        "['east', 'west', 'north', 'east', 'west', 'north']",
        "['west', 'north'] ['north', 'north', 'west', 'west']",
        "['east', 'west', 'north']",
        "6 2",
        "['a', 'b'] True False",
        "no healthy proxy",
        "gpt-4 ('gpt-4', ['premium', 'other'])",
        "gpt-3.5-turbo ('gpt-*', ['standard'])",
        "llama-3 None",
        "6 2",
        "{'other'} ['other', 'other']",
        "['other', 'premium']",
        "deepseek-* round_robin 1 1 ['ds-svc']",
        "['default'] True",
    ],
    "schedule_calls": [
        "1 2 0 5",
        "None 5 gave up 0",
        "BaseException the last word",
        "timed out",
        "completed 7 {'any': 3, 'named': 4, 'never': 31, 'blocking': 3, 'not retried': 1, 'slow once': 2}",
        "two in a window: True",
        "four at once, in two groups",
        "fallback; fallback; fallback; blocked; blocked; success 99",
        "0 5 9 ['background 1', 'critical 1', 'background 2']",
        "5 15",
        "1 1 0 0 True",
        "3 1 2 2 True",
        "['done', 'done']",
        "10 10 True",
        "1 1 0 0 True",
        "sync timeout 4",
    ],
    "schedule_classes": [
        "changed: True 5",
        "True 5 5",
        "True False True 10",
        "True True 200 3",
        "True True 500 3",
        "True True 8",
        "4: high; normal; normal, later; low; None True",
        "True 8 2",
        "ended",
    ],
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
