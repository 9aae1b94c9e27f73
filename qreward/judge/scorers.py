"""What is the same for every scorer that is passed as an argument: its asynchronous form, and a description for journals.

This module must not know how a scorer works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qreward.engine.portal import BlockingTwin
from qreward.errors import ConfigError
from qreward.judge.calibration import digest
from qreward.judge.types import Scorer

AnyScorer = Scorer | BlockingTwin[Any]
"""A scorer, or the blocking twin of one, such as a ``SyncJudge``."""


def unblocked(given: Any, what: str, needed: Sequence[str] = ("score", "batch_score", "aclose")) -> Scorer:
    """The asynchronous form of a scorer. Raises ``ConfigError``, which calls it ``what``, for an object without a method that is needed."""
    scorer = given._async if isinstance(given, BlockingTwin) else given
    missing = [name for name in needed if not callable(getattr(scorer, name, None))]
    if missing:
        raise ConfigError(f"{what} must be a scorer, such as a Judge; {given!r} has no method {missing[0]!r}")
    return scorer  # type: ignore[no-any-return]


def described(scorer: object) -> str:
    """A description that differs if verdicts may differ: the ``repr`` and a digest of ``verdict_settings``, if the scorer has them.

    A scorer of the user's own without a ``repr`` is described by its class, as the address in the default ``repr`` changes in each run.
    """
    settings = getattr(scorer, "verdict_settings", None)
    if settings is not None:
        return f"{scorer!r}, settings {digest(settings)[:16]}"
    cls = type(scorer)
    return repr(scorer) if cls.__repr__ is not object.__repr__ else f"{cls.__module__}:{cls.__qualname__}"
