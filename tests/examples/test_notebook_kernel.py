"""The example notebook is run by a real kernel, and what a reader would see in it is looked at."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from shared_tools import words

PATH = Path(__file__).parents[2] / "examples" / "notebook_judge.ipynb"


class Watching(NotebookClient):
    """Keeps each drawing, with its time by the kernel's clock, by the cell that asked for it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.drawn: dict[str, list[tuple[float, dict[str, str]]]] = {}

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.drawn.setdefault(cell.id, []).append((msg["header"]["date"].timestamp(), msg["content"]["data"]))
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Watching:
    """The notebook after its run, without the settings of whoever runs it."""
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, home)
        patch.setenv("PYTHONWARNINGS", "error:::qreward")
        client = Watching(nbformat.read(PATH, as_version=4), timeout=60, kernel_name="python3", resources={"metadata": {"path": home}})
        asyncio.run(client.async_execute())
    return client


def outputs(run: Watching, cell: str) -> list[Any]:
    found: list[Any] = next(each for each in run.nb.cells if each.id == cell).outputs
    return found


def seen(run: Watching, cell: str) -> str:
    """The words of the one display of a cell, as it stands at the end."""
    (display,) = [each for each in outputs(run, cell) if each.output_type == "display_data"]
    return words(display.data["text/html"])


def test_the_notebook_is_stored_without_outputs_and_says_nothing_of_a_machine() -> None:
    stored = nbformat.read(PATH, as_version=4)
    nbformat.validate(stored)
    assert all(not cell.outputs and cell.execution_count is None for cell in stored.cells if cell.cell_type == "code")
    assert stored.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert all(not cell.metadata for cell in stored.cells)


def test_no_cell_fails_and_nothing_is_said_on_standard_error(run: Watching) -> None:
    every = [(cell.id, output) for cell in run.nb.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [(name, output) for name, output in every if output.output_type == "error" or output.get("name") == "stderr"] == []


def test_the_last_drawing_of_one_answer_holds_all_of_it_and_how_it_was(run: Watching) -> None:
    assert re.match(
        r'done judge-\w+ · [\d.]+ m?s · first token after \d+ ms · \d+ tokens · \d+ tokens/s \{"verdict": "correct", .*\}$',
        seen(run, "one"),
    )
    assert outputs(run, "one")[-1].data["text/plain"] == "1"


def test_one_answer_is_seen_to_grow(run: Watching) -> None:
    texts = [page["text/plain"].partition("\n[")[0] for _, page in run.drawn["one"]]
    growing = [text for text in texts if text.startswith("{")]
    assert len(set(growing)) >= 2
    assert all(after.startswith(before) for before, after in pairwise(growing))


def test_an_answer_that_breaks_off_stands_there_with_its_error(run: Watching) -> None:
    page = seen(run, "broken")
    assert page.startswith("interrupted frail · ")
    assert '{"verdict"' in page
    assert "StreamInterrupted: the stream broke off after" in page
    (printed,) = [each for each in outputs(run, "broken") if each.output_type == "stream"]
    assert re.match(r"StreamInterrupted after [1-9]\d* characters", printed.text)


def test_the_batch_and_the_statistics_are_shown_as_tables_with_a_plot(run: Watching) -> None:
    (batch,), (stats,) = outputs(run, "batch"), outputs(run, "stats")
    assert words(batch.data["text/html"]).startswith("121 items · 120 ok · 1 failed · ")
    assert "BadRequest" in batch.data["text/html"]
    assert "latency of 120 answers" in words(batch.data["text/html"])
    assert words(stats.data["text/html"]).startswith("3 endpoints")
    assert all("<table" in each.data["text/html"] for each in (batch, stats))
    assert "<svg" in batch.data["text/html"]


def test_blocking_calls_and_a_blocking_stream_work_where_the_loop_of_the_kernel_runs(run: Watching) -> None:
    assert seen(run, "blocking").startswith("done judge-")
    (printed,) = [each for each in outputs(run, "blocking") if each.output_type == "stream"]
    assert printed.text == "the same answer: True\n"
