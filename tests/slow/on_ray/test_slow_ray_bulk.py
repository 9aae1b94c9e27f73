"""Bulks of Ray Datasets: a killed worker and a killed job lose nothing, and pay again only for what was in flight."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bulk_tools import CountingServer, chat_line, counting_server, in_flight, read_lines
from fakes.endpoint import ModelEndpoint

from qreward.errors import ConfigError
from qreward.integrations.ray import BulkRequests, run
from qreward.testing import FakeFleet

HERE = Path(__file__).parent
pytestmark = [pytest.mark.timeout(300), pytest.mark.real_time(240), pytest.mark.filterwarnings("ignore")]  # what Ray warns of is not ours
ROWS, SLOTS = 2000, 16


def config(url: str, **limits: Any) -> dict[str, Any]:
    return {"endpoints": [{"base_url": url, "limits": {"max_concurrency": SLOTS, "adaptive": False, **limits}}]}


@pytest.fixture
def data(cluster: Any) -> Any:
    cluster.data.DataContext.get_current().enable_progress_bars = False
    return cluster.data


def holders(folder: Path) -> dict[int, Path]:
    """The processes that have a journal of the folder open, with the journal."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [entry.readlink() for entry in (process / "fd").iterdir()]
        except OSError:
            continue
        journals = [path for path in opened if path.parent == folder and path.suffix == ".journal"]
        if journals:
            found[int(process.name)] = journals[0]
    return found


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    while Path(f"/proc/{process}/fd").exists() and "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][:3]:
        time.sleep(0.001)


async def served(server: CountingServer, requests: int) -> None:
    while sum(server.served.values()) < requests:  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(0.01)


def check(folder: Path, server: CountingServer, allowed: int, rows: int = ROWS) -> None:
    """Each row is in the output once, with its own answer, and was paid once, but for those in flight at a kill."""
    lines = [line for path in sorted(folder.glob("part-?????.jsonl")) for line in read_lines(path)]
    answers = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert len(lines) == len(answers)
    assert answers == {f"id-{number}": f"answer to item {number}" for number in range(rows)}
    assert len(server.served) == rows
    assert sum(server.served.values()) - rows <= allowed


async def test_one_of_four_workers_is_killed_and_no_row_is_lost_or_there_twice(data: Any, tmp_path: Path) -> None:
    dataset = data.from_items([chat_line(number) for number in range(ROWS)], override_num_blocks=20)
    with counting_server(0.05) as server:
        job = asyncio.ensure_future(
            asyncio.to_thread(run, dataset, tmp_path, config(server.url), actors=4, batch_size=25, ray_options={"num_cpus": 0.5})
        )
        await served(server, ROWS // 4)
        while len(workers := holders(tmp_path)) < 4 and not job.done():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.01)
        process, journal = min(workers.items())
        kill(process)
        flying = len(in_flight(journal))
        report = await job
        assert len(workers) == 4, "all workers had begun"
        assert 0 < flying <= SLOTS
        check(tmp_path, server, allowed=flying)
        assert (report.lines, report.done, report.failed, report.in_flight, report.reason) == (ROWS, ROWS, 0, 0, None)
        assert report.sent == ROWS + report.sent_again
        assert report.sent_again <= flying
        print(f"in flight at the kill {flying}, served again {sum(server.served.values()) - ROWS}, sent again {report.sent_again}")


def test_a_job_that_is_killed_as_a_whole_goes_on_and_pays_again_only_for_what_was_in_flight(tmp_path: Path) -> None:
    output = tmp_path / "answers"
    with counting_server(0.05) as server:
        command = [sys.executable, str(HERE / "bulk_job.py"), str(output), server.url, str(ROWS)]
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while sum(server.served.values()) < ROWS // 2:
            assert job.poll() is None
            time.sleep(0.01)
        workers = holders(output)
        job.kill()
        for process in workers:
            kill(process)
        job.wait()
        flying = sum(len(in_flight(journal)) for journal in workers.values())
        paid = sum(server.served.values())
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        check(output, server, allowed=flying)
        again = sum(server.served.values()) - ROWS
        counts = dict(zip(*[iter(done.stdout.split())] * 2, strict=True))
        assert (int(counts["done"]), int(counts["lines"])) == (ROWS, ROWS)
        assert int(counts["resumed"]) == ROWS - int(counts["sent"]) >= paid - flying
        assert again <= int(counts["again"]) <= flying
        print(f"paid before the kill {paid}, in flight {flying}, served again {again}; {done.stdout.strip()}")


def test_errors_are_columns_and_equal_rows_share_an_answer(data: Any, tmp_path: Path) -> None:
    rows = [{"id": str(number % 50), "prompt": f"item {number % 50}", "model": "judge-7b"} for number in range(100)]
    bad = [{"id": "empty", "prompt": "", "model": ""}, {"id": "long", "prompt": "too long", "model": "judge-7b"}]
    with counting_server() as server:
        server.refused.add("too long")
        dataset = data.from_items(rows + bad)
        options = {"batch_format": "pyarrow", "compute": data.ActorPoolStrategy(size=1), "num_cpus": 0.5}
        found = dataset.map_batches(BulkRequests, fn_constructor_args=(str(tmp_path), config(server.url)), **options).take_all()
        errors = {row["id"]: json.loads(row["error"]) for row in found if row["error"] is not None}
        assert errors.keys() == {"empty", "long"}
        assert errors["long"]["status_code"] == 400
        answers = [(row["id"], json.loads(row["result"])["choices"][0]["message"]["content"]) for row in found if row["result"]]
        assert sorted(answers) == sorted((row["id"], f"answer to {row['prompt']}") for row in rows)
        assert all(server.served[f"item {number}"] == 1 for number in range(50))

        report = run(dataset, tmp_path, config(server.url), ray_options={"num_cpus": 0.5})
        assert (report.lines, report.done, report.failed, report.sent) == (102, 52, 2, 0)
        assert sum(len(read_lines(path)) for path in tmp_path.glob("part-*.failed.jsonl")) == 2
        with pytest.raises(ConfigError, match="model has changed"):
            run(dataset, tmp_path, config(server.url), model="another")


def test_items_are_judged_and_scored(data: Any, tmp_path: Path) -> None:
    items = [{"id": str(number), "question": f"Why {number}?", "response": "Because." * number} for number in range(20)]
    dataset = data.from_items([*items, {"id": "lacking", "response": "x"}])
    with FakeFleet([ModelEndpoint("judge", synthetic=True)]) as fleet:
        options = {"judge": {"model": "judge-7b", "prompt": "{prompt}\n{response}\n{answer_form}"}, "columns": {"prompt": "question"}}
        remote = {"batch_format": "pyarrow", "compute": data.ActorPoolStrategy(size=1), "num_cpus": 0.5}
        arguments = (str(tmp_path), config(fleet.urls["judge"]))
        found = dataset.map_batches(BulkRequests, fn_constructor_args=arguments, fn_constructor_kwargs=options, **remote).take_all()
        scores = {row["id"]: row["score"] for row in found}
        (failed,) = [row for row in found if row["error"] is not None]
        assert (failed["id"], failed["score"], failed["result"]) == ("lacking", None, None)
        assert all(0 <= scores[item["id"]] <= 1 for item in items)
        assert all(json.loads(row["result"])["score"] == row["score"] for row in found if row is not failed)
        report = run(dataset, tmp_path, config(fleet.urls["judge"]), ray_options={"num_cpus": 0.5}, **options)
        assert (report.done, report.failed, report.sent) == (21, 1, 0)
