"""The Batch API of a fake endpoint: files, batches and their lines. A line is one request of a batch."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from aiohttp import web
from pydantic import Field

from qreward.settings.base import Policy
from qreward.testing import FakeEndpoint
from qreward.testing.bodies import canonical, count_tokens, encode
from qreward.testing.endpoint import Seen
from qreward.testing.kinds import OPENAI, ErrorResponse, FakeServerKind, Route, RouteCall
from qreward.testing.server import FakeServer, Incoming, deliver

_EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
_CANCELLED = ("batch_cancelled", "This request was not executed because the batch was cancelled.")


class Served(NamedTuple):
    """Holds the response to a line: the status and the body."""

    status: int
    body: bytes


Serve = Callable[[str, bytes], Served]
"""A function that returns the response to a line, from the ``url`` and the ``body`` of the line."""


class Batching(Policy):
    """Describes how a fake provider processes batches.

    Args:
        duration: seconds from the creation of a batch to its end.
        expires: share (0 to 1) of the lines of a batch that are not processed. The number of these lines is rounded down. If this number is
            not 0, the batch ends as ``expired``.
        failures: HTTP status -> share (0 to 1) of lines that fail with this status. If a line is sent again, failures with 429 and 5xx are
            drawn again. A line that failed with another status fails again.
        faulty: number of batches, counted from the first, to which ``expires`` and ``failures`` apply; None means all batches.
        most_lines: maximum number of lines in a file.
        queue_tokens: maximum number of prompt tokens in all unfinished batches together; None for no limit.
        seed: seed of the failures.
    """

    duration: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    expires: float = Field(default=0.0, ge=0, le=1)
    failures: dict[int, float] = Field(default_factory=dict)
    faulty: int | None = Field(default=None, ge=0)
    most_lines: int = Field(default=50_000, ge=1)
    queue_tokens: int | None = Field(default=None, ge=1)
    seed: int = 0


@dataclass
class _Batch:
    """Holds a batch: the JSON object that clients receive (``shown``), the lines and the state."""

    shown: dict[str, Any]
    lines: list[dict[str, Any]]
    tokens: int
    created: float
    is_faulty: bool
    cancelled: float | None = None
    over: bool = False


@dataclass
class BatchService:
    """Stores the files and batches of one endpoint, and serves requests to the Batch API."""

    settings: Batching
    serve: Serve
    takes: Callable[[str], bool] = lambda _: True
    files: dict[str, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    batches: dict[str, _Batch] = field(default_factory=dict)
    worked: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    _seen: Counter[bytes] = field(default_factory=Counter)

    def respond(self, method: str, path: str, query: Mapping[str, str], content_type: str, body: bytes, now: float) -> bytes | None:
        """Return the body of a response with status 200. Return None if the path does not belong to the Batch API."""
        self.advance(now)
        place, _, rest = path.removeprefix("/v1/").partition("/")
        identifier, _, verb = rest.partition("/")
        found: Any = None
        match method, place, identifier, verb:
            case "POST", "files", "", "":
                found = self._upload(content_type, body, now)
            case "GET", "files", _, "content":
                return self._file(identifier)[1]
            case "POST", "batches", "", "":
                found = self._create(body, now)
            case "GET", "batches", "", "":
                found = self._list(query)
            case "GET", "batches", _, "":
                found = self._batch(identifier).shown
            case "POST", "batches", _, "cancel":
                found = self._cancel(identifier, now)
        return None if found is None else encode(found)

    def advance(self, now: float) -> None:
        """End the batches that are cancelled, and the batches whose ``duration`` is over."""
        for batch in self.batches.values():
            end = batch.created + self.settings.duration
            if not batch.over and now >= min(end, end if batch.cancelled is None else batch.cancelled):
                self._finish(batch, now)

    # files

    def _upload(self, content_type: str, body: bytes, now: float) -> dict[str, Any]:
        parts = _parts(content_type, body)
        if parts.get("purpose", (b"",))[0] != b"batch" or "file" not in parts:
            raise ErrorResponse(400, "'purpose' must be 'batch' and 'file' a file", "bad_request")
        content, name = parts["file"]
        return self._keep(content, name, "batch", now)

    def _keep(self, content: bytes, name: str, purpose: str, now: float) -> dict[str, Any]:
        shown = {
            "id": f"file-{len(self.files) + 1}",
            "object": "file",
            "bytes": len(content),
            "created_at": int(now),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        self.files[shown["id"]] = shown, content  # type: ignore[index]
        return shown

    def _file(self, identifier: str) -> tuple[dict[str, Any], bytes]:
        if identifier not in self.files:
            raise ErrorResponse(404, f"No such File object: {identifier}", "not_found")
        return self.files[identifier]

    # batches

    def _create(self, body: bytes, now: float) -> dict[str, Any]:
        wanted = json.loads(body)
        if wanted.get("completion_window") != "24h" or not str(wanted.get("endpoint")).startswith("/v1/"):
            raise ErrorResponse(400, "completion_window must be '24h' and endpoint a route", "bad_request")
        _, content = self._file(str(wanted.get("input_file_id")))
        lines, faults = self._checked(content, wanted["endpoint"])
        tokens = sum(count_tokens(canonical(line.get("body"))) for line in lines)
        queued = sum(batch.tokens for batch in self.batches.values() if not batch.over)
        if self.settings.queue_tokens is not None and not faults and tokens + queued > self.settings.queue_tokens:
            faults = [_fault("token_limit_exceeded", "Enqueued token limit reached.", None)]
        shown = {
            "id": f"batch_{len(self.batches) + 1}",
            "object": "batch",
            **{name: wanted[name] for name in ("endpoint", "input_file_id", "completion_window")},
            "status": "failed" if faults else "in_progress",
            "created_at": int(now),
            "metadata": wanted.get("metadata"),
            "errors": {"object": "list", "data": faults} if faults else None,
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }
        is_faulty = self.settings.faulty is None or len(self.batches) < self.settings.faulty
        self.batches[str(shown["id"])] = _Batch(shown, lines, tokens, now, is_faulty, over=bool(faults))
        self.advance(now)
        return shown

    def _checked(self, content: bytes, endpoint: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        lines: list[dict[str, Any]] = []
        faults: list[dict[str, Any]] = []
        known: set[str] = set()
        for number, text in enumerate(content.splitlines(), 1):
            try:
                line = json.loads(text)
            except ValueError:
                faults.append(_fault("invalid_json_line", "This line is not parseable as valid JSON.", number))
                continue
            model = line.get("body", {}).get("model")
            if line.get("custom_id") in known or not isinstance(line.get("custom_id"), str):
                faults.append(_fault("duplicate_custom_id", "The custom_id for this request is a duplicate.", number))
            elif line.get("url") != endpoint or line.get("method") != "POST":
                faults.append(_fault("invalid_url", "The URL provided for this request does not match the batch endpoint.", number))
            elif not self.takes(str(model)):
                faults.append(_fault("model_not_found", f"The provided model {model!r} is not supported by the Batch API.", number))
            elif lines and model != lines[0]["body"].get("model"):
                faults.append(_fault("mismatched_model", "The model differs from that of the first line.", number))
            known.add(str(line.get("custom_id")))
            lines.append(line)
        if not 1 <= len(lines) <= self.settings.most_lines:
            faults.append(_fault("invalid_file", f"A file must have 1 to {self.settings.most_lines} lines, not {len(lines)}.", None))
        return lines, faults

    def _list(self, query: Mapping[str, str]) -> dict[str, Any]:
        names = list(reversed(self.batches))
        begin = names.index(query["after"]) + 1 if query.get("after") in names else 0
        limit = int(query.get("limit", 20))
        data = [self.batches[name].shown for name in names[begin : begin + limit]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return {"object": "list", "data": data, "has_more": begin + limit < len(names), **ends}

    def _batch(self, identifier: str) -> _Batch:
        if identifier not in self.batches:
            raise ErrorResponse(404, f"No batch found with id '{identifier}'.", "not_found")
        return self.batches[identifier]

    def _cancel(self, identifier: str, now: float) -> dict[str, Any]:
        batch = self._batch(identifier)
        if not batch.over:
            batch.cancelled = now
            self.advance(now)
        return batch.shown

    # work

    def _finish(self, batch: _Batch, now: float) -> None:
        batch.over = True
        done, ending = len(batch.lines), "completed"
        if batch.cancelled is not None:
            share = (batch.cancelled - batch.created) / self.settings.duration if self.settings.duration else 1.0
            done, ending = min(done, int(done * share)), "cancelled"
        elif batch.is_faulty and (left := int(done * self.settings.expires)):
            done, ending = done - left, "expired"
        outputs: list[bytes] = []
        errors: list[bytes] = []
        for number, line in enumerate(batch.lines):
            if number >= done:
                code, message = _CANCELLED if ending == "cancelled" else _EXPIRED
                errors.append(_result(batch, number, line, None, {"code": code, "message": message}))
                continue
            served = self._work(batch, line)
            response = {"status_code": served.status, "request_id": f"req-{number}", "body": json.loads(served.body)}
            (outputs if served.status == 200 else errors).append(_result(batch, number, line, response, None))
        for results in (outputs, errors):
            random.Random(f"{self.settings.seed}/{batch.shown['id']}").shuffle(results)
        batch.shown["status"] = ending
        batch.shown[f"{ending}_at"] = int(now)
        batch.shown["request_counts"] = {"total": len(batch.lines), "completed": len(outputs), "failed": len(errors)}
        for name, results in (("output_file_id", outputs), ("error_file_id", errors)):
            if results:
                batch.shown[name] = self._keep(b"".join(results), f"{name}.jsonl", "batch_output", now)["id"]

    def _work(self, batch: _Batch, line: dict[str, Any]) -> Served:
        body = canonical(line["body"])
        self._seen[body] += 1
        for status, share in self.settings.failures.items() if batch.is_faulty else ():
            again = self._seen[body] if status == 429 or status >= 500 else 0
            if random.Random(f"{self.settings.seed}/{status}/{again}/{body.hex()}").random() < share:
                return Served(status, encode({"error": {"message": "It failed on purpose.", "type": "server_error", "code": str(status)}}))
        served = self.serve(line["url"], body)
        if served.status == 200:
            self.worked[line["custom_id"], body] += 1
        return served


class BatchEndpoint(FakeEndpoint):
    """Holds the settings of a fake provider of batches. ``faults`` apply to its HTTP responses, but limits and latency do not.

    Args:
        batching: see :class:`Batching`.
    """

    kind: Literal["openai_batch"] = "openai_batch"  # type: ignore[assignment]
    batching: Batching = Batching()

    def __init__(self, name: str | None = None, **data: Any) -> None:
        super().__init__(name, **data)


class BatchServer(FakeServer):
    """Serves a ``BatchEndpoint``, and holds its files and batches."""

    def reset(self) -> None:
        super().reset()
        assert isinstance(self.spec, BatchEndpoint)
        self.batches = BatchService(self.spec.batching, line_server(self.spec, self.write, self.line_served), self.serves)

    def configure(self, spec: FakeEndpoint) -> None:
        super().configure(spec)
        assert isinstance(spec, BatchEndpoint)
        self.batches.settings = spec.batching

    def seen(self) -> Seen:
        self.batches.advance(time.monotonic())
        return super().seen()

    def line_served(self, problem: str | None, digest: bytes, tokens: int) -> None:
        self.counts["duplicates"] += digest in self.digests
        self.digests.add(digest)
        self.ended_in(problem, tokens)

    @property
    def kind(self) -> FakeServerKind:
        return OPENAI

    async def respond(self, request: Incoming) -> web.StreamResponse:
        """A fault that alters the body occurs after the call has taken effect."""
        if not request.path.startswith(("/v1/files", "/v1/batches")):
            return await super().respond(request)
        if request.method == "POST":
            self.counts["requests"] += 1
        self._check_key(request)
        await self._check_phase(request)
        fault, given = await self.drawn_fault(request), request.headers.get("Content-Type", "")
        body = self.batches.respond(request.method, request.path, request.query, given, await request.read(), time.monotonic())
        if body is None:
            raise ErrorResponse(404, f"there is no {request.method} {request.path} here", "not_found", "not_found")
        return await deliver(request, body, self._headers(), fault)


BatchEndpoint.server_class = BatchServer


def line_server(spec: FakeEndpoint, write: Callable[[list[Any], bytes], str], served: Callable[[str | None, bytes, int], None]) -> Serve:
    """Return a function that serves lines in the same way as the routes of the endpoint serve requests."""
    kind = OPENAI

    def serve(url: str, body: bytes) -> Served:
        digest = b""
        try:
            job = _route(kind, url)(RouteCall(kind, url, body, spec, write))
            digest = job.digest
            answer = job.body(None)
        except ErrorResponse as error:
            served(error.counted, digest, 0)
            return Served(error.status, kind.error(url, error))
        served(None, digest, job.tokens)
        return Served(200, answer)

    return serve


def _route(kind: FakeServerKind, url: str) -> Route:
    if url not in kind.routes:
        raise ErrorResponse(404, f"there is no POST {url} here", "not_found", "not_found")
    return kind.routes[url]


def _fault(code: str, message: str, line: int | None) -> dict[str, Any]:
    return {"code": code, "line": line, "message": message, "param": None}


def _result(batch: _Batch, number: int, line: dict[str, Any], response: Any, error: Any) -> bytes:
    identifier = f"batch_req_{batch.shown['id']}_{number}"
    return encode({"id": identifier, "custom_id": line["custom_id"], "response": response, "error": error}) + b"\n"


def _parts(content_type: str, body: bytes) -> dict[str, tuple[bytes, str]]:
    boundary = b"--" + content_type.partition("boundary=")[2].strip('"').encode()
    found = {}
    for part in body.split(boundary)[1:-1]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        fields = dict(text.split("=", 1) for text in head.decode().split("\r\n")[0].split("; ")[1:])
        found[fields["name"].strip('"')] = content.removesuffix(b"\r\n"), fields.get("filename", "").strip('"')
    return found
