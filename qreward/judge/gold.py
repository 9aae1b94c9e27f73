"""Read labelled items from JSONL, judge these items, and calibrate the judge with the labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from qreward.errors import ConfigError, RequestError
from qreward.judge.calibration import Calibration, Method, check_installed, check_labels, range_to_calibrate
from qreward.judge.judge import Judge
from qreward.judge.verdict_parser import bounds
from qreward.options import JudgeBatchOptions
from qreward.settings.base import repeated, shown

LABEL = "label"
"""The field of an item that holds its label. The judge does not see this field."""
MOST_FAILED = 0.2
"""Maximum share (0 to 1) of items that may fail. Long items fail more often than short items, so more failures would bias the
calibration."""

Items = str | Path | Iterable[Mapping[str, Any]]
"""The path of a JSONL file, or mappings of fields."""


class PlacedItem(NamedTuple):
    """Holds an item, and the place of the item in the input for error messages, such as ``gold.jsonl, line 3`` or ``items[2]``."""

    place: str
    fields: Mapping[str, Any]


def read_items(source: Items, name: str = "items") -> list[PlacedItem]:
    """Read items from a JSONL file or from mappings. Empty lines of a file are skipped. ``name`` names the argument in error messages."""
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: a JSON string may hold U+2028
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise ConfigError(f"{path}: is not UTF-8 text") from None
        numbered = [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
        found = [PlacedItem(place, _parsed(line, place)) for place, line in numbered]
    elif isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise ConfigError(f"{name} must be the path of a JSONL file or a list of mappings, not a {type(source).__name__}")
    else:
        found = [PlacedItem(f"{name}[{place}]", item) for place, item in enumerate(source)]
    for place, item in found:
        if not isinstance(item, Mapping):
            kind = "null" if item is None else f"a {type(item).__name__}"
            raise ConfigError(f'{place}: must be a mapping of fields, such as {{"prompt": ..., "response": ...}}, not {kind}')
    if not found:
        raise ConfigError(f"{source}: is empty" if isinstance(source, str | Path) else f"{name} is empty")
    return found


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}: is not valid JSON: {error.msg} (column {error.colno}); write one object per line") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: cannot be read: {error}") from None


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if double := repeated(name for name, _ in pairs):
        raise ValueError(f"the name {double!r} is there twice; keep one")
    return dict(pairs)


def labelled(source: Items, scale: tuple[float, float] = (0.0, 1.0)) -> tuple[list[Mapping[str, Any]], list[float]]:
    low, high = bounds("scale", scale)
    if low >= high:
        raise ConfigError(f"scale must be (lowest, highest), such as (0, 10), not ({low:g}, {high:g})")
    items: list[Mapping[str, Any]] = []
    labels: list[float] = []
    wanted = f"true, false or a number from {low:g} to {high:g}"
    for place, fields in read_items(source, "gold"):
        if LABEL not in fields:
            raise ConfigError(f"{place}: has no {LABEL!r}; give {wanted}")
        label = fields[LABEL]
        if not isinstance(label, int | float) or not isfinite(label):
            raise ConfigError(f"{place}: {LABEL!r} must be {wanted}, not {shown(label)}")
        if not isinstance(label, bool):
            if not low <= label <= high:
                raise ConfigError(
                    f"{place}: the label {label:g} is not from {low:g} to {high:g}; set scale to the lowest and highest label"
                )
            label = (label - low) / (high - low)
        labels.append(float(label))
        items.append({name: value for name, value in fields.items() if name != LABEL})
    return items, labels


async def calibrate(
    judge: Judge,
    gold: Items,
    *,
    method: Method | Literal["auto"] = "auto",
    scale: tuple[float, float] = (0.0, 1.0),
    **options: Unpack[JudgeBatchOptions],
) -> Calibration:
    """Judge labelled items, and fit a calibration to the scores and labels.

    Args:
        judge: the judge, without a calibration.
        gold: the labelled items: the path of a JSONL file, or mappings. Each item has ``prompt``, ``response``, ``label`` and the other
            fields that the judge's prompt names. A label is True, False or a number on ``scale``, such as the share of people who said yes.
        method: ``temperature``, ``platt``, ``isotonic`` or ``auto``; see :meth:`Calibration.fit`.
        scale: lowest and highest label, such as (1, 5) for one to five stars.
        options: as in :meth:`Judge.batch_score`.

    Returns:
        The calibration. Items that could not be judged are left out, and counted in ``failed``.

    Raises:
        ConfigError: the judge already has a calibration, the range of its scores is not known, a label is missing or invalid, or there are
            too few labels. In these cases nothing was sent. ``ConfigError`` is also raised after judging, if all scores are equal or the
            labels do not rise with the scores.
        RequestError: more than a fifth of the items could not be judged.
        NoEndpoint, BatchInterrupted: as in :meth:`Judge.batch_score`.

    Example:
        >>> async def make(judge):
        ...     (await calibrate(judge, "gold.jsonl", timeout=60)).save("calibration.json")
    """
    if not isinstance(judge, Judge):
        raise ConfigError(f"judge must be a Judge, not a {type(judge).__name__}")
    if judge.calibration is not None:
        raise ConfigError("the judge has a calibration already; calibrate a judge without one")
    if not options.get("keep_results", True):
        raise ConfigError("keep_results cannot be False here: the scores are needed")
    to_unit = range_to_calibrate(judge.method, judge.score_range).to_unit
    items, labels = labelled(gold, scale)
    check_labels(labels)
    check_installed()  # before anything is sent
    batch = await judge.batch_score(items, **options)
    errors = list(batch.errors.values())
    if len(errors) > MOST_FAILED * len(batch):
        kinds = Counter(type(error).__name__ for error in errors).most_common()
        first = next(error for error in errors if type(error).__name__ == kinds[0][0])
        raise RequestError(
            f"{len(errors)} of {len(batch)} labelled items could not be judged, and at most a fifth may fail: "
            f"{', '.join(f'{count} {kind}' for kind, count in kinds)}; the first {kinds[0][0]}: {first}"
        ) from errors[0]
    judged = [(result.value, label) for result, label in zip(batch, labels, strict=True) if result.ok]
    return Calibration.fit(
        [to_unit(verdict.score) for verdict, _ in judged],
        [label for _, label in judged],
        method=method,
        failed=len(labels) - len(judged),
        judge=judge.identity,
    )
