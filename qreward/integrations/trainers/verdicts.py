"""The judgements of a trainer: ``Scored``, the file of JSON lines to which they are written, and what it says about one step."""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median, pstdev
from time import time
from typing import Any

import msgspec
from pydantic import Field, field_validator

from qreward.errors import ConfigError, QRewardError
from qreward.judge.calls import encoded
from qreward.judge.types import Verdict
from qreward.render import text_table
from qreward.results import WAITING, Usage
from qreward.settings.base import Policy

_log = logging.getLogger("qreward.integrations.trainers")


@dataclass(frozen=True, slots=True)
class Scored:
    """Holds a reward, or the error that prevented the reward.

    Attributes:
        verdict: the verdict; None if scoring failed.
        error: the error; None if scoring succeeded.
        seconds: seconds from the call to the result.
        waiting: reason -> number of items of the client that still waited for it when the result came.
    """

    verdict: Verdict | None
    error: QRewardError | None
    seconds: float
    waiting: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.verdict is not None

    def score(self, failure: float | None) -> float | None:
        """Return the reward. If the reward is missing, return ``failure``, which is the user's value for a missing reward."""
        return failure if self.verdict is None else self.verdict.score

    @property
    def tokens(self) -> int:
        """Number of tokens of all answers to the item, including answers that could not be parsed; 0 if no server reported tokens."""
        return self.usage.tokens

    @property
    def usage(self) -> Usage:
        """What the item has used: tokens, US dollars (``cost``), and attempts whose cost no server reported (``unreported``)."""
        outcome = self.error if self.verdict is None else self.verdict
        return (None if outcome is None else outcome.usage) or Usage()

    @property
    def reason(self) -> str:
        """The reason why there is no reward: one line of at most 300 characters without secrets. ``""`` if there is a reward."""
        if self.error is None:
            return ""
        return writable(f"{type(self.error).__name__}: {self.error}".splitlines()[0][:300])

    def metrics(self, prefix: str = "judge_", *, waiting: bool = False) -> dict[str, float]:
        """Return metrics to log, whose names begin with ``prefix``.

        They are ``ok`` (1.0 or 0.0), ``seconds``, ``tokens``, ``cost`` (US dollars; 0.0 if no endpoint has a price) and ``unreported``
        (attempts whose cost no server reported). With ``waiting``, they are also the numbers of items that wait, by reason.
        """
        used = self.usage
        found = {"ok": float(self.ok), "seconds": self.seconds, "tokens": float(used.tokens)}
        found |= {"cost": used.cost or 0.0, "unreported": float(used.unreported)}
        if waiting:
            found |= {f"waiting_for_{code}": float(self.waiting.get(code, 0)) for code in WAITING}
        return {f"{prefix}{name}": value for name, value in found.items()}


def writable(text: str) -> str:
    """Return the text with characters escaped that cannot be encoded. An example is a lone surrogate that an error quotes from an item."""
    return text.encode(errors="backslashreplace").decode()


class VerdictsConfig(Policy):
    """Where the judgements are written. With ``contents``, so are the items, the answers of judges, and messages, which may quote them."""

    path: str = Field(min_length=1)
    contents: bool = False

    @field_validator("path")
    @classmethod
    def _expanded(cls, value: str) -> str:
        try:
            return str(Path(value).expanduser())
        except RuntimeError:
            raise ValueError("begins with a home directory that is not known; write the whole path") from None


_FAILED: set[str] = set()
"""Paths to which judgements could not be written."""


def write_verdicts(config: VerdictsConfig, judged: Iterable[tuple[Mapping[str, Any], Scored]], step: int | None) -> None:
    """Append judgements, at a ``step`` of the trainer, to a file. If it cannot be written, this is logged once, and no reward is lost."""
    lines = []
    for item, scored in judged:
        verdict, error, usage = scored.verdict, scored.error, scored.usage
        line: dict[str, Any] = {"time": round(time(), 3), "process": os.getpid(), "step": step}
        line |= {name: sha256(encoded(item.get(name))).hexdigest()[:16] for name in ("prompt", "response")}
        line |= {"score": None if verdict is None else verdict.score, "error": None if error is None else type(error).__name__}
        if verdict is not None:
            line["criteria"] = {
                name: {"score": each.score, "weight": each.weight, "gate": each.gate, "passed": each.passed}
                for name, each in (verdict.criteria or {}).items()
            }
            line |= {"confidence": verdict.confidence, "decided_by": verdict.decided_by, "cached": verdict.cached}
            line["models"] = sorted({vote.model for vote in verdict.votes if vote.model})
        line |= {"seconds": round(scored.seconds, 3), "tokens": usage.tokens, "cost": usage.cost, "unreported": usage.unreported}
        if config.contents:
            answers = [] if verdict is None else [vote.text for vote in verdict.votes]
            line["contents"] = {**item, "answers": answers, "error": None if error is None else str(error)}
        lines.append(encoded(line) + b"\n")
    path = config.path
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # by a disk that was full
            data = b"\n" * is_torn + b"".join(lines)
            if os.write(handle, data) < len(data):  # one call, so that the lines of several processes do not mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(handle)
    except OSError as error:
        if path not in _FAILED:
            _FAILED.add(path)
            _log.warning("the verdicts cannot be written to %r, and are lost: %s", path, error.strerror)


_NO_VERDICT = "is no verdict of a trainer; to compare judges on items, name them with --config"


def read_verdicts(path: str | Path, *, step: int | None = None, last: float | None = None) -> list[dict[str, Any]]:
    """Return the judgements in a file: those of one step, or of the last seconds before the newest one. Raises ``ConfigError``.

    Lines that are not JSON, which a full disk leaves, are left out with a warning.
    """
    found, damaged = [], 0
    try:
        with Path(path).expanduser().open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = msgspec.json.decode(text)
                except msgspec.DecodeError:
                    damaged += 1
                    continue
                if not isinstance(line, dict) or not {"time", "step", "prompt", "score", "error", "tokens"} <= line.keys():
                    raise ConfigError(f"{file.name}, line {number}: {_NO_VERDICT}")
                found.append(line)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if damaged and not found:
        raise ConfigError(f"{str(path)!r}: {_NO_VERDICT}")
    if damaged:
        _log.warning("%r: %d damaged lines were left out", str(path), damaged)
    if last is not None and found:
        newest = max(line["time"] for line in found)
        found = [line for line in found if line["time"] > newest - last]
    if step is not None:
        steps = sorted({line["step"] for line in found if line["step"] is not None})
        found = [line for line in found if line["step"] == step]
        if not found:
            known = f"it has the steps {steps[0]} to {steps[-1]}" if steps else "the trainer did not pass its steps; use --last"
            raise ConfigError(f"{str(path)!r} has no verdict of step {step}; {known}")
    return found


def summary(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what judgements say together: counts, scores, cost, criteria, and prompts, the one with the lowest mean score first."""
    scores = [line["score"] for line in lines if line["score"] is not None]
    criteria: dict[str, list[Mapping[str, Any]]] = {}
    prompts: dict[str, list[float | None]] = {}
    for line in lines:
        prompts.setdefault(line["prompt"], []).append(line["score"])
        for name, each in (line.get("criteria") or {}).items():
            criteria.setdefault(name, []).append(each)
    rows = [{"prompt": name, **_spread(found)} for name, found in prompts.items()]
    return {
        **_spread([line["score"] for line in lines]),
        "deviation": pstdev(scores) if scores else None,
        "errors": dict(Counter(line["error"] for line in lines if line["error"] is not None).most_common()),
        "tokens": sum(line["tokens"] for line in lines),
        "cost": sum(line.get("cost") or 0.0 for line in lines),
        "unreported": sum(line.get("unreported") or 0 for line in lines),
        "seconds": median(line["seconds"] for line in lines) if lines else None,
        "criteria": {
            name: {
                "verdicts": len(found),
                "mean": fmean(each["score"] for each in found),
                "below_gate": sum(not each["passed"] for each in found),
            }
            for name, found in criteria.items()
        },
        "prompts": sorted(rows, key=lambda row: (row["mean"] is None, row["mean"] or 0.0)),
    }


def _spread(scores: Sequence[float | None]) -> dict[str, Any]:
    known = [float(score) for score in scores if score is not None]
    ends = {"mean": fmean(known), "lowest": min(known), "highest": max(known)} if known else dict.fromkeys(("mean", "lowest", "highest"))
    return {"verdicts": len(scores), "failed": len(scores) - len(known), **ends}


def report_of(found: Mapping[str, Any]) -> str:
    """Return the text of a summary: a table of the criteria, and one of the 20 prompts with the lowest scores."""
    errors = ", ".join(f"{name}: {count}" for name, count in found["errors"].items())
    same = sum(row["verdicts"] > 1 and row["lowest"] is not None and row["lowest"] == row["highest"] for row in found["prompts"])
    spent = f"tokens: {found['tokens']}, cost: ${found['cost']:.6g}, attempts unreported: {found['unreported']}"
    text = [
        f"verdicts: {found['verdicts']}, prompts: {len(found['prompts'])}, failed: {found['failed']}{errors and f' ({errors})'}",
        f"score: mean {_cell(found['mean'])}, deviation {_cell(found['deviation'])}; prompts whose responses score the same: {same}",
        f"{spent}, median seconds: {_cell(found['seconds'])}",
    ]
    criteria = [
        {"criterion": name, "mean": _cell(each["mean"]), "below its gate": f"{each['below_gate']} of {each['verdicts']}"}
        for name, each in found["criteria"].items()
    ]
    prompts = [{name: _cell(value) for name, value in row.items()} for row in found["prompts"][:20]]
    for rows in filter(None, (criteria, prompts)):
        text += ["", *text_table(rows, ("criterion", "below its gate", "prompt"))]
    return "\n".join(text)


def _cell(value: float | str | None) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
