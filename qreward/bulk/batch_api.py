"""Calls of OpenAI's Batch API at one endpoint."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from secrets import token_hex

import msgspec

from qreward.bulk.provider import METADATA, WINDOW, BatchObject, BatchPage, FileObject, T, partial_request, read
from qreward.codecs.base import Malformed, Reply, TransportError
from qreward.scheduler.outcome import Failure
from qreward.settings.policies import Endpoint
from qreward.transport.connection import EndpointConnection, failure_of

PIECE = 1 << 20
"""Number of bytes of a file that are read at once."""
PAGE = 100
"""Number of batches on a page of the provider's list. OpenAI allows no more."""
PAGES = 20
"""Maximum number of pages that are searched for a batch. These pages suffice, because the batch was created recently, and the list begins
with the newest batches."""


class CallFailed(Exception):
    """Raised when a call of the Batch API has failed. ``failure`` has the kind of failure and an error without secrets."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


class BatchApi:
    """Calls the Batch API of one endpoint. Every method raises ``CallFailed`` if its call fails. A cancelled call closes its connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.connection = EndpointConnection(endpoint)

    async def upload(self, file: int, size: int, model: str) -> str:
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

        headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(head) + size + len(tail)),
        }
        body = await self._call("POST", "/files", model, pieces(), headers)
        return self._read(FileObject, body, model).id

    async def create(self, file: str, url: str, tag: str, model: str) -> BatchObject:
        """Create a batch from an uploaded file. If the call fails, the batch may still have been created: search for it with ``find``."""
        wanted = {"input_file_id": file, "endpoint": url, "completion_window": WINDOW, "metadata": {METADATA: tag}}
        return self._read(BatchObject, await self._call("POST", "/batches", model, msgspec.json.encode(wanted)), model)

    async def retrieve(self, batch: str, model: str) -> BatchObject:
        return self._read(BatchObject, await self._call("GET", f"/batches/{batch}", model), model)

    async def find(self, tag: str, model: str) -> BatchObject | None:
        after = ""
        for _ in range(PAGES):
            body = await self._call("GET", f"/batches?limit={PAGE}{after}", model)
            page = self._read(BatchPage, body, model)
            if (found := next((batch for batch in page.data if batch.tag == tag), None)) is not None:
                return found
            if not page.has_more or not page.data:
                break
            after = f"&after={page.data[-1].id}"
        return None

    async def lines(self, file: str, model: str) -> AsyncGenerator[bytes, None]:
        path, most = f"/files/{file}/content", self.endpoint.max_response_bytes
        try:
            stream = await self.connection.transport.begin("GET", path, None, None)
            try:
                if not 200 <= stream.status < 300:
                    raise self._refused(await stream.read_whole(most), model)
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
            raise self._failed(error, model) from None

    async def aclose(self) -> None:
        await self.connection.aclose()

    async def _call(
        self, method: str, path: str, model: str, body: bytes | AsyncIterator[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        try:
            transport = self.connection.transport
            reply = await (await transport.begin(method, path, body, headers)).read_whole(transport.cap)
        except Exception as error:
            raise self._failed(error, model) from None
        if not 200 <= reply.status < 300:
            raise self._refused(reply, model)
        return reply.body

    def _read(self, kind: type[T], body: bytes, model: str) -> T:
        try:
            return read(kind, body)
        except Malformed as error:
            raise CallFailed(
                self.connection.failure_from_body(error, Reply(200, {}, body), partial_request("/v1/batches", model))
            ) from None

    def _failed(self, error: Exception, model: str) -> CallFailed:
        return CallFailed(failure_of(error, self.endpoint, partial_request("/v1/batches", model), self.connection))

    def _refused(self, reply: Reply, model: str) -> CallFailed:
        return CallFailed(self.connection.failure_from_reply(reply, partial_request("/v1/batches", model)))
