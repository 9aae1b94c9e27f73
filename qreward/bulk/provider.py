"""Provider batches: files of requests that a provider processes within a day, at a lower price."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from qreward.bulk.budget import Spent
from qreward.codecs.base import Malformed, Reply, TransportError, WireRequest
from qreward.codecs.chat import CHAT, passthrough
from qreward.codecs.embeddings import EMBEDDINGS, inputs_of
from qreward.scheduler.outcome import Failure, FailureKind
from qreward.settings.policies import Endpoint
from qreward.transport.backend import EndpointConnection, failure_of

LINES, FILE_BYTES, INPUTS = 50_000, 200_000_000, 50_000
"""Maximum number of lines (``LINES``), bytes (``FILE_BYTES``) and inputs of embeddings (``INPUTS``) in one file.
https://platform.openai.com/docs/guides/batch#rate-limits"""
URLS = frozenset({
    "/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions", "/v1/moderations", "/v1/images/generations",
    "/v1/images/edits", "/v1/videos",
})  # fmt: skip
"""Routes that a batch can call, from ``endpoint`` of ``openai.types.BatchCreateParams`` in openai-python 3.54."""
WINDOW = "24h"  # the only ``completion_window`` that OpenAI accepts
METADATA = "qreward"
"""Key in the metadata of a batch. Its value is the batch's tag. If a run did not receive the identifier of the batch, it finds the batch by
this tag."""
FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 5.0, 60.0, 1.5
"""``FIRST_POLL``: seconds before the first poll of a batch. ``LONGEST_POLL``: maximum number of seconds between two polls.
``POLL_FACTOR``: factor by which the wait grows from one poll to the next."""
SENT_AGAIN = frozenset({FailureKind.OVERLOADED, FailureKind.TRANSIENT, FailureKind.TIMEOUT})
"""Kinds of failures after which a line is sent again, such as 429 and 5xx."""
NOT_DONE = {"batch_expired": FailureKind.TIMEOUT, "batch_cancelled": FailureKind.TIMEOUT}
"""Error codes of lines that the provider did not process. Such lines cost nothing and are sent again."""
TOO_MANY_TOKENS = "token_limit_exceeded"
"""Error code of a batch that exceeds the limit of tokens that an account may have in the provider's queue."""

PIECE = 1 << 20  # number of bytes of a file that are read at once
PAGE = 100
"""Number of batches on a page of the provider's list. OpenAI allows no more."""
PAGES = 20
"""Maximum number of pages that are searched for a batch. These pages suffice, because the batch was created recently, and the list begins
with the newest batches."""

T = TypeVar("T")


class BatchFault(msgspec.Struct, frozen=True):
    """A reason why a file was refused. ``line`` is the number of a line, from 1; None if the reason concerns the whole file."""

    code: str | None = None
    line: int | None = None
    message: str | None = None


class BatchFaults(msgspec.Struct, frozen=True):
    data: list[BatchFault] | None = None


class FileObject(msgspec.Struct, frozen=True):
    id: str


class Counts(msgspec.Struct, frozen=True):
    """Number of lines of a batch: ``completed`` lines are in the output file, and ``failed`` lines are in the error file."""

    completed: int | None = 0
    failed: int | None = 0


class BatchObject(msgspec.Struct, frozen=True):
    id: str
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: BatchFaults | None = None
    metadata: dict[str, Any] | None = None
    request_counts: Counts | None = None

    @property
    def files(self) -> list[tuple[str, int]]:
        """The identifiers of the batch's result files, each with the number of lines that the file should have."""
        counts = self.request_counts or Counts()
        found = ((self.output_file_id, counts.completed), (self.error_file_id, counts.failed))
        return [(file, lines or 0) for file, lines in found if file]

    @property
    def has_ended(self) -> bool:
        """True if the batch will have no further results. A batch in the state ``cancelling`` still finishes lines."""
        return self.status in ("completed", "expired", "cancelled", "failed")

    @property
    def tag(self) -> object:
        return (self.metadata or {}).get(METADATA)


class BatchPage(msgspec.Struct, frozen=True):
    """One page of the provider's list of batches, newest first."""

    data: list[BatchObject] = []
    has_more: bool = False


class LineResponse(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"")
    request_id: str | None = None


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output or error file. For a failed line, OpenAI sets ``response`` or ``error``; vLLM sets both."""

    custom_id: str
    id: str = ""
    response: LineResponse | None = None
    error: Any = None

    @property
    def key(self) -> int | None:
        """The key of the line. None if ``custom_id`` is not a number; such a line does not come from this package."""
        return int(self.custom_id) if self.custom_id.isdecimal() else None

    @property
    def code(self) -> str | None:
        found = self.error.get("code") if isinstance(self.error, Mapping) else None
        return found if isinstance(found, str) else None


def read(kind: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"it is not a {kind.__name__} of the Batch API: {error}") from None


def url_of(call: WireRequest) -> str:
    path = call.codec.path
    return path if path.startswith("/v1/") else f"/v1{path}"


_CODECS = {f"/v1{codec.path}": codec for codec in (CHAT, EMBEDDINGS)}


def partial_request(url: str, model: str, inputs: int = 1) -> WireRequest:
    """Return a request without its content. Its route, model and number of inputs suffice to check the response."""
    codec = _CODECS.get(url) or passthrough(url)
    return WireRequest(codec, model, [""] * inputs, {}, None)


def inputs_in(call: WireRequest) -> int:
    return len(inputs_of(call)) if call.codec is EMBEDDINGS else 1


def request_line(key: int, url: str, body: bytes) -> bytes:
    return b'{"custom_id":"%d","method":"POST","url":%b,"body":%b}\n' % (key, msgspec.json.encode(url), body)


class HeldBatch(msgspec.Struct):
    endpoint: str
    url: str
    model: str
    tag: str
    lines: dict[int, Spent]  # key -> maximum cost, zero without ``max_tokens``, in the order of the uploaded file
    id: str | None = None


END = b"null"  # the event of a batch that has ended


def apply_event(held: dict[int, HeldBatch], number: int, event: bytes) -> None:
    """Update ``held`` with an event of a batch: a ``HeldBatch`` before the batch is created, then its identifier, then ``END``."""
    if event == END:
        held.pop(number, None)
    elif event.startswith(b"{"):
        held[number] = msgspec.json.decode(event, type=HeldBatch)
    elif number in held:
        held[number].id = msgspec.json.decode(event)


class CallFailed(Exception):
    """Raised when a call of the Batch API has failed. ``failure`` has the kind of failure and an error without secrets."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


class BatchApi:
    """Calls the Batch API of one endpoint for one model. Every method raises ``CallFailed`` if its call fails. A cancelled call closes its
    connection."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint, self.name, self.model = endpoint, endpoint.name, model
        self.connection = EndpointConnection(endpoint)
        self._request = partial_request("/v1/batches", model)

    async def upload(self, file: int, size: int) -> str:
        """Upload the first ``size`` bytes of a file, which is open as ``file``. Returns the provider's identifier of the file."""
        boundary = token_hex(16)
        part = f'--{boundary}\r\nContent-Disposition: form-data; name="'
        head = f'{part}purpose"\r\n\r\nbatch\r\n{part}file"; filename="requests.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'.encode()
        tail = f"\r\n--{boundary}--\r\n".encode()

        async def pieces() -> AsyncIterator[bytes]:
            yield head
            for offset in range(0, size, PIECE):
                yield os.pread(file, min(PIECE, size - offset), offset)
            yield tail

        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(len(head) + size + len(tail))}
        return (await self._call(FileObject, "POST", "/files", pieces(), headers)).id

    async def create(self, file: str, url: str, tag: str) -> BatchObject:
        """Create a batch from an uploaded file. If the call fails, the batch may still have been created: search for it with ``find``."""
        wanted = {"input_file_id": file, "endpoint": url, "completion_window": WINDOW, "metadata": {METADATA: tag}}
        return await self._call(BatchObject, "POST", "/batches", msgspec.json.encode(wanted))

    async def retrieve(self, batch: str) -> BatchObject:
        return await self._call(BatchObject, "GET", f"/batches/{batch}")

    async def find(self, tag: str) -> BatchObject | None:
        after = ""
        for _ in range(PAGES):
            page = await self._call(BatchPage, "GET", f"/batches?limit={PAGE}{after}")
            if (found := next((batch for batch in page.data if batch.tag == tag), None)) is not None:
                return found
            if not page.has_more or not page.data:
                break
            after = f"&after={page.data[-1].id}"
        return None

    async def lines(self, file: str) -> AsyncGenerator[bytes, None]:
        path, most = f"/files/{file}/content", self.endpoint.max_response_bytes
        try:
            stream = await self.connection.transport.begin("GET", path, None, None)
            try:
                if not 200 <= stream.status < 300:
                    raise self._refused(await stream.read_whole(most))
                rest = b""
                while piece := await stream.read():
                    *lines, rest = (rest + piece).split(b"\n")
                    if len(rest) > most:
                        raise TransportError(f"a line is longer than max_response_bytes ({most}); raise it", malformed=True)
                    for line in lines:
                        if line.strip():
                            yield line
                if rest.strip():
                    yield rest
            finally:
                await stream.aclose()
        except TransportError as error:
            raise self._failed(error) from None

    async def aclose(self) -> None:
        await self.connection.transport.aclose()

    async def _call(
        self, kind: type[T], method: str, path: str, body: bytes | AsyncIterator[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> T:
        try:
            transport = self.connection.transport
            reply = await (await transport.begin(method, path, body, headers)).read_whole(transport.cap)
        except Exception as error:
            raise self._failed(error) from None
        if not 200 <= reply.status < 300:
            raise self._refused(reply)
        try:
            return read(kind, reply.body)
        except Malformed as error:
            raise CallFailed(self.connection.failed(Reply(200, {}, reply.body), self._request).by_body(error)) from None

    def _failed(self, error: Exception) -> CallFailed:
        return CallFailed(failure_of(error, self.endpoint, self._request, self.connection))

    def _refused(self, reply: Reply) -> CallFailed:
        return CallFailed(self.connection.failed(reply, self._request).by_status())
