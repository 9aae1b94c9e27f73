"""A dry run reads everything, sends nothing, and says what would be sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import MODEL, Backend, client_of, endpoint, line, lines, write

from qreward.bulk.run import SHOWN, dry_run
from qreward.errors import ConfigError
from qreward.judge import Judge


async def found(source: Any, *endpoints: Any, is_scored: bool = False, **settings: Any) -> Any:
    backend = Backend()
    async with client_of(backend, *endpoints) as client:
        result = dry_run(client, source, settings, scorer=object() if is_scored else None)  # type: ignore[arg-type]
    assert backend.sent == []
    return result


async def test_it_counts_requests_tokens_and_cost_by_model_with_the_endpoints(tmp_path: Path) -> None:
    rows = [*lines(10, max_tokens=100), line(10, model="judge-70b"), line(11, model="judge-70b", max_tokens=7)]
    endpoints = [endpoint("a", models=[MODEL], price=(1.0, 10.0)), endpoint("b", models=[MODEL], price=(3.0, 2.0)), endpoint("c")]
    result = await found(write(tmp_path / "in.jsonl", rows), *endpoints)
    assert (result.lines, result.bad, result.faults, result.items) == (12, 0, [], 0)
    small, large = result.models[MODEL], result.models["judge-70b"]
    assert (small.requests, small.output_tokens, small.endpoints, small.unlimited) == (10, 1000, ("a", "b"), 0)
    assert small.cost >= 1000 * 10.0 / 1e6
    assert (large.requests, large.endpoints, large.cost, large.unlimited) == (2, ("c",), None, 1)
    text = str(result)
    assert "10 requests, about " in text
    assert "at most 1000 output tokens, at most $0.0" in text
    assert "1 without max_tokens (their cost has no limit); to c" in text
    assert text.endswith("nothing was sent")


async def test_bad_lines_are_shown_with_their_places_the_first_twenty_of_them(tmp_path: Path) -> None:
    rows: list[Any] = ["{oops", line(0), line(1, model="unknown"), *["[]"] * 30]
    result = await found(write(tmp_path / "in.jsonl", rows), endpoint(models=[MODEL]))
    assert (result.lines, result.bad, len(result.faults)) == (33, 32, SHOWN)
    assert "in.jsonl:1: it is not JSON" in result.faults[0]
    assert "in.jsonl:3: " in result.faults[1]
    assert "'unknown'" in result.faults[1]
    assert "and 12 others" in str(result)


async def test_shards_samples_and_items_are_those_of_the_run(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", lines(10))
    assert (await found(source, shard=(1, 3))).lines == 4
    assert (await found(source, sample=3)).lines == 3
    items = await found([{"q": 1}, {"a": 1}], is_scored=True, columns={"prompt": "q"})
    assert (items.lines, items.items, items.bad) == (2, 1, 1)
    assert "items         1, for the scorer" in str(items)


@pytest.mark.parametrize("method", ["write", "decide"])
async def test_an_item_that_the_judge_cannot_judge_is_a_bad_line(method: Any) -> None:
    backend = Backend()
    async with client_of(backend, endpoint(models=[MODEL])) as client:
        judge = Judge(client, model=MODEL, prompt="{question} {response}", method=method)
        rows = [{"prompt": "a", "response": "b"}, {"prompt": "a", "response": "b", "question": "c"}]
        result = dry_run(client, rows, {}, scorer=judge)
    assert (result.items, result.bad, backend.sent) == (1, 1, [])
    assert "item:1: " in result.faults[0]
    assert "names {question}, but the item has no 'question'" in result.faults[0]


async def test_wrong_settings_and_files_are_errors_as_in_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no column"):
        await found(write(tmp_path / "in.jsonl", lines(1)), template="x")
    with pytest.raises(ConfigError, match="there is no file"):
        await found("nowhere.jsonl")
    assert json.loads((tmp_path / "in.jsonl").read_text())["custom_id"] == "id-0"
