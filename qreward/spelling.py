"""Suggestions for misspelt names. Every "did you mean" of the package is made here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

TYPO = 0.85
"""Minimum similarity (0 to 1) of two names at which the first name counts as a misspelling of the second name. This minimum is used
where unknown names are allowed. For example, ``time_out`` counts as a misspelling of ``timeout``, but ``store`` does not count as a
misspelling of ``score``."""

SYNONYMS = {"max_parallel_requests": "max_concurrency"}
"""Name of a setting in another library (LiteLLM) -> its name here, if the two names are not similar."""


def closest(name: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that are most similar to ``name``, best first. Case is ignored.

    Args:
        name: the invalid name.
        known: the valid names.
        most: maximum number of names to return.
        cutoff: minimum similarity, from 0 (any name) to 1 (only the same name).

    Example:
        >>> closest("time_out", ["timeout", "deadline"])
        ['timeout']
    """
    by_case: dict[str, list[str]] = {}
    for each in known:
        by_case.setdefault(each.lower(), []).append(each)
    found = difflib.get_close_matches(str(name).lower(), by_case, n=most, cutoff=cutoff)
    return [each for lower in found for each in by_case[lower]][:most]


def did_you_mean(name: object, known: Iterable[str], *, cutoff: float = 0.6, otherwise: str = "valid names:") -> str:
    """Return the end of an error message about a wrong name: the closest valid name, or all valid names.

    Example:
        >>> did_you_mean("rpmm", ["rpm", "tpm"])
        "did you mean 'rpm'?"
        >>> did_you_mean("x", ["rpm", "tpm"])
        "valid names: 'rpm', 'tpm'"
    """
    names = list(known)
    if SYNONYMS.get(str(name)) in names:
        return f"did you mean {SYNONYMS[str(name)]!r}?"
    if near := closest(name, names, cutoff=cutoff):
        return f"did you mean {near[0]!r}?"
    return f"{otherwise} {', '.join(map(repr, names)) or 'none'}"
