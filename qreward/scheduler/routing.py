"""Maps a model name to a route: an exact match first, then the most specific glob that matches."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from typing import Generic, TypeVar

R = TypeVar("R")


def is_glob(pattern: str) -> bool:
    return any(mark in pattern for mark in "*?[")


def specificity(pattern: str) -> tuple[int, int, int, str]:
    """Return a sort key: more literal characters, fewer ``*``, fewer ``?`` and ``[...]``, and then the alphabet."""
    bare = re.sub(r"\[!?\]?[^\]]*\]", "?", pattern)
    literal = sum(mark not in "*?" for mark in bare)
    return literal, -bare.count("*"), -bare.count("?"), pattern


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def matches(pattern: str, model: str) -> bool:
    return _compiled(pattern).match(model) is not None if is_glob(pattern) else pattern == model


class Routes(Generic[R]):
    """Maps patterns to routes. Matching is case-sensitive."""

    def __init__(self) -> None:
        self._exact: dict[str, R] = {}
        self._globs: dict[str, R] = {}

    def set(self, pattern: str, route: R) -> None:
        (self._globs if is_glob(pattern) else self._exact)[pattern] = route
        self._globs = dict(sorted(self._globs.items(), key=lambda item: specificity(item[0]), reverse=True))

    def remove(self, pattern: str) -> None:
        self._exact.pop(pattern, None)
        self._globs.pop(pattern, None)

    def find(self, model: str) -> R | None:
        if model in self._exact:
            return self._exact[model]
        return next((route for pattern, route in self._globs.items() if matches(pattern, model)), None)

    def items(self) -> dict[str, R]:
        """Return pattern -> route, in the order in which patterns are tried."""
        return {**self._exact, **self._globs}
