"""Output of a bulk run: results as lines in the format of OpenAI's Batch API, and the file that they are written to."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec

from qreward.codecs import json as jsonio
from qreward.errors import ConfigError, QRewardError
from qreward.judge.types import CriterionResult, Verdict


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


LINES, PACKED = (".jsonl", ".ndjson"), (".jsonl.gz", ".ndjson.gz")
"""Endings of the names of output files."""
_BEGIN = b'{"id":"qreward-'
"""Begin of each line that this module makes."""


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
            if file.read(len(_BEGIN)) == _BEGIN:
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
