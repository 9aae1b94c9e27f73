"""Tests that are coroutines, on a loop with virtual time that sees that they leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from qreward.testing.virtual_time import run_in_virtual_time


def in_virtual_time(test: Callable[..., Any]) -> Callable[..., None]:
    """Make a coroutine a test."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        run_in_virtual_time(test(**arguments))

    return run
