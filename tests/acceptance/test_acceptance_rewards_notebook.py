"""Scores in a notebook: a real kernel, whose loop runs while cells await at their top level, and a reward server in one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "setup": """
import asyncio
from qreward import Endpoint, QRewardClient, SyncQRewardClient
from qreward.server import RewardServer

def score(completions):
    return [float(len(text)) for text in completions]

server = await RewardServer(score, port=0).__aenter__()
fleet = [Endpoint(f"{server.url}/v1", kind="openrlhf", proxy="")]
client = QRewardClient(fleet)
""",
    "single": """await client.score("2 + 2?", "four", model="rm")""",
    "cancelled": """
call = asyncio.ensure_future(client.score("2 + 2?", "never", model="rm"))
await asyncio.sleep(0)
call.cancel()
await asyncio.wait([call])
call.cancelled()
""",
    "many": """
singles = await asyncio.gather(*(client.score("", "x" * at, model="rm") for at in range(50)))
batch = await client.batch_score((("", "x" * at) for at in range(50)), "rm", progress=False)
singles == batch.values() == [float(at) for at in range(50)]
""",
    "blocking": """
with SyncQRewardClient(fleet) as blocking:
    found = await asyncio.to_thread(blocking.score, "2 + 2?", "four", model="rm")
found
""",
    "end": """
await client.aclose()
await server.__aexit__(None, None, None)
server.all_done
""",
}


def test_scores_are_awaited_at_the_top_level_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "error:::qreward")
    v4: Any = nbformat.v4
    book = v4.new_notebook(cells=[v4.new_code_cell(source, id=name) for name, source in CELLS.items()])
    client = NotebookClient(book, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    asyncio.run(client.async_execute())
    said = {cell.id: [output.get("data", output).get("text/plain", output) for output in cell.outputs] for cell in book.cells}
    assert said == {"setup": [], "single": ["10.0"], "cancelled": ["True"], "many": ["True"], "blocking": ["10.0"], "end": ["True"]}
