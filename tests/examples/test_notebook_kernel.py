"""The example notebook is run by a real kernel, and shows what is stored in it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import nbformat
import pytest
from notebook_runner import FOLDERS, METADATA, PATH, Watching, execute
from shared_tools import words

REPEATABLE = ("one", "judge", "rubric", "cascade")
"""Cells whose output has no times in it, and no choice of an endpoint."""


@pytest.fixture(scope="module")
def stored() -> Any:
    return nbformat.read(PATH, as_version=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Watching:
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.setenv(name, "")  # so that it is as before afterwards
        patch.setenv("PYTHONWARNINGS", "error:::qreward")
        return execute(str(tmp_path_factory.mktemp("home")))


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any, cell: str) -> list[Any]:
    found: list[Any] = next(each for each in notebook.cells if each.id == cell).outputs
    return found


def printed(notebook: Any, cell: str) -> str:
    """What a cell printed, and its value as text."""
    texts = [each.text if each.output_type == "stream" else each.data["text/plain"] for each in outputs(notebook, cell)]
    return "".join(texts)


def seen(run: Watching, cell: str) -> str:
    """The words of the one display of a cell, as it stands at the end."""
    (display,) = [each for each in outputs(run.nb, cell) if each.output_type == "display_data"]
    return words(display.data["text/html"])


def test_the_notebook_is_stored_as_a_run_from_top_to_bottom_left_it_without_settings_of_a_machine(run: Watching, stored: Any) -> None:
    nbformat.validate(stored)
    assert stored.metadata == METADATA
    assert all(not cell.metadata for cell in stored.cells)
    assert [cell.execution_count for cell in code_cells(stored)] == [*range(1, len(code_cells(stored)) + 1)]
    kinds = [[[(cell.id, each.output_type) for each in cell.outputs] for cell in code_cells(notebook)] for notebook in (stored, run.nb)]
    merged = [[list(dict.fromkeys(cell)) for cell in cells] for cells in kinds]  # printed text comes in one or several parts
    assert merged[0] == merged[1]
    assert {cell: printed(stored, cell) for cell in REPEATABLE} == {cell: printed(run.nb, cell) for cell in REPEATABLE}
    every = [(cell.id, output) for notebook in (run.nb, stored) for cell in code_cells(notebook) for output in cell.outputs]
    assert [(name, output) for name, output in every if output.output_type == "error" or output.get("name") == "stderr"] == []


def test_the_rubric_and_the_cascade_give_the_scores_that_the_text_explains(stored: Any) -> None:
    right, wrong, unsafe = printed(stored, "rubric").splitlines()
    assert [line[:4] for line in (right, wrong, unsafe)] == ["1.00", "0.25", "0.00"]  # weights 3 and 1; and the gate
    small, strong, cascade = (float(share) for share in re.findall(r"accuracy ([\d.]+)%", printed(stored, "cascade")))
    assert small < cascade <= strong
    assert 0 < int(re.findall(r"scored (\d+)% of", printed(stored, "cascade"))[0]) < 50


def test_a_stream_is_displayed_as_it_grows_and_at_the_end_with_all_of_it_and_its_times(run: Watching) -> None:
    texts = [page["text/plain"].partition("\n[")[0] for _, page in run.drawn["stream"]]
    growing = [text for text in texts if text.startswith("{")]
    assert len(set(growing)) >= 2
    assert all(after.startswith(before) for before, after in pairwise(growing))
    times = r"[\d.]+ m?s · first token after [\d.]+ m?s · \d+ tokens · \d+ tokens/s"
    assert re.match(rf'done judge-\w+ · {times} \{{"verdict": "correct", .*\}}$', seen(run, "stream"))


def test_a_stream_that_breaks_off_stays_visible_with_its_error_and_blocking_calls_work_too(run: Watching) -> None:
    page = seen(run, "broken")
    assert page.startswith("interrupted unsteady · ")
    assert "StreamInterrupted: the stream broke off after" in page
    assert re.match(r"StreamInterrupted after [1-9]\d* characters", outputs(run.nb, "broken")[-1].text)
    assert seen(run, "blocking").startswith("done judge-")
    assert printed(run.nb, "blocking").endswith("the same answer: True\n")


def test_the_batch_and_the_statistics_are_shown_as_tables(run: Watching) -> None:
    batch, stats = (outputs(run.nb, cell)[0].data["text/html"] for cell in ("batch", "stats"))
    assert words(batch).startswith("121 items · 120 ok · 1 failed · ")
    assert words(stats).startswith("5 endpoints")
    assert [part for part in ("BadRequest", "latency of 120 answers", "<table") if part not in batch] == []
    assert "<table" in stats
