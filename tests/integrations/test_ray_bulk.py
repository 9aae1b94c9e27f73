"""Bulks of Ray Datasets, of which a stub maps the batches in this process: columns, counts, what goes on, and what is refused."""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow
import pytest
from fakes.synthetic_writer import write_verdict
from ray_fakes import installed

from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.integrations.ray import BulkRequests, run
from qreward.judge import JudgeConfig
from qreward.testing import FakeEndpoint, FakeFleet, SyntheticJudge, echo_of

JUDGED: dict[str, Any] = {
    "judge": {"model": "judge-7b", "prompt": "{prompt}\n{response}\n{answer_form}"},
    "columns": {"prompt": "question"},
}


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    data: Any = ModuleType("ray.data")
    data.ActorPoolStrategy = lambda size: f"{size} actors"
    monkeypatch.setitem(sys.modules, "ray.data", data)
    yield from installed(monkeypatch)


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet([FakeEndpoint("a", responder=lambda asked: "0.5" if "score" in asked[-1]["content"] else echo_of(asked))]) as made:
        yield made


class Dataset:
    """Rows, and the arguments of the last ``map_batches``."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = list(rows)

    def map_batches(self, kind: Any, *, fn_constructor_args: Any, fn_constructor_kwargs: Any, batch_size: int, **options: Any) -> Any:
        self.options, made = options, kind(*fn_constructor_args, **fn_constructor_kwargs)
        batches = [pyarrow.Table.from_pylist(self.rows[at : at + batch_size]) for at in range(0, len(self.rows), batch_size)]

        async def mapped() -> list[Any]:
            return [await made(batch) for batch in batches]

        try:
            tables = asyncio.run(mapped())
        finally:
            portal().call(made._run.aclose)
            portal().call(made._client.aclose)
        return SimpleNamespace(iter_rows=lambda: [row for table in tables for row in table.to_pylist()])


def config(fleet: FakeFleet) -> dict[str, Any]:
    return {"endpoints": [{"base_url": fleet.urls["a"], "proxy": ""}], "retry": {"attempts": 1}}


def mapped(dataset: Dataset, folder: Path, fleet: FakeFleet, **options: Any) -> list[dict[str, Any]]:
    found = dataset.map_batches(BulkRequests, fn_constructor_args=(str(folder), config(fleet)), fn_constructor_kwargs=options, batch_size=3)
    return list(found.iter_rows())


def test_results_and_errors_are_columns_and_a_run_goes_on_from_them(fleet: FakeFleet, tmp_path: Path) -> None:
    rows = [{"id": str(number % 5), "prompt": f"item {number % 5}", "model": "judge-7b"} for number in range(8)]
    dataset = Dataset(*rows, {"id": "empty", "prompt": "", "model": ""})
    found = mapped(dataset, tmp_path, fleet)
    assert [row["id"] for row in found] == [row["id"] for row in dataset.rows]
    for row in found[:-1]:
        assert json.loads(row["result"])["choices"][0]["message"]["content"] == echo_of([{"role": "user", "content": row["prompt"]}])
        assert row["error"] is None
    assert found[-1]["result"] is None
    assert "model" in json.loads(found[-1]["error"])["message"]
    assert fleet.seen("a").requests == 5, "equal rows share an answer"

    report = run(dataset, tmp_path, config(fleet), actors=3, batch_size=4, ray_options={"num_cpus": 0.5})
    assert (report.lines, report.done, report.failed, report.resumed, report.sent, report.reason) == (9, 6, 1, 6, 0, None)
    assert dataset.options == {"batch_format": "pyarrow", "compute": "3 actors", "max_concurrency": 2, "num_cpus": 0.5}
    written = [json.loads(line) for line in (tmp_path / "part-00000.jsonl").read_text().splitlines()]
    assert len(written) == 5
    assert report.output is not None
    more = run(Dataset(*rows, {"id": "new", "prompt": "new", "model": "judge-7b"}), tmp_path, config(fleet))
    assert (more.lines, more.done, more.sent) == (9, 7, 1)
    assert more.tokens > more.prompt_tokens > 0


def test_items_are_judged_and_a_third_column_has_their_scores(fleet: FakeFleet, tmp_path: Path) -> None:
    items = [{"id": str(number), "question": "Why?", "response": "Because." * number} for number in range(4)]
    fleet.set("a", responder=lambda messages: write_verdict(messages, SyntheticJudge()))
    found = mapped(Dataset(*items, {"id": "lacking", "question": None, "response": "x"}), tmp_path, fleet, **JUDGED)
    assert [row["score"] is None for row in found] == [False] * 4 + [True]
    assert all(json.loads(row["result"])["score"] == row["score"] for row in found[:-1])
    assert found[-1]["error"] is not None
    report = run(Dataset(*items), tmp_path, config(fleet), judge=JudgeConfig(**JUDGED["judge"]), columns=JUDGED["columns"])
    assert (report.done, report.failed, report.sent) == (5, 1, 0)


def test_wrong_settings_rows_and_a_folder_in_use_are_refused(fleet: FakeFleet, tmp_path: Path) -> None:
    dataset = Dataset({"id": "a", "prompt": "x", "model": "judge-7b"})
    run(dataset, tmp_path, config(fleet))
    refused: list[tuple[Any, str]] = [
        (lambda: run(dataset, tmp_path, config(fleet), model="another"), "model has changed"),
        (lambda: BulkRequests(tmp_path, config(fleet), judge={"model": "j"}, reward_model="rm"), "judge and reward_model are both set"),
        (lambda: BulkRequests(tmp_path, config(fleet), judge={"modle": "j"}), "did you mean 'model'"),
        (lambda: asyncio.run(BulkRequests(tmp_path, config(fleet))({"id": ["a"]})), 'batch_format="pyarrow"'),
        (lambda: asyncio.run(BulkRequests(tmp_path, config(fleet))(pyarrow.table({"score": [1]}))), "a column 'score' already"),
    ]
    for call, said in refused:
        with pytest.raises(ConfigError, match=said):
            call()
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another run writes"):
            run(dataset, tmp_path, config(fleet))
