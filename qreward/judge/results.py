"""The answers and results of batches whose items are not single requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qreward.engine.batch import BatchProgress
from qreward.judge.ranking import Ranking
from qreward.judge.types import Comparison, Verdict
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result


class JudgeAnswer:
    """Holds a verdict, comparison or ranking as the answer of a ``Result``."""

    __slots__ = ("estimated", "usage", "value")

    def __init__(self, value: Verdict | Comparison | Ranking, *, estimated: bool = False) -> None:
        self.value, self.usage, self.estimated = value, value.usage, estimated

    def build(self) -> Verdict | Comparison | Ranking:
        return self.value

    def text(self) -> str:
        """Return the text of the first vote."""
        votes = getattr(self.value, "votes", ())
        return votes[0].text if votes else ""


class ResultCollector:
    """Collects the results of a batch of a cascade or of rankings, whose requests are sent by other batches."""

    def __init__(self, on_result: Callable[[Result[Any]], object] | None, progress: BatchProgress | None, *, keep: bool) -> None:
        self._on_result, self._progress, self._keep = on_result, progress, keep
        self._results: dict[int, Result[Any]] = {}
        self._ok = self._failed = 0

    def add(self, result: Result[Any]) -> None:
        """Count a result, keep it, and pass it on. Raises what ``on_result`` and ``progress`` raise."""
        self._ok += result.ok
        self._failed += not result.ok
        if self._keep:
            self._results[result.index] = result
        if self._progress is not None:
            self._progress.add(result)
        if self._on_result is not None:
            self._on_result(result)

    def refresh(self) -> None:
        """Show the progress again."""
        if self._progress is not None:
            self._progress.refresh()

    def close(self) -> None:
        """End the progress."""
        if self._progress is not None:
            self._progress.close()

    def batch(self, stats: BatchStats) -> BatchResult[Any]:
        """Return the kept results in the order of the input, with these statistics and the counts of the results."""
        counted = replace(stats, items=self._ok + self._failed, ok=self._ok, failed=self._failed)
        return BatchResult([self._results[index] for index in sorted(self._results)], counted)

    def interrupted(self, error: BaseException, read: str, stats: BatchStats) -> BatchInterrupted:
        """Return the error of a batch that ``error`` stopped. ``read`` says how many items were read, such as ``8 groups``."""
        what = f"{type(error).__name__}: {error}"
        return BatchInterrupted(f"the batch stopped after {read} ({what}); .results holds what is done", self.batch(stats))
