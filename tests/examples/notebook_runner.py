"""Runs the example notebook in a real kernel. ``python tests/examples/notebook_runner.py`` runs it and stores its outputs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).parents[2] / "examples" / "notebook_judge.ipynb"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
FOLDERS = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")


class Watching(NotebookClient):
    """Keeps each display update, with its time by the kernel's clock, by the cell that asked for it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.drawn: dict[str, list[tuple[float, dict[str, str]]]] = {}

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] in ("display_data", "update_display_data"):
            self.drawn.setdefault(cell.id, []).append((msg["header"]["date"].timestamp(), msg["content"]["data"]))
        return super().process_message(msg, cell, cell_index)


def execute(home: str) -> Watching:
    """The notebook after its run, with all of Jupyter's folders in ``home``, so that nobody's settings apply."""
    os.environ |= dict.fromkeys(FOLDERS, home)
    client = Watching(nbformat.read(PATH, as_version=4), timeout=60, kernel_name="python3", resources={"metadata": {"path": home}})
    asyncio.run(client.async_execute())
    return client


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        notebook = execute(home).nb
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})  # the times of the run
    nbformat.write(notebook, PATH)


if __name__ == "__main__":
    main()
