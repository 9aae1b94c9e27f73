"""``calibrate`` a judge with labelled items, and measure the ``agreement`` of judges and what moves their scores besides quality."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import iscoroutinefunction
from itertools import combinations, pairwise
from pathlib import Path
from statistics import correlation, fmean, variance
from typing import Any, Literal, NamedTuple, Unpack

from qreward.errors import ConfigError, InvalidResponse, RequestError
from qreward.judge.aggregation import side_of
from qreward.judge.calibration import Calibration, Method, check_labels, fitting, range_to_calibrate, to_unit
from qreward.judge.judge import Judge
from qreward.judge.parsing import bounds
from qreward.judge.parsing.text import is_number
from qreward.judge.types import Comparison, Scorer
from qreward.options import JudgeBatchOptions, keeps_results
from qreward.render import text_table
from qreward.results import BatchResult
from qreward.settings.base import repeated, shown

LABEL = "label"
"""The field of an item that holds its label. The judge does not see this field."""
MOST_FAILED = 0.2
"""Maximum share (0 to 1) of items that may fail. Long items fail more often than short items, so more failures would bias the
calibration."""

Items = str | Path | Iterable[Mapping[str, Any]]
"""The path of a JSONL file, or mappings of fields."""


def read_items(source: Items, name: str = "items") -> list[tuple[str, Mapping[str, Any]]]:
    """Read items from a JSONL file or from mappings. Empty lines of a file are skipped.

    Returns the items, each with its place for error messages, such as ``gold.jsonl, line 3`` or ``items[2]``. ``name`` names the argument.
    """
    found: list[tuple[str, Any]]
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: a JSON string may hold U+2028
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError:
            raise ConfigError(f"{path}: is not UTF-8 text") from None
        found = [(place := f"{path}, line {number}", _parsed(line, place)) for number, line in enumerate(lines, 1) if line.strip()]
    elif isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise ConfigError(f"{name} must be the path of a JSONL file or a list of mappings, not a {type(source).__name__}")
    else:
        found = [(f"{name}[{place}]", item) for place, item in enumerate(source)]
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
        if isinstance(label, bool):
            labels.append(float(label))
        elif not is_number(label):
            raise ConfigError(f"{place}: {LABEL!r} must be {wanted}, not {shown(label)}")
        elif not low <= label <= high:
            raise ConfigError(f"{place}: the label {label:g} is not from {low:g} to {high:g}; set scale to the lowest and highest label")
        else:
            labels.append((label - low) / (high - low))
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
    if not keeps_results(options):
        raise ConfigError("keep_results cannot be False here: the scores are needed")
    ends = range_to_calibrate(judge.method, judge.score_range)
    items, labels = labelled(gold, scale)
    check_labels(labels)
    fitting()  # before anything is sent
    batch = await judge.batch_score(items, **options)
    errors = list(batch.errors.values())
    if len(errors) > MOST_FAILED * len(batch):
        kinds = Counter(type(error).__name__ for error in errors).most_common()
        first = next(error for error in errors if type(error).__name__ == kinds[0][0])
        raise RequestError(
            f"{len(errors)} of {len(batch)} labelled items could not be judged, and at most a fifth may fail: "
            f"{', '.join(f'{count} {kind}' for kind, count in kinds)}; the first {kinds[0][0]}: {first}"
        ) from errors[0]
    scores = [to_unit(result.value.score, ends) for result in batch if result.ok]
    labels = [label for result, label in zip(batch, labels, strict=True) if result.ok]
    return Calibration.fit(scores, labels, method=method, failed=len(errors), judge=judge.identity)


LEAST_ITEMS = 3
"""Minimum number of items for a correlation. A correlation of two items says nothing, because two points always lie on a line."""


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """Holds measures of one judge, which docs/how-to/calibration.md explains. A measure is None if there are no items from which it can be
    computed."""

    name: str
    items: int
    unreadable: float
    failed: float
    mean: float | None = None
    length_bias: float | None = None
    """Spearman correlation of the score with the length of the response in characters."""
    order_changes: float | None = None
    """Share of preferences (one for each pair, model and sample) that change when the two responses change places."""
    first_place: float | None = None
    """Share of preferences in both orders, without ties, for the response that is shown first."""


@dataclass(frozen=True, slots=True)
class JudgePairReport:
    """Holds measures of the agreement of two judges, as :class:`JudgeReport`."""

    first: str
    second: str
    alpha: float | None = None
    """Krippendorff's alpha of the scores of both judges."""
    correlation: float | None = None
    """Spearman correlation of the scores."""
    difference: float | None = None
    """Mean score of the first judge minus mean score of the second judge, over the items that both judges have scored."""
    same_preference: float | None = None
    """Share of the pairs for which both judges have the same preference."""


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """Holds the agreement and the biases of judges. ``print`` shows the report as tables.

    Attributes:
        alpha: Krippendorff's alpha of all judges' scores, as in :func:`krippendorff_alpha`. None for one judge, if all scores are equal, or
            if the scores of some judges are in 0..1 and those of others are not.
        preference_alpha: Krippendorff's alpha of all judges' preferences, where a tie is half-way between a preference for the first
            response and a preference for the second response.
        judges: a report for each judge.
        pairs: a report for each pair of judges.
    """

    alpha: float | None
    preference_alpha: float | None
    judges: tuple[JudgeReport, ...]
    pairs: tuple[JudgePairReport, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = _table("judge", self.judges)
        if self.pairs:
            alphas = f"{_cell(self.alpha)} of scores, {_cell(self.preference_alpha)} of preferences"
            lines += ["", *_table("judges", self.pairs), "", f"Krippendorff's alpha of all judges: {alphas}"]
        return "\n".join(lines)


def _table(head: str, reports: Sequence[JudgeReport | JudgePairReport]) -> list[str]:
    """Return a table with the name of each report below ``head``, and a column for each of its measures."""
    rows = []
    for report in reports:
        measures = asdict(report)
        names = [measures.pop(name) for name in ("name", "first", "second") if name in measures]
        rows.append({head: " and ".join(names)} | {name.replace("_", " "): _cell(value) for name, value in measures.items()})
    return text_table(rows, {head})


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def krippendorff_alpha(ratings: Sequence[Sequence[float | None]]) -> float | None:
    """Return Krippendorff's alpha for numbers (the interval metric): 1 minus the observed disagreement divided by the expected
    disagreement."""
    items = [[rating for rating in column if rating is not None] for column in zip(*ratings, strict=True)]
    items = [column for column in items if len(column) > 1]
    every = [rating for column in items for rating in column]
    if len(set(every)) < 2:
        return None
    # the mean squared difference of all pairs of n numbers is twice their variance
    observed: float = sum(variance(column) * len(column) for column in items)
    expected: float = variance(every) * len(every)
    return 1 - observed / expected


def spearman(ones: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the Spearman rank correlation. Equal numbers share their mean rank."""
    if len(ones) < LEAST_ITEMS or len(set(ones)) < 2 or len(set(others)) < 2:
        return None
    return correlation(_ranks(ones), _ranks(others))


def _ranks(numbers: Sequence[float]) -> list[int]:
    """Return twice the mean rank of each number, from 0."""
    ordered = sorted(numbers)
    return [bisect_left(ordered, number) + bisect_right(ordered, number) - 1 for number in numbers]


def position_bias(comparisons: Sequence[Comparison]) -> tuple[float | None, float | None]:
    """Return ``order_changes`` and ``first_place`` of :class:`JudgeReport`, from votes of one model and sample on both orders."""
    pairs = [pair for comparison in comparisons for pair in pairwise(comparison.votes)]
    sides = [(side_of(one), side_of(other)) for one, other in pairs if one.model == other.model and not one.swapped and other.swapped]
    # A side of 1 is the first response of the input. In the reversed order, this response is shown second.
    wins = [shown > 0 for one, other in sides for shown in (one, -other) if shown]
    return _mean(one != other for one, other in sides), _mean(wins)


def _mean(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    return fmean(found) if found else None


class Judged(NamedTuple):
    """Holds the results of one judge for all items and pairs."""

    scores: list[float | None]
    comparisons: list[Comparison | None]
    unreadable: int = 0
    failed: int = 0

    @property
    def preferences(self) -> list[float | None]:
        places = {"first": 1.0, "tie": 0.5, "second": 0.0}
        return [None if comparison is None else places[comparison.preference] for comparison in self.comparisons]


def report_of(judged: Mapping[str, Judged], lengths: Sequence[int]) -> AgreementReport:
    """Return the report on the results of judges. ``lengths`` has the length of each item's response in characters."""
    judges, pairs = [], []
    for name, each in judged.items():
        count = len(each.scores) + len(each.comparisons)
        known = [(score, length) for score, length in zip(each.scores, lengths, strict=True) if score is not None]
        bias = position_bias([comparison for comparison in each.comparisons if comparison is not None])
        scores, sizes = [score for score, _ in known], [size for _, size in known]
        judges.append(JudgeReport(name, count, each.unreadable / count, each.failed / count, _mean(scores), spearman(scores, sizes), *bias))
    for (name, one), (other_name, other) in combinations(judged.items(), 2):
        both = _both(one.scores, other.scores)
        correlated = spearman([a for a, _ in both], [b for _, b in both])
        same = _mean(a == b for a, b in _both(one.preferences, other.preferences))
        comparable = _on_one_scale(one, other)
        alpha = krippendorff_alpha([one.scores, other.scores]) if comparable else None
        difference = _mean(a - b for a, b in both) if comparable else None
        pairs.append(JudgePairReport(name, other_name, alpha, correlated, difference, same))
    every = [*judged.values()]
    alpha = krippendorff_alpha([each.scores for each in every]) if pairs and _on_one_scale(*every) else None
    preference_alpha = krippendorff_alpha([each.preferences for each in every]) if pairs else None
    return AgreementReport(alpha, preference_alpha, tuple(judges), tuple(pairs))


def _on_one_scale(*judged: Judged) -> bool:
    """Return whether the judges' scores can be compared: the scores of all judges are in 0..1, or those of none."""
    found = [[score for score in each.scores if score is not None] for each in judged]
    return len({min(scores) >= 0 and max(scores) <= 1 for scores in found if scores}) < 2


def _both(ones: Sequence[float | None], others: Sequence[float | None]) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(ones, others, strict=True) if a is not None and b is not None]


async def agreement(judges: Mapping[str, Scorer] | Sequence[Scorer], items: Items, **options: Unpack[JudgeBatchOptions]) -> AgreementReport:
    """Let all judges judge the same items, and measure how far they agree and what biases they have.

    Args:
        judges: a mapping from names to judges, or a list of judges. In a list, the name of a judge is its ``repr``. The report on a single
            judge has only its biases.
        items: the path of a JSONL file, or mappings. If an item has ``prompt`` and ``response``, the response is scored. If an item has
            ``prompt``, ``first`` and ``second``, the two responses are compared. The position bias is computed from such items. Only a
            :class:`~qreward.judge.judge.Judge` can compare.
        options: as in :meth:`Judge.batch_score`.

    Returns:
        The report. Scores of a ``Judge`` are mapped from its ``range`` to 0..1. Scores of all other scorers, and of a ``Judge`` with a
        ``score`` function, are used unchanged. If only one of two judges has scores beyond 0..1, their alpha and difference are None.

    Raises:
        ConfigError: there is no judge, or a judge cannot compare. Or an item has all of the fields ``response``, ``first`` and ``second``,
            or it has neither ``response`` nor both ``first`` and ``second``. Nothing was sent.
        NoEndpoint, BatchInterrupted: as in :meth:`Judge.batch_score`.

    Example:
        >>> async def compare(small, large):
        ...     print(await agreement({"small": small, "large": large}, "items.jsonl", timeout=60))
    """
    named = _named(judges)
    if not keeps_results(options):
        raise ConfigError("keep_results cannot be False here: the scores are needed")
    points: list[Mapping[str, Any]] = []
    pairs: list[Mapping[str, Any]] = []
    for place, fields in read_items(items):
        is_point = "response" in fields
        if is_point == ("first" in fields and "second" in fields):
            names = ", ".join(map(repr, fields)) or "nothing"
            raise ConfigError(f"{place}: must have either 'response', or 'first' and 'second'; it has {names}")
        (points if is_point else pairs).append(fields)
    if pairs and (unable := [name for name, judge in named.items() if not hasattr(judge, "batch_compare")]):
        raise ConfigError(f"{unable[0]!r} cannot compare responses; leave out the items with 'first' and 'second', or give a Judge")
    tasks = [asyncio.ensure_future(_judge(judge, points, pairs, options)) for judge in named.values()]
    try:
        judged = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return report_of(dict(zip(named, judged, strict=True)), [len(str(fields["response"])) for fields in points])


def _named(judges: Mapping[str, Scorer] | Sequence[Scorer]) -> dict[str, Scorer]:
    if isinstance(judges, Mapping):
        named = dict(judges)
    elif isinstance(judges, Sequence) and not isinstance(judges, str):
        named = {}
        for place, judge in enumerate(judges, 1):
            name = repr(judge)
            named[f"{name} ({place})" if name in named else name] = judge
    else:
        raise ConfigError(f"judges must be a list of judges, or a mapping from their names, not a {type(judges).__name__}")
    if not named:
        raise ConfigError("judges is empty; give at least one judge")
    for name, judge in named.items():
        if not iscoroutinefunction(getattr(judge, "batch_score", None)):
            raise ConfigError(f"{name!r} must be a judge whose batch_score is awaited, such as a Judge, not a {type(judge).__name__}")
    return named


async def _judge(judge: Any, points: Sequence[Any], pairs: Sequence[Any], options: JudgeBatchOptions) -> Judged:
    scored: BatchResult[Any] | Sequence[Any] = await judge.batch_score(points, **options) if points else ()
    compared: BatchResult[Any] | Sequence[Any] = await judge.batch_compare(pairs, **options) if pairs else ()
    ends = judge.score_range if isinstance(judge, Judge) else None
    errors = [result.error for result in (*scored, *compared) if result.error is not None]
    unreadable = sum(isinstance(error, InvalidResponse) for error in errors)
    found = [float(result.value.score) if result.ok else None for result in scored]
    scores = found if ends is None or ends[0] == ends[1] else [None if score is None else to_unit(score, ends) for score in found]
    return Judged(scores, [result.value if result.ok else None for result in compared], unreadable, len(errors) - unreadable)
