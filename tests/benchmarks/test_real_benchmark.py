"""The benchmark of real servers, without them: its bound and its tables."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

Import = Callable[[str], ModuleType]


def test_the_fewest_tokens_are_those_of_each_distinct_block_and_of_the_last_block_of_each_prompt(module: Import) -> None:
    real = module("real")
    block = real.BLOCK
    document = list(range(2 * block))
    for prompts, expected in (
        ([], 0),
        ([[1, 2, 3], [1, 2, 3]], 6),
        ([document], 2 * block),
        ([document, document], 3 * block),  # the block of the last token is computed again
        ([[*document, 7], [*document, 8, 9]], 2 * block + 1 + 2),
        ([[*document, 7], [0, 0, *document]], 2 * block + 1 + 2 * block + 2),
    ):
        assert real.fewest(prompts) == expected, prompts


def test_a_world_is_the_same_for_all_clients_of_a_run_but_for_its_first_word(module: Import) -> None:
    real = module("real")
    for world in real.TITLES:
        one, other = (
            [(calls[0]["content"].partition(" "), length) for each in real.rounds(world, 1, run) for calls, length in each]
            for run in ("a", "b")
        )
        assert [(text[2], length) for text, length in one] == [(text[2], length) for text, length in other], world
        assert {text[0] for text, _ in one} == {"a"}


def test_a_table_compares_a_run_with_the_same_run_without_affinity(module: Import) -> None:
    real = module("real")
    common: dict[str, Any] = {"world": "documents", "failed": 0, "fewest": 100, "split": [3, 5], "latencies": [1.0]}
    records = [
        common | {"client": real.OURS, "run": run, "wall_s": ours, "computed": 104} for run, ours in ((0, 4.0), (1, 12.0), (2, 8.0))
    ] + [common | {"client": real.ALONE, "run": run, "wall_s": alone, "computed": 150} for run, alone in ((0, 8.0), (1, 20.0), (2, 16.0))]
    failed = {"world": "votes", "client": real.OPENAI, "run": 0, "error": "it ended"}
    lines = real.report({"records": [*records, failed]}).splitlines()
    ours = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert ours == ["documents: qreward", "104", "1.04", "8.00", "0.50", "5:3, 5:3, 5:3", "0"]
    assert lines[-1] == "votes, openai: it ended"
