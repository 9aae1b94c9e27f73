"""Metrics of the server in the Prometheus text format 0.0.4."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class MetricFamily:
    """A Prometheus counter, or with ``bounds`` a histogram. It has one series for each set of label values."""

    def __init__(self, *labels: str, bounds: tuple[float, ...] = ()) -> None:
        self.kind = "histogram" if bounds else "counter"
        self._labels, self._bounds = labels, bounds
        self._series: dict[tuple[str, ...], list[float]] = {}
        if not labels:
            self._of(())

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Count ``amount``, or observe it in a histogram."""
        series = self._of(values)
        series[-1] += amount
        if self._bounds:
            series[bisect_left(self._bounds, amount)] += 1

    def samples(self, name: str) -> Iterator[str]:
        for values, (*buckets, total) in self._series.items():
            labels = [*zip(self._labels, values, strict=True)]
            if not buckets:
                yield f"{name}{_braces(labels)} {_number(total)}"
                continue
            count = 0.0
            for bound, more in zip((*map(_number, self._bounds), "+Inf"), buckets, strict=True):
                count += more
                yield f"{name}_bucket{_braces([*labels, ('le', bound)])} {_number(count)}"
            yield f"{name}_sum{_braces(labels)} {_number(total)}"
            yield f"{name}_count{_braces(labels)} {_number(count)}"

    def _of(self, values: tuple[str, ...]) -> list[float]:
        # A histogram has a bucket for each bound and a bucket for larger values. The sum of all values comes last.
        return self._series.setdefault(values, [0.0] * (len(self._bounds) + 2 if self._bounds else 1))


def exposition(metrics: Mapping[str, tuple[str, MetricFamily | float]]) -> str:
    """Return metrics as text. ``metrics`` maps the name of each metric to its help text and the metric, or the value of a gauge."""
    lines: list[str] = []
    for name, (text, metric) in metrics.items():
        kind, samples = ("gauge", [f"{name} {_number(metric)}"]) if isinstance(metric, float | int) else (metric.kind, metric.samples(name))
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _braces(labels: Iterable[tuple[str, str]]) -> str:
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
