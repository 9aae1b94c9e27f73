"""The base class of the kinds of fake server: routes, error format, and status routes, as an OpenAI server has them.

Knows JSON, nothing of sockets, time or slots.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

from qreward.testing import responders
from qreward.testing.lower_bound import Job, ListRequest, Problem, chat_job, embeddings_job
from qreward.testing.rewards.scoring import NAN, REFUSED, score_of
from qreward.testing.spec import FakeEndpoint
from qreward.testing.text import canonical, count_tokens, echo_text, encode

ReadJob = Callable[[bytes, FakeEndpoint], Job]
JSON, PLAIN = "application/json", "text/plain"


class Traffic:
    """The present load of a server, in items."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0

    @contextmanager
    def waits(self, items: int) -> Iterator[None]:
        self.waiting += items
        try:
            yield
        finally:
            self.waiting -= items

    @contextmanager
    def works(self, items: int) -> Iterator[None]:
        self.running += items
        try:
            yield
        finally:
            self.running -= items


class Look(NamedTuple):
    """The state of a server for its status routes.

    Attributes:
        spec: its settings.
        traffic: its load in items.
        requests: requests in flight.
    """

    spec: FakeEndpoint
    traffic: Traffic
    requests: int


class Told(NamedTuple):
    """An error before it is formatted for a server.

    Attributes:
        path: path of the request.
        status: HTTP status.
        message: text of the error.
        kind: OpenAI's ``type`` of the error.
        code: OpenAI's ``code`` of the error.
    """

    path: str
    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | int | None = None


class Dialect:
    """An OpenAI server: chats, embeddings, legacy completions, moderations."""

    label = "LABEL_0"
    health = frozenset({"/health"})

    def routes(self) -> Mapping[str, ReadJob]:
        """Path -> parser of POST requests to it. The parsers raise :class:`Problem`."""
        return {
            "/v1/chat/completions": lambda body, spec: chat_job(body, spec.latency),
            "/v1/embeddings": lambda body, spec: embeddings_job(body, spec.latency),
            "/v1/completions": self._completions,
            "/v1/moderations": self._moderations,
        }

    def error(self, told: Told) -> bytes:
        """The body of an error in the format of this server."""
        return responders.error(told.message, told.kind, told.code)

    def look_up(self, path: str, look: Look) -> tuple[str, str] | None:
        """Content type and text of a status route (GET); None if there is no such route."""
        return (JSON, responders.models(look.spec.models).decode()) if path == "/v1/models" else None

    def headers(self, job: Job) -> dict[str, str]:  # noqa: ARG002 - for subclasses
        """Additional headers of a successful response."""
        return {}

    # for subclasses

    def labels(self, spec: FakeEndpoint) -> tuple[str, ...]:
        return spec.scoring.labels or (self.label,)

    def job(self, path: str, spec: FakeEndpoint, model: str | None, items: list[Any], body: Callable[[int], Any]) -> Job:
        """The job for a list of items. ``body`` builds the response from the number of prompt tokens. Raises :class:`Problem`."""
        sizes = self.check(path, spec, items)
        prompt, digest = sum(sizes), sha256(canonical(items)).digest()
        failure = None
        if any(NAN in encode(item).decode() for item in items):
            failure = self.not_a_number(path)
        made = encode(body(prompt)) if failure is None else b""
        service = spec.latency.base + spec.scoring.per_item * len(items)
        return Job(ListRequest(model, len(items), made, failure), digest, prompt, 0, 0, service)

    def check(self, path: str, spec: FakeEndpoint, items: list[Any]) -> list[int]:
        """Tokens of each item. Raises :class:`Problem` if this server refuses the list; it accepts all items or none."""
        most = spec.scoring.max_items
        if not items or (most is not None and len(items) > most):
            raise self.refusal(path, 400, f"a list must have 1 to {most} items, not {len(items)}")
        encoded = [canonical(item) for item in items]
        if any(REFUSED.encode() in each for each in encoded):
            raise self.refusal(path, 400, f"an input holds {REFUSED}")
        sizes = [count_tokens(each) for each in encoded]
        if max(sizes) > spec.scoring.max_tokens:
            raise self.too_long(path, spec.scoring.max_tokens, max(sizes))
        return sizes

    def refusal(self, path: str, status: int, message: str) -> Problem:
        return Problem(status, self.error(Told(path, status, message)), "bad_request")

    def too_long(self, path: str, most: int, tokens: int) -> Problem:
        return self.refusal(path, 400, f"This model's maximum context length is {most} tokens. However, you requested {tokens} tokens.")

    def not_a_number(self, path: str) -> Problem | None:  # noqa: ARG002 - for subclasses
        """The error for a list with a NaN score; None if the server does not fail on it."""
        return None

    def _completions(self, body: bytes, spec: FakeEndpoint) -> Job:
        path, asked = "/v1/completions", self.read("/v1/completions", body)
        prompts, each = listed(asked.get("prompt")), asked.get("n") or 1

        def made(prompt: int) -> Any:
            texts = [echo_text(sha256(canonical(item)).digest()) for item in prompts for _ in range(each)]
            choices = [{"index": index, "text": text, "logprobs": None, "finish_reason": "stop"} for index, text in enumerate(texts)]
            used = responders.usage(prompt, len(choices))
            return {"id": "cmpl-1", "object": "text_completion", "model": asked.get("model"), "choices": choices, "usage": used}

        return self.job(path, spec, asked.get("model"), prompts, made)

    def _moderations(self, body: bytes, spec: FakeEndpoint) -> Job:
        path, asked = "/v1/moderations", self.read("/v1/moderations", body)
        given = asked.get("input")
        whole = isinstance(given, list) and all(isinstance(part, dict) for part in given)
        items = [given] if whole else listed(given)
        results = [{"flagged": score_of(item) > 0, "category_scores": {"harm": abs(score_of(item)) / 10}} for item in items]
        return self.job(path, spec, asked.get("model"), items, lambda _: {"id": "modr-1", "model": asked.get("model"), "results": results})

    def read(self, path: str, body: bytes) -> dict[str, Any]:
        """Parse a request body as a JSON object. Raises :class:`Problem`."""
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self.refusal(path, 400, str(error)) from None
        if not isinstance(asked, dict):
            raise self.refusal(path, 400, "the body must be an object")
        return asked


def listed(given: Any) -> list[Any]:
    """The items of an input in OpenAI's format: a text or a list of numbers is one item."""
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        return [given]
    return given if isinstance(given, list) else []


def finite(value: float, item: Any) -> float | None:
    """The value; None (JSON null) for an item that contains ``NAN``."""
    return None if NAN in encode(item).decode() else value


def gauges(values: Mapping[str, float], labels: str = "") -> str:
    """Gauges in the Prometheus text format."""
    lines = [line for name, value in values.items() for line in (f"# HELP {name} .", f"# TYPE {name} gauge", f"{name}{labels} {value}")]
    return "\n".join(lines) + "\n"
