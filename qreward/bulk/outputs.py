"""What a bulk run hands back: results as lines in the format of OpenAI's Batch API, the file that they are written to, and the report."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.errors import ConfigError, QRewardError
from qreward.judge.types import CriterionResult, Verdict
from qreward.results import EndpointStats, endpoints_table


def success_line(custom_id: str, identifier: str, body: bytes) -> bytes:
    name = _encoded(custom_id)
    response = b'"response":{"status_code":200,"request_id":"%b","body":%b}' % (identifier.encode(), _one_line(body))
    return b'{"id":"%b","custom_id":%b,%b,"error":null}' % (identifier.encode(), name, response)


def verdict_line(custom_id: str, identifier: str, verdict: Verdict) -> bytes:
    votes = [{"score": vote.score, "text": vote.text, "model": vote.model} for vote in verdict.votes]
    usage = None if verdict.usage is None else msgspec.structs.asdict(verdict.usage)
    found = {"score": verdict.score, "votes": votes, "attributes": dict(verdict.attributes or {}), "usage": usage, "cached": verdict.cached}
    criteria = None if verdict.criteria is None else {name: _criterion(each) for name, each in verdict.criteria.items()}
    more: dict[str, Any] = {"confidence": verdict.confidence, "distribution": _distribution(verdict.distribution), "criteria": criteria}
    more |= {"decided_by": verdict.decided_by or None, "calibrated": verdict.calibrated or None}
    found |= {name: value for name, value in more.items() if value is not None}
    return _encoded({"id": identifier, "custom_id": custom_id, "verdict": found, "error": None})


def _criterion(found: CriterionResult) -> dict[str, Any]:
    gate = {} if found.gate is None else {"gate": found.gate, "passed": found.passed}
    reason = {} if found.reason is None else {"reason": found.reason}
    members = {name: value for name, value in found._asdict().items() if name not in ("gate", "reason")}
    return {**members, "distribution": _distribution(found.distribution), **gate, **reason}


def _distribution(found: Mapping[Any, float] | None) -> dict[str, float] | None:
    """Return a distribution whose keys are strings. An option that is not a string is written as JSON, such as ``true`` or ``3``."""
    if found is None:
        return None
    return {option if isinstance(option, str) else json.dumps(option): probability for option, probability in found.items()}


def failure_line(custom_id: str, identifier: str, error: QRewardError) -> bytes:
    details = {"code": type(error).__name__, "message": str(error), "status_code": getattr(error, "status_code", None)}
    attempts = [msgspec.structs.asdict(attempt) for attempt in getattr(error, "attempts", ())]
    line = {"id": identifier, "custom_id": custom_id, "response": None, "error": {**details, "attempts": attempts}}
    return _encoded(line)


def _one_line(body: bytes) -> bytes:
    """Return a body as valid JSON in one line. Servers may send JSON that is indented, or contains NaN or a byte order mark."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        if not body.isascii():
            body.decode()
    except jsonio.REFUSED:
        return _encoded(jsonio.read_leniently(body))
    return msgspec.json.format(body, indent=-1) if b"\n" in body or b"\r" in body else body


def _encoded(value: object) -> bytes:
    """Return a value as JSON in one line. Lone surrogates are escaped, because UTF-8 cannot encode them. NaN and infinity become null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        text = json.dumps(msgspec.to_builtins(value))
        return json.dumps(json.loads(text, parse_constant=lambda _: None), separators=(",", ":")).encode()


LINES, PACKED = (".jsonl", ".ndjson"), (".jsonl.gz", ".ndjson.gz")  # endings of the names of output files
_BEGIN = re.compile(rb'\{"id":"[^"]*","custom_id":')  # begin of each line of an output; the id may be that of a provider


class OutputFile:
    """Writes an output file. The file is written under another name, and renamed when it is complete. Raises ``ConfigError``."""

    def __init__(self, path: Path) -> None:
        if path.name == "-":
            raise ConfigError("the output must be a file, because its journal is kept beside it; name one")
        if path.is_dir():
            raise ConfigError(f"the output {str(path)!r} is a folder; name a file in it")
        endings = (*PACKED, *LINES)
        ending = next((each for each in endings if path.name.lower().endswith(each)), None)
        if ending is None:
            raise ConfigError(f"the output {str(path)!r} has a format that cannot be written; its name must end in {', '.join(endings)}")
        self.path, self.stem, self._is_packed = path, path.name[: -len(ending)], ending in PACKED
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {str(path.parent)!r} for the output; make it, or name another")

    def check_replaceable(self) -> None:
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with suppress(OSError, EOFError, ValueError, zlib.error), gzip.open(self.path) if self._is_packed else self.path.open("rb") as file:
            if _BEGIN.match(file.read(1024)):
                return
        raise ConfigError(f"{str(self.path)!r} exists and is not the output of a bulk run; name another output, or remove the file")

    def write(self, lines: Iterable[bytes]) -> int:
        """Write all lines and return their number. If there are no lines, the file of an earlier run is removed. Raises ``OSError``."""
        unfinished, count = self.path.with_name(f".{self.path.name}.unfinished"), 0
        try:
            with unfinished.open("wb", buffering=1 << 20) as file:
                # without the name and the time
                with gzip.GzipFile("", "wb", 6, file, 0) if self._is_packed else nullcontext(file) as packed:
                    for count, line in enumerate(lines, 1):  # noqa: B007 - the count of all lines is returned
                        packed.write(line)
                        packed.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
            if count:
                unfinished.replace(self.path)
            else:
                self.path.unlink(missing_ok=True)
        finally:
            unfinished.unlink(missing_ok=True)
        return count


# reports


FINISHED, SOME_FAILED, GO_ON = 0, 1, 75
"""Exit codes. ``FINISHED``: all lines succeeded. ``SOME_FAILED``: some lines failed. ``GO_ON``: the run stopped early and can be continued
(``EX_TEMPFAIL`` in ``sysexits.h``)."""
SHOWN = 500  # maximum number of characters of an error's message that are shown


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
