"""What a batch function gave, as the outcome of each caller: its own result, or an error of its own.

Pure. Nothing is given by position unless there is one result for each item; and no two callers share an exception.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set
from typing import Any

from qreward.errors import InvalidResponse, RequestError


def results_of(given: Any, count: int) -> Sequence[Any]:
    """What was returned, as one result for each of ``count`` items.

    Raises:
        TypeError: it is nothing that holds results in order: no length, or a text, bytes, mapping or set.
        InvalidResponse: it holds more or fewer.
    """
    if type(given) is not list and type(given) is not tuple:
        given = _in_order(given)
    if len(given) != count:
        raise InvalidResponse(
            f"Batched function doesn't preserve batch size. The input list has length {count} but the returned list has "
            f"length {len(given)}."
        )
    return given  # type: ignore[no-any-return]


def own_error(error: BaseException) -> BaseException:
    """An exception for one caller alone, raised from the original: of the same type, or a ``RequestError`` if it cannot be copied."""
    for make in (copy.copy, _bare_copy):
        try:
            made = make(error)
            same = type(made) is type(error) and made is not error and str(made) == str(error) and len(made.args) == len(error.args)
        except Exception:
            same = False
        if same:
            if hasattr(made, "__notes__"):
                made.__notes__ = list(made.__notes__)
            break
    else:
        made = RequestError(f"{type(error).__name__}: {_words(error)}")
    made.__cause__ = error
    return made


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it cannot be shown)"


def _in_order(given: Any) -> Sequence[Any]:
    kind = type(given).__name__
    if isinstance(given, str | bytes | bytearray | Mapping | Set):
        raise TypeError(f"the batch function must return a list with one result for each item, not a {kind}")
    try:
        length = len(given)
    except TypeError:
        raise TypeError(f"the batch function must return a list with one result for each item; a {kind} has no len()") from None
    results = list(given)
    if len(results) != length:  # such as the column names of a table
        raise TypeError(f"the batch function returned a {kind} of length {length} that holds {len(results)} things; return a list")
    return results


def _bare_copy(error: BaseException) -> BaseException:
    """A copy made without ``__init__``, which may want other arguments than those the exception keeps."""
    made: BaseException = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made
