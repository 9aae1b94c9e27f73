"""One request, read and understood; and the ways in which it ends without an answer. Knows no limits and no sockets."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple, TypeVar

from qreward.testing import answers
from qreward.testing.answers import ChatRequest, EmbeddingsRequest
from qreward.testing.spec import Latency
from qreward.testing.text import canonical, count_tokens


class ListRequest(NamedTuple):
    """A list of items that are scored, labelled, ranked or embedded, and the answer.

    Attributes:
        model: None if the server does not ask for it.
        items: how many.
        body: of the answer.
        failure: what comes instead of it, once the work is done.
    """

    model: str | None
    items: int
    body: bytes
    failure: Problem | None = None

    def made(self) -> bytes:
        """The answer. Raises :class:`Problem` if there is none."""
        if self.failure is not None:
            raise self.failure
        return self.body


T = TypeVar("T", ChatRequest, EmbeddingsRequest)


class Job(NamedTuple):
    """A request, and what serving it takes.

    Attributes:
        digest: of its messages or its input.
        prompt: tokens.
        length: output tokens of one choice.
        completion: output tokens of all choices.
        service: seconds of work.
    """

    asked: ChatRequest | EmbeddingsRequest | ListRequest
    digest: bytes
    prompt: int
    length: int
    completion: int
    service: float

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion

    @property
    def items(self) -> int:
        """How many things it asks for at once."""
        if isinstance(self.asked, ListRequest):
            return self.asked.items
        return len(self.asked.items()) if isinstance(self.asked, EmbeddingsRequest) else 1


class Problem(Exception):
    """The request gets an error. ``kind`` is the name it is counted by; ``ready_at`` when it is worth trying again."""

    def __init__(self, status: int, body: bytes, kind: str, ready_at: float | None = None) -> None:
        super().__init__(kind)
        self.status = status
        self.body = body
        self.kind = kind
        self.ready_at = ready_at


def chat_job(body: bytes, latency: Latency) -> Job:
    """Raises :class:`Problem` (400)."""
    asked = _read(answers.read_chat, body)
    encoded = canonical(asked.messages)
    digest = sha256(encoded).digest()
    length = latency.draw(digest)
    return Job(asked, digest, count_tokens(encoded), length, length * (asked.n or 1), latency.seconds(length))


def embeddings_job(body: bytes, latency: Latency) -> Job:
    """Raises :class:`Problem` (400)."""
    asked = _read(answers.read_embeddings, body)
    prompt = sum(count_tokens(canonical(each)) for each in asked.items())
    return Job(asked, sha256(canonical(asked.input)).digest(), prompt, 0, 0, latency.base)


def _read(read: Callable[[bytes], T], body: bytes) -> T:
    try:
        return read(body)
    except ValueError as error:
        raise Problem(400, answers.error(str(error), "invalid_request_error"), "bad_request") from None
