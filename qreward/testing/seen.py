"""What an endpoint has seen: counters while it runs, a frozen snapshot for whoever asks. Knows nothing of HTTP."""

from __future__ import annotations

from collections import Counter

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """What one endpoint saw since the fleet started, or since ``reset()``.

    Attributes:
        name: of the endpoint.
        requests: requests that arrived (chats and embeddings).
        answered: good answers given.
        rejected: turned away for lack of a slot or of a rate.
        errors: kind -> how many; the faults and phases by their own names, and ``bad_request``, ``unauthorized``,
            ``unknown_model``, ``responder``, and ``dead`` for what was under way when the endpoint died. A hang is counted when it begins.
        in_flight: requests that hold a slot now.
        peak_in_flight: most of them at once.
        disconnects: clients that left before they had their answer.
        duplicates: requests that had been seen before: the same messages, or the same input.
        tokens: prompt and completion tokens of the good answers, as their ``usage`` says.
        first_request, last_request: when, in seconds since the start; None if there was none.
    """

    name: str
    requests: int = 0
    answered: int = 0
    rejected: int = 0
    errors: dict[str, int] = {}
    in_flight: int = 0
    peak_in_flight: int = 0
    disconnects: int = 0
    duplicates: int = 0
    tokens: int = 0
    first_request: float | None = None
    last_request: float | None = None


class Counters:
    """The same, while it is counted."""

    def __init__(self) -> None:
        self.requests = 0
        self.answered = 0
        self.rejected = 0
        self.errors: Counter[str] = Counter()
        self.disconnects = 0
        self.duplicates = 0
        self.tokens = 0
        self.first_request: float | None = None
        self.last_request: float | None = None
        self._digests: set[bytes] = set()

    def arrived(self, at: float) -> None:
        self.requests += 1
        self.last_request = at
        if self.first_request is None:
            self.first_request = at

    def recognise(self, digest: bytes) -> None:
        """Note the digest of a request."""
        if digest in self._digests:
            self.duplicates += 1
        else:
            self._digests.add(digest)

    def ended_in(self, problem: str | None, tokens: int = 0) -> None:
        """Count the end of a request: a good answer of so many tokens (None), a rejection, or an error by its kind."""
        if problem is None:
            self.answered += 1
            self.tokens += tokens
        elif problem == "rejected":
            self.rejected += 1
        else:
            self.errors[problem] += 1

    def snapshot(self, name: str, in_flight: int, peak: int) -> Seen:
        return Seen(
            name=name,
            requests=self.requests,
            answered=self.answered,
            rejected=self.rejected,
            errors=dict(self.errors),
            in_flight=in_flight,
            peak_in_flight=peak,
            disconnects=self.disconnects,
            duplicates=self.duplicates,
            tokens=self.tokens,
            first_request=self.first_request,
            last_request=self.last_request,
        )
