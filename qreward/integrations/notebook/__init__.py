"""Streams that grow before one's eyes in a notebook: ``show`` for one answer, ``show_batch`` for many.

What is read is folded into a state (``state``), of which HTML is made (``cards``), which is put into a cell's output now and then
(``views``, ``showing``). IPython is imported only there, and only where one of its kernels runs.
"""

from __future__ import annotations

from qreward.notebook.display import show, show_batch

__all__ = ["show", "show_batch"]
