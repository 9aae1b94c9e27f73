"""Apply a calibration to the scores of a ``Judge``, and check that the calibration was made for this judge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from qreward.errors import ConfigError
from qreward.judge.calibration import Calibration, JudgeIdentity, digest
from qreward.judge.config import JudgeConfig

MOST_WEIGHTS = 100
"""Maximum number of fingerprints of weights that are recorded. A fleet has only a few fingerprints, but the fingerprint of an API may
change often."""

_log = logging.getLogger("qreward")

_IRRELEVANT = (
    "model", "range", "reasks", "finish_reasons", "min_label_mass", "cache", "cache_namespace", "calibration", "pair_prompt", "prompt",
    "verdict", "budget",
)  # fmt: skip
"""Settings that have no digest in an identity. Either such a setting does not change the score of an item, or ``identity_of`` receives it
separately."""


def identity_of(config: JudgeConfig, others: Mapping[str, Any], weights: Iterable[str] = ()) -> JudgeIdentity:
    """Return the identity of a judge. Settings at their default are left out, so that a new setting does not change saved identities."""
    values = {name: getattr(config, name) for name in JudgeConfig.model_fields if name not in (*_IRRELEVANT, "params")}
    values = {name: value for name, value in values.items() if value != JudgeConfig.model_fields[name].default}
    values |= {name: value for name, value in others.items() if value is not None}
    values |= {name: value for name, value in config.params.items() if name not in ("extra_headers", "hedge")}
    digests = {name: digest(value) for name, value in sorted(values.items())}
    return JudgeIdentity(models=config.model, settings=digests, weights=tuple(sorted(weights)))


class ScoreRange(NamedTuple):
    low: float
    high: float

    def to_unit(self, score: float) -> float:
        """Return a score as a share of the range, from 0 to 1."""
        return min(max((score - self.low) / (self.high - self.low), 0.0), 1.0)

    def from_unit(self, place: float) -> float:
        return self.low + (self.high - self.low) * place


def range_to_calibrate(method: str, ends: tuple[float, float] | None) -> ScoreRange:
    if method == "auto":
        raise ConfigError("calibration: method='auto' may decide or write, which gives different scores; set method to 'decide' or 'write'")
    if ends is None:
        raise ConfigError("calibration: a score function gives scores without known ends; leave out score, or the calibration")
    if ends[0] == ends[1]:
        raise ConfigError(f"calibration: range ({ends[0]:g}, {ends[1]:g}) makes all scores equal; give it two ends")
    return ScoreRange(*ends)


class Calibrator:
    """Applies a calibration to the scores of a judge, and records the weights that answered. Without a calibration, the object only records
    the weights."""

    def __init__(self) -> None:
        self.calibration: Calibration | None = None
        self.weights: dict[str, None] = {}
        self._range, self._warned = ScoreRange(0.0, 1.0), False

    def use(self, calibration: Calibration, identity: JudgeIdentity, scores: ScoreRange) -> Callable[[float], float]:
        """Use a calibration for a judge with this identity and range of scores. Returns the function that calibrates a score."""
        if calibration.judge is not None and (changed := calibration.judge.differences(identity)):
            raise ConfigError(
                f"calibration: it was made for another judge; what differs: {', '.join(changed)}. "
                "Calibrate this judge (`qreward judge calibrate`), or restore the setting"
            )
        self.calibration, self._range = calibration, scores
        return self.apply

    def apply(self, score: float) -> float:
        assert self.calibration is not None
        return self._range.from_unit(self.calibration.apply(self._range.to_unit(score)))

    def note(self, fingerprint: str) -> None:
        """Record the weights that wrote an answer. If the calibration was made with other weights, a warning is logged once."""
        if fingerprint in self.weights or len(self.weights) >= MOST_WEIGHTS:
            return
        self.weights[fingerprint] = None
        made_for = None if self.calibration is None else self.calibration.judge
        if made_for is not None and not self._warned and made_for.has_other_weights(fingerprint):
            self._warned = True
            _log.warning(
                "the calibration of the judge %s was made with the weights %s, and now the weights %s answer; calibrate it again",
                ", ".join(made_for.models),
                ", ".join(made_for.weights),
                fingerprint,
            )
