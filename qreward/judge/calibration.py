"""``Calibration``: turns a judge's scores into probabilities, knows the judge it was made for, and is kept in a file.

The curve and the measures come from ``calibration_fit``. This module sends nothing and knows no ``Judge``, only its ``JudgeIdentity``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, model_validator

from qreward.errors import ConfigError
from qreward.judge import calibration_fit as fits
from qreward.judge.calibration_fit import Curve, Method
from qreward.settings.base import Many, Policy

LEAST_LABELS = 50
"""The fewest labels for a calibration. Even 300 leave an error of about 0.02; see docs/how-to/calibration.md."""
LEAST_OF_EACH = 10
"""The fewest labels of yes and of no. Ten for each number that is fitted is the usual rule (Peduzzi et al. 1996)."""

_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class JudgeIdentity(Policy):
    """What the scores of a judge depend on. Settings are stored as digests, because they may contain an API key.

    Args:
        models: names of the judge models.
        settings: name of a setting -> digest of its value, for settings that are not at their default.
        weights: identifiers of the weights of the models, as servers reported them with answers to this judge; see
            :func:`~qreward.judge.codec.fingerprint_of`.
    """

    models: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    weights: tuple[str, ...] = ()

    def differences(self, other: JudgeIdentity) -> tuple[str, ...]:
        """What differs in another identity, without the weights: ``model`` with both names, and the names of settings.

        Example:
            >>> JudgeIdentity(models=("judge-7b",)).differences(JudgeIdentity(models=("judge-70b",), settings={"samples": "00"}))
            ('model (was judge-7b, is judge-70b)', 'samples')
        """
        models = [] if self.models == other.models else [f"model (was {', '.join(self.models)}, is {', '.join(other.models)})"]
        names = sorted({*self.settings, *other.settings})
        return (*models, *(name for name in names if self.settings.get(name) != other.settings.get(name)))

    def has_other_weights(self, fingerprint: str) -> bool:
        """True if the fingerprint is none of these weights. False if no weights are known."""
        return bool(self.weights) and fingerprint not in self.weights


class Identified(Protocol):
    """A judge: an object that knows its identity."""

    @property
    def identity(self) -> JudgeIdentity:
        """What its scores depend on."""
        raise NotImplementedError


def digest(value: object) -> str:
    """A digest of a value, equal for equal values. A function or class is known by its name."""
    encoded = json.dumps(value, sort_keys=True, default=_named).encode()
    return blake2b(encoded, digest_size=16).hexdigest()


def _named(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


class CalibrationQuality(Policy):
    """How far scores are from probabilities.

    Attributes:
        ece: expected calibration error; see :func:`~qreward.judge.calibration_fit.ece`.
        ece_by_chance: the ECE to expect of exact probabilities with as many yes-or-no labels. An ``ece`` of this size shows no fault.
        brier: Brier score, the mean squared error.
        log_loss: mean log loss in nats.
        accuracy: share of items on the same side of 0.5 as their label. None if all labels are 0.5.
    """

    ece: _Share
    ece_by_chance: _Share
    brier: _Share
    log_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    accuracy: _Share | None = None

    @classmethod
    def of(cls, probabilities: Sequence[float], labels: Sequence[float]) -> CalibrationQuality:
        """Measure probabilities against labels, one label for each."""
        losses = fits.log_losses(probabilities, labels)
        return cls(
            ece=fits.ece(probabilities, labels),
            ece_by_chance=fits.ece_by_chance(probabilities, labels),
            brier=fits.brier(probabilities, labels),
            log_loss=sum(losses) / len(losses),
            accuracy=fits.accuracy(probabilities, labels),
        )

    def __str__(self) -> str:
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.3f}"
        return f"ECE {self.ece:.3f} (by chance {self.ece_by_chance:.3f}), Brier {self.brier:.3f}, accuracy {accuracy}"


class Calibration(Policy):
    """A curve from a judge's score, in 0..1, to the probability that the label is yes, or to the expected label.

    Make one with :func:`~qreward.judge.gold.calibrate`, or with :meth:`fit` from scores that you have.

    Attributes:
        method: ``temperature``, ``platt`` or ``isotonic``; see :func:`~qreward.judge.calibration_fit.fit`.
        slope, intercept: of ``temperature`` and ``platt``. The temperature is ``1 / slope``.
        points: of ``isotonic``; see :class:`~qreward.judge.calibration_fit.Curve`.
        labels: number of labels that it was fitted to.
        failed: number of labelled items that could not be judged, and were left out.
        before: quality of the scores.
        after: quality of the calibrated scores, each by a curve that was fitted without this item. The quality of the final curve on its
            own items would look better than it is.
        judge: the judge it was made for; None if not known.

    Example:
        >>> scores, labels = [0.01] * 50 + [0.99] * 50, [True] * 10 + [False] * 40 + [True] * 40 + [False] * 10
        >>> calibration = Calibration.fit(scores, labels)
        >>> calibration.method, round(calibration.apply(0.99), 2), round(calibration.apply(0.5), 2)
        ('temperature', 0.79, 0.5)
    """

    format: Literal[1] = 1
    method: Method
    slope: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    intercept: _Finite = 0.0
    points: tuple[tuple[_Share, _Share], ...] = ()
    labels: Many
    failed: Many = 0
    before: CalibrationQuality
    after: CalibrationQuality
    judge: JudgeIdentity | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Calibration:
        if bool(self.points) != (self.method == "isotonic"):
            raise ValueError(
                f"points: {'must not be empty for' if self.method == 'isotonic' else 'must be empty for'} the method {self.method}"
            )
        for place in (0, 1):
            column = [point[place] for point in self.points]
            if column != sorted(column):
                raise ValueError("points: must not fall")
        return self

    @cached_property
    def curve(self) -> Curve:
        """The curve."""
        return Curve(self.slope, self.intercept, self.points)

    def apply(self, score: float) -> float:
        """The probability for a score. It never falls when the score rises.

        Args:
            score: the score in 0..1. One outside counts as the nearest end.

        Raises:
            ValueError: the score is not a number.
        """
        if score != score:  # noqa: PLR0124 - only NaN differs from itself
            raise ValueError("a score must be a number, not nan")
        return self.curve(score)

    @classmethod
    def fit(
        cls,
        scores: Sequence[float],
        labels: Sequence[float | bool],
        *,
        method: Method | Literal["auto"] = "auto",
        failed: int = 0,
        judge: JudgeIdentity | None = None,
    ) -> Calibration:
        """Fit a calibration.

        Args:
            scores: the judge's scores, in 0..1.
            labels: for each score its label: True or False, or the probability of yes, or a grade in 0..1.
            method: ``auto`` takes the method with the lowest log loss in cross-validation; see
                :func:`~qreward.judge.calibration_fit.choose`.
            failed: number of items that were left out.
            judge: the judge that gave the scores.

        Raises:
            ConfigError: there are too few labels, almost all of them are equal, or they do not rise with the scores.
        """
        scores, numbers = _in_unit("scores", scores), _in_unit("labels", labels)
        check_labels(numbers)
        if len(scores) != len(numbers):
            raise ConfigError(f"there are {len(scores)} scores and {len(numbers)} labels; give one label for each score")
        if method not in ("auto", *fits.METHODS):
            raise ConfigError(f"method must be 'auto', {', '.join(map(repr, fits.METHODS))}, not {method!r}")
        if min(scores) == max(scores):
            raise ConfigError(f"the judge gave the score {scores[0]:g} to all {len(scores)} items, which says nothing about their labels")
        chosen = fits.choose(scores, numbers) if method == "auto" else method
        curve = fits.fit(chosen, scores, numbers)
        if not curve.rises:
            raise ConfigError(
                "the judge's scores do not rise with the labels, so no calibration can help; check that labels are not the wrong way round"
            )
        return cls(
            method=chosen,
            **curve._asdict(),
            labels=len(numbers),
            failed=failed,
            before=CalibrationQuality.of(scores, numbers),
            after=CalibrationQuality.of(fits.held_out(chosen, scores, numbers), numbers),
            judge=judge,
        )

    def changed(self, judge: Identified) -> tuple[str, ...]:
        """What has changed since the calibration was made: the names of settings, ``model``, and ``weights``. Empty if nothing has.

        ``weights`` is known only if the judge has answered, and as far as its servers say which weights answer.
        """
        if self.judge is None:
            return ()
        now = judge.identity
        others = any(map(self.judge.has_other_weights, now.weights))
        return (*self.judge.differences(now), *(["weights"] if others else []))

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file. A file that is there is replaced as a whole, so no reader finds a part of it.

        Raises:
            ConfigError: the file cannot be written.
        """
        target = Path(path).expanduser()
        temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
        try:
            try:
                with temporary.open("x", encoding="utf-8") as file:
                    file.write(self.model_dump_json(indent=2) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"the calibration cannot be written to {str(target)!r}: {error.strerror}") from None

    @classmethod
    def load(cls, source: str | Path | Calibration) -> Calibration:
        """Read a calibration from its file. A calibration is returned unchanged.

        Raises:
            ConfigError: the file cannot be read, or is not a calibration. The message names the file.
        """
        if isinstance(source, Calibration):
            return source
        path = Path(source).expanduser()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}; make it with `qreward judge calibrate`") from None
        except (ValueError, RecursionError):
            raise ConfigError(f"{path}: is not a calibration: it is not valid JSON") from None
        if not isinstance(content, Mapping):
            raise ConfigError(f"{path}: is not a calibration: it is not a JSON object")
        try:
            return cls.from_content(content)
        except ConfigError as error:
            lines = [f"{path}: {line.removeprefix('Calibration: ')}" for line in str(error).splitlines()]
            raise ConfigError("\n".join(lines)) from None

    def __str__(self) -> str:
        left_out = f", {self.failed} left out" if self.failed else ""
        return f"{self.method}, {self.labels} labels{left_out}\nbefore  {self.before}\nafter   {self.after}"


def _in_unit(name: str, values: Sequence[Any]) -> list[float]:
    for place, value in enumerate(values):
        if not isinstance(value, int | float) or not isfinite(value) or not 0 <= value <= 1:
            raise ConfigError(f"{name}[{place}] must be a number from 0 to 1, not {value!r}")
    return [float(value) for value in values]


def check_labels(labels: Sequence[float]) -> None:
    """Raise ``ConfigError`` if there are too few labels, in 0..1, or too few of yes or of no. Labels between count in proportion."""
    if len(labels) < LEAST_LABELS:
        raise ConfigError(f"a calibration needs at least {LEAST_LABELS} labels, better 300; there are {len(labels)}")
    yes = sum(labels)
    for name, count in (("yes (1)", yes), ("no (0)", len(labels) - yes)):
        if count < LEAST_OF_EACH:
            raise ConfigError(
                f"a calibration needs at least {LEAST_OF_EACH} labels of yes and of no; {count:g} of {len(labels)} labels say {name}"
            )
