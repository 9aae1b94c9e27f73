"""The report of a bulk run, and that of a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qreward.results import EndpointStats, endpoints_table

FINISHED, SOME_FAILED, GO_ON = 0, 1, 75
"""Exit codes. ``FINISHED``: all lines succeeded. ``SOME_FAILED``: some lines failed. ``GO_ON``: the run stopped early and can be continued
(``EX_TEMPFAIL`` in ``sysexits.h``)."""
SHOWN = 500
"""Maximum number of characters of an error's message that are shown."""


@dataclass(frozen=True, slots=True)
class BulkReport:
    """Reports what a bulk run did.

    Attributes:
        lines: number of lines of the input that were read.
        done, failed: number of lines with a result, from this run and earlier ones, and of those whose result is an error.
        resumed: number of lines that were done before this run.
        sent, sent_again: number of lines that this run sent, and of those that an earlier run had also sent, without receiving a result.
            The latter may be charged twice.
        in_flight: number of lines that this run sent without receiving a result.
        at_provider: number of lines in provider batches that are still running, and number of these batches. The next run takes their
            results, and does not pay for their lines again.
        torn: number of bytes of the journal that belong to no valid record, such as a record that a killed run did not write to its end.
        seconds: duration of this run.
        tokens, prompt_tokens, cached_tokens: tokens of this run; those of prompts; those that servers read from their prefix caches.
        cost: cost of this run in US dollars; None if no endpoint has a price.
        tokens_before, cost_before: tokens and US dollars of earlier runs on this journal. A line that was sent and has no result counts
            with its maximum cost. ``cost_before`` is None if no endpoint has a price, or if a scorer is used.
        endpoints: endpoint name -> the endpoint's statistics for this run.
        errors: kind of error, such as ``ServerError (500)`` -> the number of lines of this run that failed with this kind of error, and
            the message of the first of these errors.
        output, failures: paths of the files of results and of failures; None for a file that was not written.
        reason: why the run stopped early; None if all lines are done.
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
    errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    output: Path | None = None
    failures: Path | None = None
    reason: str | None = None

    @property
    def exit_code(self) -> int:
        """0 if all lines succeeded, 1 if some lines failed, 75 if the run stopped early and can be continued."""
        return GO_ON if self.reason is not None else SOME_FAILED if self.failed else FINISHED

    def __str__(self) -> str:
        lines = [endpoints_table(self.endpoints), ""] if self.endpoints else []
        lines.append(f"lines         {self.done} done ({self.resumed} before this run), {self.failed} of them failed, {self.sent} sent now")
        if self.sent_again:
            lines.append(f"sent again    {self.sent_again} lines that an earlier run had sent; they may have been paid twice")
        most_frequent = sorted(self.errors.items(), key=lambda each: -each[1][0])
        for number, (kind, (times, example)) in enumerate(most_frequent):
            text = " ".join(example.split())
            text = text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
            lines.append(f"{'' if number else 'errors':14}{times} {kind}, such as: {text}")
        if self.in_flight:
            lines.append(f"in flight     {self.in_flight} lines were sent and have no result; they may be paid twice when you continue")
        if self.at_provider[0]:
            lines.append(
                "at provider   {} lines are in {} provider batches that still run; run the same command again to take their results".format(
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
            lines.append(f"earlier runs  {self.tokens_before} tokens{cost}, including the most that their unfinished lines can have cost")
        if self.output is not None:
            lines.append(f"written       {self.output}")
        if self.failures is not None:
            again = "--retry-failed (in Python: retry_failed=True) sends them again"
            lines.append(f"failed lines  {self.failures} (each with its error); {again}")
        if self.reason is not None:
            lines.append(f"stopped       {self.reason}; run the same command again to continue")
        return "\n".join(lines)


@dataclass(slots=True)
class ModelPlan:
    endpoints: tuple[str, ...]
    requests: int = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    cost: float | None = None
    unlimited: int = 0

    def __str__(self) -> str:
        cost = "" if self.cost is None else f", at most ${self.cost:.4f}"
        unlimited = f", {self.unlimited} without max_tokens (their cost has no limit)" if self.unlimited else ""
        tokens = f"about {self.prompt_tokens:.0f} prompt tokens, at most {self.output_tokens:.0f} output tokens"
        return f"{self.requests} requests, {tokens}{cost}{unlimited}; to {', '.join(self.endpoints)}"


@dataclass(slots=True)
class DryRun:
    lines: int = 0
    bad: int = 0
    faults: list[str] = field(default_factory=list)
    items: int = 0
    models: dict[str, ModelPlan] = field(default_factory=dict)

    def __str__(self) -> str:
        found = [f"lines         {self.lines}, {self.bad} of them bad"]
        found += [f"bad line      {fault}" for fault in self.faults]
        if self.bad > len(self.faults):
            found.append(f"              and {self.bad - len(self.faults)} others")
        if self.items:
            found.append(f"items         {self.items}, for the scorer")
        found += [f"{model:13} {plan}" for model, plan in self.models.items()]
        return "\n".join([*found, "nothing was sent"])
