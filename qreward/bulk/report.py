"""The report of a bulk run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qreward.results import EndpointStats, endpoints_table

FINISHED, SOME_FAILED, GO_ON = 0, 1, 75
"""Exit codes: all lines are done; all are done, and some failed; the same command goes on (``EX_TEMPFAIL`` of ``sysexits.h``)."""


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What a bulk run did.

    Attributes:
        lines: lines of the input that were read.
        done: lines that have a result, from this run and those before it.
        failed: those of them that failed.
        resumed: lines that were done before this run.
        sent: lines that this run sent.
        sent_again: those of them that an earlier run had sent without receiving the result; they may have been paid twice.
        in_flight: lines that this run sent without receiving the result.
        at_provider: lines in provider batches that go on there, and the number of these batches. The next run takes their results, without
            paying again.
        torn: bytes that were cut off from the end of the journal, because an earlier run was killed while it wrote them.
        seconds: duration of this run.
        tokens, cost: prompt and completion tokens, and US dollars, of this run; the cost is None if no endpoint has a price.
        tokens_before, cost_before: what earlier runs on the same journal have spent, with the most that lines may have cost which they sent
            without receiving a result. The cost is None if no endpoint has a price, or the lines were judged.
        cached_tokens, prompt_tokens: prompt tokens of this run, and those of them that servers read from their prefix caches.
        endpoints: endpoint name -> its statistics for this run.
        output, failures: the files that were written; None if there were no such lines, or if the run stopped before the end.
        reason: why the run stopped before the end; None if everything is done.
    """

    lines: int = 0
    done: int = 0
    failed: int = 0
    resumed: int = 0
    sent: int = 0
    sent_again: int = 0
    in_flight: int = 0
    at_provider: tuple[int, int] = (0, 0)
    torn: int = 0
    seconds: float = 0.0
    tokens: int = 0
    cost: float | None = None
    tokens_before: int = 0
    cost_before: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    endpoints: Mapping[str, EndpointStats] = field(default_factory=dict)
    output: Path | None = None
    failures: Path | None = None
    reason: str | None = None

    @property
    def exit_code(self) -> int:
        """0 if all lines are done and none failed, 1 if some failed, 75 if the same run can go on."""
        return GO_ON if self.reason is not None else SOME_FAILED if self.failed else FINISHED

    def __str__(self) -> str:
        lines = [endpoints_table(self.endpoints), ""] if self.endpoints else []
        lines.append(f"lines         {self.done} done ({self.resumed} before this run), {self.failed} of them failed, {self.sent} sent now")
        if self.sent_again:
            lines.append(f"sent again    {self.sent_again} lines that an earlier run had sent; they may have been paid twice")
        if self.in_flight:
            lines.append(f"in flight     {self.in_flight} lines were sent and have no result; they may be paid twice when you go on")
        if self.at_provider[0]:
            lines.append(
                "at provider   {} lines in provider batches go on there ({} batches); the same command takes their results".format(
                    *self.at_provider
                )
            )
        if self.torn:
            lines.append(f"journal       {self.torn} bytes at the end were cut off: an earlier run was stopped while it wrote them")
        cached = f", {self.cached_tokens / self.prompt_tokens:.0%} of prompt tokens from prefix caches" if self.cached_tokens else ""
        cost = "" if self.cost is None else f", ${self.cost:.4f}"
        lines.append(f"time          {self.seconds:.2f} s, {self.tokens} tokens{cost}{cached}")
        if self.tokens_before or self.cost_before:
            cost = "" if self.cost_before is None else f", ${self.cost_before:.4f}"
            lines.append(f"earlier runs  {self.tokens_before} tokens{cost}, with all that their unfinished lines may have cost")
        if self.output is not None:
            lines.append(f"written       {self.output}")
        if self.failures is not None:
            lines.append(f"failed lines  {self.failures} (each with its error); retry_failed sends them again")
        if self.reason is not None:
            lines.append(f"stopped       {self.reason}; the same command goes on")
        return "\n".join(lines)
