"""``Calibration``: turns the scores of one judge into probabilities, and can be saved to a file."""

from __future__ import annotations

import json
import os
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import exp, log
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, model_validator

from qreward.engine.instrumentation import LOG
from qreward.errors import ConfigError
from qreward.settings.base import Finite, Many, Policy

Method = Literal["temperature", "platt", "isotonic"]
METHODS: tuple[Method, ...] = get_args(Method)
"""The methods, from the simplest to the most flexible."""
EDGE = 1e-6
"""Minimum distance of a score from 0 and from 1. A score that is closer is moved to this distance, because the logit of 0 and of 1 is
infinite."""
LEAST_LABELS = 50
"""Minimum number of labels for a calibration. Even with 300 labels, calibrated scores have a calibration error (ECE) of about 0.02; see
docs/how-to/calibration.md."""
LEAST_OF_EACH = 10
"""Minimum number of labels that say yes, and of labels that say no. The usual rule is ten labels for each fitted number (Peduzzi et al.
1996)."""
MOST_WEIGHTS = 100
"""Maximum number of fingerprints of weights that are recorded. A fleet has only a few fingerprints, but the fingerprint of an API may
change often."""

_IRRELEVANT = (
    "model", "range", "reasks", "finish_reasons", "min_label_mass", "cache", "cache_namespace", "calibration", "pair_prompt", "prompt",
    "verdict", "budget", "params",
)  # fmt: skip
"""Settings that have no digest in an identity. Either such a setting does not change the score of an item, or ``identity_of`` receives it
separately."""

_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Curve(NamedTuple):
    """Maps a score in 0..1 to a probability. The function never falls."""

    slope: float = 1.0
    intercept: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def __call__(self, score: float) -> float:
        """Return the probability for a score. A score outside 0..1 counts as the nearer end."""
        if not self.points:
            return sigmoid(self.slope * logit(score) + self.intercept)
        place = bisect(self.points, score, key=itemgetter(0))
        if place in (0, len(self.points)):
            return self.points[max(place - 1, 0)][1]
        (left, low), (right, high) = self.points[place - 1], self.points[place]
        return min(low + (high - low) * ((score - left) / (right - left)), high)

    @property
    def rises(self) -> bool:
        return self.points[0][1] < self.points[-1][1] if self.points else self.slope > 0


def logit(score: float) -> float:
    score = min(max(score, EDGE), 1 - EDGE)
    return log(score / (1 - score))


def sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value)) if value >= 0 else (small := exp(value)) / (1 + small)


class JudgeIdentity(Policy):
    """Holds the settings and weights on which the scores of a judge depend. Settings are stored as digests, because they may contain an API
    key."""

    models: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    weights: tuple[str, ...] = ()

    def differences(self, other: JudgeIdentity) -> tuple[str, ...]:
        """Return what differs in another identity: ``model``, with the names of the models in both identities; and the names of other
        settings."""
        models = [] if self.models == other.models else [f"model (was {', '.join(self.models)}, is {', '.join(other.models)})"]
        names = sorted({*self.settings, *other.settings})
        return (*models, *(name for name in names if self.settings.get(name) != other.settings.get(name)))


def digest(value: object) -> str:
    """Return a digest of a value. Equal values have equal digests. A function or class is represented by its name."""
    named = lambda part: f"{part.__module__}:{part.__qualname__}" if hasattr(part, "__qualname__") else repr(part)  # noqa: E731
    return blake2b(json.dumps(value, sort_keys=True, default=named).encode(), digest_size=16).hexdigest()


def identity_of(config: Any, others: Mapping[str, Any], weights: Iterable[str] = ()) -> JudgeIdentity:
    """Return the identity of a judge. Settings at their default are left out, so that a new setting changes no saved identity."""
    fields = type(config).model_fields
    values = {name: value for name, value in config if name not in _IRRELEVANT and value != fields[name].default}
    values |= {name: value for name, value in others.items() if value is not None}
    values |= {name: value for name, value in config.params.items() if name not in ("extra_headers", "hedge")}
    digests = {name: digest(value) for name, value in sorted(values.items())}
    return JudgeIdentity(models=config.model, settings=digests, weights=tuple(sorted(weights)))


class CalibrationQuality(Policy):
    """Measures of how far scores are from probabilities; docs/how-to/calibration.md describes them. ``log_loss`` is in nats."""

    ece: _Share
    ece_by_chance: _Share
    brier: _Share
    log_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    accuracy: _Share | None = None
    """None if all labels are 0.5."""

    def __str__(self) -> str:
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.3f}"
        return f"ECE {self.ece:.3f} (by chance {self.ece_by_chance:.3f}), Brier {self.brier:.3f}, accuracy {accuracy}"


class Calibration(Policy):
    """Maps a judge's score, in 0..1, to the probability that the label is yes, or to the expected label.

    Make a calibration with :func:`~qreward.judge.agreement.calibrate`, or with :meth:`fit` from scores that you have.

    Attributes:
        method: ``temperature``, ``platt`` or ``isotonic``; see :func:`~qreward.judge.calibration.fit`.
        slope, intercept: parameters of ``temperature`` and ``platt``. The temperature is ``1 / slope``.
        points: parameters of ``isotonic``; see :class:`Curve`.
        labels: number of labels to which the curve was fitted.
        failed: number of labelled items that could not be judged, and were left out.
        before: quality of the scores.
        after: quality of the calibrated scores, by cross-validation: the curve for an item is fitted without this item. A curve that is
            measured on the items to which it was fitted looks better than it really is.
        judge: the judge for which the calibration was made; None if the judge is not known.

    Example:
        >>> scores, labels = [0.01] * 50 + [0.99] * 50, [True] * 10 + [False] * 40 + [True] * 40 + [False] * 10
        >>> calibration = Calibration.fit(scores, labels)
        >>> calibration.method, round(calibration.apply(0.99), 2), round(calibration.apply(0.5), 2)
        ('temperature', 0.79, 0.5)
    """

    format: Literal[1] = 1
    method: Method
    slope: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    intercept: Finite = 0.0
    points: tuple[tuple[_Share, _Share], ...] = ()
    labels: Many
    failed: Many = 0
    before: CalibrationQuality
    after: CalibrationQuality
    judge: JudgeIdentity | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Calibration:
        if bool(self.points) != (self.method == "isotonic"):
            raise ValueError(f"points: must {'' if self.points else 'not '}be empty for the method {self.method}")
        if any(list(column) != sorted(column) for column in zip(*self.points, strict=True)):
            raise ValueError("points: must not fall")
        return self

    def apply(self, score: float) -> float:
        """Return the probability for a score. A higher score never has a lower probability.

        Args:
            score: the score in 0..1. A score outside 0..1 counts as the nearer end.

        Raises:
            ValueError: the score is not a number.
        """
        if score != score:  # noqa: PLR0124 - only NaN differs from itself
            raise ValueError("a score must be a number, not nan")
        return Curve(self.slope, self.intercept, self.points)(score)

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
        """Fit a calibration to scores and labels.

        Args:
            scores: the judge's scores, in 0..1.
            labels: one label for each score: True, False, the probability of yes, or a grade in 0..1.
            method: ``auto`` takes the method with the lowest log loss in cross-validation; see
                :func:`~qreward.judge.calibration.choose`.
            failed: number of labelled items that could not be judged.
            judge: the judge that gave the scores.

        Raises:
            ConfigError: there are too few labels, almost all labels are equal, or the labels do not rise with the scores.
        """
        fits = fitting()
        scores, numbers = _in_unit("scores", scores), _in_unit("labels", labels)
        check_labels(numbers)
        if len(scores) != len(numbers):
            raise ConfigError(f"there are {len(scores)} scores and {len(numbers)} labels; give one label for each score")
        if method not in ("auto", *METHODS):
            raise ConfigError(f"method must be 'auto', {', '.join(map(repr, METHODS))}, not {method!r}")
        if min(scores) == max(scores):
            raise ConfigError(f"the judge gave the score {scores[0]:g} to all {len(scores)} items, which says nothing about their labels")
        chosen = fits.choose(scores, numbers) if method == "auto" else method
        curve = fits.fit(chosen, scores, numbers)
        if not curve.rises:
            raise ConfigError(
                "the judge's scores do not rise with the labels, so no calibration can help; check that labels are not the wrong way round"
            )
        before, after = (fits.quality_of(each, numbers) for each in (scores, fits.held_out(chosen, scores, numbers)))
        return cls(method=chosen, **curve._asdict(), labels=len(numbers), failed=failed, before=before, after=after, judge=judge)

    def save(self, path: str | Path) -> None:
        """Write the calibration to a JSON file. An existing file is replaced in one step, so that no reader sees half of it.

        Raises:
            ConfigError: the file cannot be written.
        """
        target = Path(path).expanduser()
        temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(self.model_dump_json(indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            raise ConfigError(f"the calibration cannot be written to {str(target)!r}: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, source: str | Path | Calibration) -> Calibration:
        """Read a calibration from its file. If ``source`` is a ``Calibration``, it is returned unchanged.

        Raises:
            ConfigError: the file cannot be read, or is not a calibration. The message names the file.
        """
        if isinstance(source, Calibration):
            return source
        path = Path(source).expanduser()
        try:
            return cls.from_content(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}; make it with `qreward judge calibrate`") from None
        except ConfigError as error:
            raise ConfigError("\n".join(f"{path}: {line.removeprefix('Calibration: ')}" for line in str(error).splitlines())) from None
        except (ValueError, RecursionError):
            raise ConfigError(f"{path}: is not a calibration: it is not valid JSON") from None

    def __str__(self) -> str:
        left_out = f", {self.failed} left out" if self.failed else ""
        return f"{self.method}, {self.labels} labels{left_out}\nbefore  {self.before}\nafter   {self.after}"


def _in_unit(name: str, values: Sequence[Any]) -> list[float]:
    values = [value.tolist() if hasattr(value, "tolist") else value for value in values]  # of numpy
    for place, value in enumerate(values):
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"{name}[{place}] must be a number from 0 to 1, not {value!r}")
    return [float(value) for value in values]


def check_labels(labels: Sequence[float]) -> None:
    """Raise ``ConfigError`` if there are too few labels, or too few labels of yes or of no. A label of 0.3 counts as 0.3 of a yes."""
    if len(labels) < LEAST_LABELS:
        raise ConfigError(f"a calibration needs at least {LEAST_LABELS} labels, better 300; there are {len(labels)}")
    yes = sum(labels)
    for name, count in (("yes (1)", yes), ("no (0)", len(labels) - yes)):
        if count < LEAST_OF_EACH:
            raise ConfigError(
                f"a calibration needs at least {LEAST_OF_EACH} labels of yes and of no; {count:g} of {len(labels)} labels say {name}"
            )


def to_unit(score: float, ends: tuple[float, float]) -> float:
    """Return a score as a share of the range between two ends, from 0 to 1."""
    return min(max((score - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0)


def range_to_calibrate(method: str, ends: tuple[float, float] | None) -> tuple[float, float]:
    if method == "auto":
        raise ConfigError("calibration: method='auto' may decide or write, which gives different scores; set method to 'decide' or 'write'")
    if ends is None:
        raise ConfigError("calibration: a score function gives scores without known ends; leave out score, or the calibration")
    if ends[0] == ends[1]:
        raise ConfigError(f"calibration: range ({ends[0]:g}, {ends[1]:g}) makes all scores equal; give it two ends")
    return ends


class Calibrator:
    """The calibration of a judge, if it has one, and the fingerprints of the weights that answered."""

    def __init__(self) -> None:
        self.calibration: Calibration | None = None
        self.weights: dict[str, None] = {}
        self._warned = False

    def use(self, calibration: Calibration, identity: JudgeIdentity, ends: tuple[float, float]) -> Callable[[float], float]:
        """Use a calibration for a judge with this identity and range of scores. Returns the function that calibrates a score."""
        if calibration.judge is not None and (changed := calibration.judge.differences(identity)):
            raise ConfigError(
                f"calibration: it was made for another judge; what differs: {', '.join(changed)}. "
                "Calibrate this judge (`qreward judge calibrate`), or restore the setting"
            )
        self.calibration = calibration
        low, width = ends[0], ends[1] - ends[0]
        return lambda score: low + width * calibration.apply(to_unit(score, ends))

    def note(self, fingerprint: str) -> None:
        """Record new weights that wrote an answer. If the calibration was made with other weights, a warning is logged once."""
        if len(self.weights) >= MOST_WEIGHTS:
            return
        self.weights[fingerprint] = None
        made_for = None if self.calibration is None else self.calibration.judge
        if made_for is not None and made_for.weights and fingerprint not in made_for.weights and not self._warned:
            self._warned = True
            LOG.warning(
                "the calibration of the judge %s was made with the weights %s, and now the weights %s answer; calibrate it again",
                ", ".join(made_for.models),
                ", ".join(made_for.weights),
                fingerprint,
            )


def fitting() -> Any:
    """Return the module that fits calibrations. Raises ``ConfigError`` if the extra is not installed."""
    try:
        from qreward.judge import calibration_fit  # noqa: PLC0415 - needs the extra qreward[calibration]
    except ModuleNotFoundError as error:
        raise ConfigError(f"a calibration is fitted with {error.name}; install it: pip install 'qreward[calibration]'") from None
    return calibration_fit
