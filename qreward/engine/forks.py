"""What starts anew in a forked child. Knows nothing of what it is."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_ALIVE: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
_INHERITED: list[object] = []


def watch(thing: T, begin_again: Callable[[T], object]) -> None:
    """See that ``begin_again(thing)`` is called in each forked child, as long as somebody holds the thing.

    It returns what was the parent's: locks, loops, connections. That is kept, for closing it would reach the parent.
    """
    _ALIVE[thing] = begin_again


def _after_fork() -> None:
    for thing, begin_again in list(_ALIVE.items()):
        _INHERITED.append(begin_again(thing))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
