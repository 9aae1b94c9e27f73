"""What ``client.live()`` returns: in a notebook, a table that is updated once a second."""

from __future__ import annotations

import time
from typing import Any
from weakref import ref

from qreward.live import view
from qreward.live.channel import open_channel
from qreward.live.directory import Process
from qreward.notebook.display import Cell


class LiveView:
    """Shows a client in ``qreward top``, and in a notebook as the output of a cell, until the client is closed or ``close`` is called.

    Attributes:
        path: the socket of this process, for ``curl --unix-socket``.
    """

    def __init__(self, runtime: Any) -> None:
        self._channel, self._runtime = open_channel(), ref(runtime)
        self._channel.add(runtime)
        self.path = self._channel.path
        self._cell: Cell[dict[str, Any]] | None = None

    def _ipython_display_(self) -> None:
        self.close()
        self._cell = Cell(lambda seen, _: view.html(self._blocks(seen)), lambda seen, _: "\n".join(view.plain(self._blocks(seen))))
        self._update(self._channel.document())
        self._channel.listeners.append(self._update)

    def _blocks(self, document: dict[str, Any]) -> list[view.Block]:
        return list(view.blocks([Process(document["pid"], "running", document)]))

    def _update(self, document: dict[str, Any]) -> None:
        runtime = self._runtime()
        if runtime is None or runtime.closed:  # the cell keeps its last state
            self.close()
        elif self._cell is not None:
            self._cell(document, time.monotonic())

    def close(self) -> None:
        """Stop updating the output. The client is still shown in ``qreward top``."""
        self._cell = None
        if self._update in self._channel.listeners:
            self._channel.listeners.remove(self._update)

    def __repr__(self) -> str:
        return f"<LiveView {str(self.path)!r}; `qreward top` shows it>"
