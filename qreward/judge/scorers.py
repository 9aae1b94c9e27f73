"""Functions for a scorer that was passed as an argument, its input and its verdicts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from math import isfinite
from typing import Any

from qreward.engine.portal import BlockingTwin
from qreward.errors import ConfigError, InvalidResponse
from qreward.judge.calibration import digest
from qreward.judge.types import Scorer, Verdict

AnyScorer = Scorer | BlockingTwin[Any]
"""A scorer, or the blocking twin of a scorer, such as a ``SyncJudge``."""


def unblocked(given: Any, what: str, needed: Sequence[str] = ("score", "batch_score", "aclose")) -> Scorer:
    scorer = given._async if isinstance(given, BlockingTwin) else given
    missing = [name for name in needed if not callable(getattr(scorer, name, None))]
    if missing:
        raise ConfigError(f"{what} must be a scorer, such as a Judge; {given!r} has no method {missing[0]!r}")
    return scorer  # type: ignore[no-any-return]


async def one_by_one(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    """Read an input of either kind, and close it at the end."""
    iterator: Any = aiter(items) if isinstance(items, AsyncIterable) else iter(items)
    try:
        if isinstance(items, AsyncIterable):
            async for item in iterator:
                yield item
        else:
            for item in iterator:
                yield item
    finally:
        if (aclose := getattr(iterator, "aclose", None)) is not None:
            await aclose()
        elif (close := getattr(iterator, "close", None)) is not None:
            close()


def models_of(scorer: Any) -> tuple[str, ...]:
    """Return the models that a judge or reward model asks; empty for another scorer."""
    models = getattr(getattr(scorer, "_config", None), "model", None) or getattr(scorer, "_model", None) or ()
    return (models,) if isinstance(models, str) else tuple(models)


def check_finite(verdict: Verdict) -> None:
    """Raise ``InvalidResponse`` if the score or an attribute of a verdict, perhaps of a scorer of the user, is not a finite number."""
    for name, number in {"score": verdict.score, **(verdict.attributes or {})}.items():
        try:
            is_finite = isfinite(number)
        except (TypeError, ValueError, OverflowError):
            is_finite = False
        if not is_finite:
            error = InvalidResponse(f"the scorer returned {ascii(number)[:100]} as {name!r}, which is not a finite number")
            error.usage = verdict.usage
            raise error


def described(scorer: object) -> str:
    """Return a text that differs between scorers whose verdicts may differ: the ``repr``, and a digest of the ``verdict_settings``."""
    settings = getattr(scorer, "verdict_settings", None)
    if settings is not None:
        return f"{scorer!r}, settings {digest(settings)[:16]}"
    cls = type(scorer)
    return repr(scorer) if cls.__repr__ is not object.__repr__ else f"{cls.__module__}:{cls.__qualname__}"
