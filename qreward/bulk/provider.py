"""Provider batches: files of requests that a provider works off within a day, at a lower price. What is known of one, and what follows.

A provider batch is collected, uploaded, recorded in the journal, created at the provider, and polled until it has ended; then its
results are read. Everything here is pure: limits, the JSON of OpenAI's Batch API (https://platform.openai.com/docs/api-reference/batch),
the records of the journal, and decisions. ``batch_api`` makes the calls, ``provider_batches`` runs the batches.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from qreward.bulk.budget import NOTHING, Spent
from qreward.bulk.spool import Spool
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.passthrough import passthrough
from qreward.scheduler.outcome import FailureKind

LINES, FILE_BYTES, INPUTS = 50_000, 200_000_000, 50_000
"""Limits of one file: lines, bytes, and inputs of embeddings. https://platform.openai.com/docs/guides/batch#rate-limits"""
URLS = frozenset({
    "/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions", "/v1/moderations", "/v1/images/generations",
    "/v1/images/edits", "/v1/videos",
})  # fmt: skip
"""What a batch can hold: ``endpoint`` of ``openai.types.BatchCreateParams``, openai-python 3.54."""
WINDOW = "24h"
"""The only ``completion_window`` that OpenAI accepts."""
METADATA = "qreward"
"""The key of a batch's metadata whose value tells whose it is, so that a run finds a batch whose identifier it did not receive."""
FIRST_POLL, LONGEST_POLL, POLL_FACTOR = 5.0, 60.0, 1.5
"""Seconds before a batch is polled first, the longest time between two polls, and the factor from one to the next."""
SENT_AGAIN = frozenset({FailureKind.OVERLOADED, FailureKind.TRANSIENT, FailureKind.TIMEOUT})
"""Failures of a line after which it is sent again: 429 and 5xx, for example."""
NOT_DONE = {"batch_expired": FailureKind.TIMEOUT, "batch_cancelled": FailureKind.TIMEOUT}
"""Errors of lines that the provider did not work on, so that they cost nothing. They are sent again."""
TOO_MANY_TOKENS = "token_limit_exceeded"
"""The error of a batch that would put more tokens into the provider's queue than the account may have there."""

T = TypeVar("T")


class BatchFault(msgspec.Struct, frozen=True):
    """Why a file was refused. ``line`` counts from 1; None if it is not the fault of one line."""

    code: str | None = None
    line: int | None = None
    message: str | None = None


class _Faults(msgspec.Struct, frozen=True):
    data: list[BatchFault] | None = None


class FileObject(msgspec.Struct, frozen=True):
    """An uploaded file."""

    id: str


class Counts(msgspec.Struct, frozen=True):
    """Lines of the output file and of the error file."""

    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, frozen=True):
    """A batch as the provider reports it; the members that matter here."""

    id: str
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Faults | None = None
    metadata: dict[str, Any] | None = None
    request_counts: Counts | None = None

    @property
    def files(self) -> list[tuple[str, int]]:
        """Its files of results, and the least number of lines of each."""
        counts = self.request_counts or Counts()
        found = ((self.output_file_id, counts.completed), (self.error_file_id, counts.failed))
        return [(file, lines) for file, lines in found if file]

    @property
    def has_ended(self) -> bool:
        """False while it may still bring results. ``cancelling`` batches still finish lines."""
        return self.status in ("completed", "expired", "cancelled", "failed")

    @property
    def faults(self) -> list[BatchFault]:
        """Why its file was refused; empty if it was not."""
        return list((self.errors and self.errors.data) or ()) if self.status == "failed" else []

    @property
    def tag(self) -> object:
        return (self.metadata or {}).get(METADATA)


class BatchPage(msgspec.Struct, frozen=True):
    """One page of the list of batches, newest first."""

    data: list[BatchObject] = []
    has_more: bool = False


class LineResponse(msgspec.Struct, frozen=True):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"")
    request_id: str | None = None


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output or error file. vLLM sets ``error`` beside a response that failed, OpenAI one of the two."""

    custom_id: str
    id: str = ""
    response: LineResponse | None = None
    error: Any = None

    @property
    def ordinal(self) -> int | None:
        """The position of its line in the input; None if it is no line of ours."""
        return int(self.custom_id) if self.custom_id.isdecimal() else None

    @property
    def code(self) -> str | None:
        found = self.error.get("code") if isinstance(self.error, Mapping) else None
        return found if isinstance(found, str) else None


def read(kind: type[T], body: bytes) -> T:
    """Parse a batch, a page of batches or a line of an output or error file. Raises ``Malformed``."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"it is not a {kind.__name__} of the Batch API: {error}") from None


def next_poll(seconds: float, longest: float) -> float:
    """Return how long to wait until a batch is polled again, after a wait of ``seconds``.

    Example:
        >>> [next_poll(5.0, 60.0), next_poll(50.0, 60.0)]
        [7.5, 60.0]
    """
    return min(longest, seconds * POLL_FACTOR)


def url_of(call: WireRequest) -> str:
    """Return the ``url`` of a request in a file.

    Example:
        >>> url_of(WireRequest(CHAT, "judge-7b", [], {}, None))
        '/v1/chat/completions'
    """
    path = call.codec.path
    return path if path.startswith("/v1/") else f"/v1{path}"


_CODECS = {f"/v1{codec.path}": codec for codec in (CHAT, EMBEDDINGS)}


def partial_request(url: str, model: str, inputs: int = 1) -> WireRequest:
    """Return a request of which only so much is known as its response needs to be checked."""
    codec = _CODECS.get(url) or passthrough(url)
    return WireRequest(codec, model, [""] * inputs, {}, None)


def inputs_in(call: WireRequest) -> int:
    """Return how many inputs an embeddings request has; 1 for any other request."""
    inputs = call.inputs
    whole = call.codec is not EMBEDDINGS or isinstance(inputs, str) or isinstance(inputs[0], int)
    return 1 if whole else len(inputs)


def request_line(ordinal: int, url: str, body: bytes) -> bytes:
    """Return the line of a request in a file. Its ``custom_id`` is the position in the input, because the user's need not be unique."""
    return b'{"custom_id":"%d","method":"POST","url":%b,"body":%b}\n' % (ordinal, msgspec.json.encode(url), body)


class HeldBatch:
    """What the journal says of a provider batch that has not ended.

    Attributes:
        number: counts the batches of a journal.
        endpoint, url, model: where it runs, and what its lines ask for.
        tag: value of its metadata.
        written: the ordinals of its lines, in the order of the file.
        id: the provider's identifier; None if the run ended before it was received.
    """

    def __init__(self, number: int, fields: Mapping[str, Any]) -> None:
        self.number = number
        self.endpoint, self.url, self.model, self.tag = (str(fields[name]) for name in ("endpoint", "url", "model", "tag"))
        self.id: str | None = None
        self.written = array("Q", fields["ordinals"])
        digests = (int(digest, 16) for digest in fields["digests"].split())
        lines = sorted(zip(self.written, digests, fields["tokens"], fields["costs"], strict=True))
        self._ordinals, self._digests, self._tokens, self._costs = (
            array(kind, column) for kind, column in zip("QQQd", zip(*lines, strict=True), strict=True)
        )

    def __len__(self) -> int:
        return len(self._ordinals)

    def __iter__(self) -> Iterator[int]:
        """Yield the ordinals of its lines, in increasing order."""
        return iter(self._ordinals)

    def digest(self, ordinal: int) -> int | None:
        """Return the digest of a line that it holds, or None."""
        place = bisect_left(self._ordinals, ordinal)
        return self._digests[place] if place < len(self) and self._ordinals[place] == ordinal else None

    def reserved(self, ordinal: int) -> Spent:
        """Return what a line that it holds may cost; nothing if its output had no limit."""
        place = bisect_left(self._ordinals, ordinal)
        return Spent(self._tokens[place], self._costs[place])


def begin_record(batch: Mapping[str, str], spool: Spool) -> bytes:
    """Return the record of a batch that is about to be created."""
    digests = " ".join(f"{digest:x}" for digest in spool.digests)
    lines = {"ordinals": list(spool.ordinals), "digests": digests, "tokens": list(spool.tokens), "costs": list(spool.costs)}
    return msgspec.json.encode({**batch, **lines})


def end_record(spent: Spent = NOTHING) -> bytes:
    """Return the record of a batch that has ended, and what it has cost beside the results that the journal holds."""
    return msgspec.json.encode({"end": True, "tokens": spent.tokens, "cost": spent.cost})


def apply_record(held: dict[int, HeldBatch], number: int, content: bytes) -> Spent:
    """Take in a record of the journal. Returns what the batch has cost beside its results."""
    fields = msgspec.json.decode(content)
    if "ordinals" in fields:
        held[number] = HeldBatch(number, fields)
    elif "end" in fields:
        held.pop(number, None)
        return Spent(fields["tokens"], fields["cost"])
    elif number in held:
        held[number].id = fields["id"]
    return NOTHING


def provider_line(found: ResultLine, custom_id: str) -> bytes:
    """Return a result as a line of the output: the provider's, with the user's ``custom_id``."""
    assert found.response is not None
    return msgspec.json.encode({"id": found.id, "custom_id": custom_id, "response": found.response, "error": None})
