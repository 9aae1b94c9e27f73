"""Where states are shown: an output cell that is updated, or, outside a notebook, the standard output.

A script is given what it would have printed itself: the text as it comes, and a line at the end. An error would help nobody there, for a
cell that is moved into a script should still work, and IPython is nothing it needs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from qreward.integrations.notebook.cards import board_plain, last_line
from qreward.integrations.notebook.state import Answer, Board
from qreward.progress import is_notebook

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class View(Protocol[S_contra]):
    """Something that shows a state."""

    def draw(self, state: S_contra, now: float) -> None: ...

    def close(self, state: S_contra, now: float) -> None:
        """Show it for the last time."""


class Cell(Generic[S]):
    """One output of a notebook's cell, which is replaced by the next if that differs.

    Args:
        html, plain: what is shown of a state at a time; a notebook takes the first, what cannot show HTML the second.
    """

    def __init__(self, html: Callable[[S, float], str], plain: Callable[[S, float], str]) -> None:
        self._html, self._plain = html, plain
        self._handle: Any = None
        self._shown: dict[str, str] = {}

    def draw(self, state: S, now: float) -> None:
        page = {"text/html": self._html(state, now), "text/plain": self._plain(state, now)}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(page, raw=True, display_id=True)
        elif page != self._shown:
            self._handle.update(page, raw=True)
        self._shown = page

    close = draw


class Script:
    """The text of one answer as it comes, and a line at its end."""

    def __init__(self) -> None:
        self._written = self._restarts = 0

    def draw(self, state: Answer, now: float) -> None:  # noqa: ARG002
        if state.restarts != self._restarts:
            _write(f"\n[the answer begins anew after {state.void}]\n")
            self._written, self._restarts = 0, state.restarts
        text = state.text
        _write(text[self._written :])
        self._written = len(text)

    def close(self, state: Answer, now: float) -> None:
        self.draw(state, now)
        _write(f"\n{last_line(state, now)}\n")


class Lines:
    """A line for each of many answers when it has ended, and one for all of them."""

    def tell(self, index: int, answer: Answer) -> None:
        """One has ended."""
        _write(f"#{index} {answer.text}\n   {last_line(answer, answer.ended or 0.0)}\n")

    def draw(self, state: Board, now: float) -> None:
        """Nothing: texts that grow at once cannot be printed."""

    def close(self, state: Board, now: float) -> None:
        _write(f"{board_plain(state, now)}\n")


def in_notebook() -> bool:
    """Somebody will see HTML."""
    return is_notebook()


def _write(text: str) -> None:
    if text and sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()
