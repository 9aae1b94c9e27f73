"""Live display of streams in a notebook: ``show`` for one answer, ``show_batch`` for many. The implementation is ``qreward.notebook``."""

from __future__ import annotations

from qreward.notebook.display import show, show_batch

__all__ = ["show", "show_batch"]
