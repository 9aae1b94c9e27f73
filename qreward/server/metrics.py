"""Metrics of the server in the Prometheus text format 0.0.4. This module does not depend on HTTP or scoring."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counter:
    """A Prometheus counter. It has one increasing number for each set of label values."""

    kind = "counter"

    def __init__(self, *labels: str) -> None:
        self._names = labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *values: str, amount: float = 1.0) -> None:
        self._values[values] = self._values.get(values, 0.0) + amount

    def samples(self, name: str) -> Iterator[str]:
        for values, count in self._values.items():
            yield f"{name}{_braces(zip(self._names, values, strict=True))} {_number(count)}"


class Histogram:
    """A Prometheus histogram. With a label, it has one series for each value of the label."""

    kind = "histogram"

    def __init__(self, bounds: tuple[float, ...], label: str | None = None) -> None:
        self._bounds = bounds
        self._label = label
        self._series: dict[str, list[float]] = {}
        if label is None:
            self._of("")

    def observe(self, value: float, of: str = "") -> None:
        series = self._of(of)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def samples(self, name: str) -> Iterator[str]:
        for of, series in self._series.items():
            label = [] if self._label is None else [(self._label, of)]
            total = 0.0
            for bound, count in zip((*map(_number, self._bounds), "+Inf"), series[:-1], strict=True):
                total += count
                yield f"{name}_bucket{_braces([*label, ('le', bound)])} {_number(total)}"
            yield f"{name}_sum{_braces(label)} {_number(series[-1])}"
            yield f"{name}_count{_braces(label)} {_number(total)}"

    def _of(self, of: str) -> list[float]:
        # A bucket for each bound, a bucket for larger values, and the sum of all values.
        return self._series.setdefault(of, [0.0] * (len(self._bounds) + 2))


Metric = Counter | Histogram | float
"""A metric. A float is the value of a gauge."""


def exposition(metrics: Mapping[str, tuple[str, Metric]]) -> str:
    """Return metrics in the Prometheus text format. ``metrics`` maps the name of each metric to its help text and the metric."""
    lines: list[str] = []
    for name, (text, metric) in metrics.items():
        if isinstance(metric, Counter | Histogram):
            kind, samples = metric.kind, list(metric.samples(name))
        else:
            kind, samples = "gauge", [f"{name} {_number(metric)}"]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
