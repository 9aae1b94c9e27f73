"""The names of all spans, attributes, events and metrics, in two versions of the semantic conventions (dialects).

``v1.41`` is the GenAI semantic conventions of July 2026, which dashboards and other instrumentations use
(github.com/open-telemetry/semantic-conventions, model/gen-ai). ``latest`` is their successor in a new repository, in which some
metrics have different names (github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/non-normative/migration.md). If no
convention defines a name, the name starts with ``qreward.``. Such names have the form of ``db.client.connection.*`` and ``http.client.*``.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Literal, NamedTuple

SCOPE = "qreward"
Dialect = Literal["v1.41", "latest"]

SCHEMA_URLS: dict[Dialect, str | None] = {"v1.41": "https://opentelemetry.io/schemas/1.41.1", "latest": None}


@cache
def version() -> str:
    """Return the version of this library, which is also the version of the instrumentation scope."""
    try:
        return metadata.version(SCOPE)
    except metadata.PackageNotFoundError:  # the library runs from a source directory
        return ""


# spans and events

ATTEMPT = "attempt"
BATCH = "batch"
DETAILS_EVENT = "gen_ai.client.inference.operation.details"
EXCEPTION_EVENT = "gen_ai.client.operation.exception"

# attributes of the conventions

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
CHOICE_COUNT = "gen_ai.request.choice.count"
STOP_SEQUENCES = "gen_ai.request.stop_sequences"
REASONING_LEVEL = "gen_ai.request.reasoning.level"
OUTPUT_TYPE = "gen_ai.output.type"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
FINGERPRINT = "openai.response.system_fingerprint"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - a token of text
TOKEN_MODALITY = "gen_ai.token.modality"  # noqa: S105
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
STATUS_CODE = "http.response.status_code"
ERROR_TYPE = "error.type"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
FUNCTION_NAME = "code.function.name"

REQUEST_NUMBERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
"""Name of a request parameter that is a number -> name of its attribute."""

# attributes of this library

ATTEMPT_NUMBER = "qreward.attempt.number"
ATTEMPT_TYPE = "qreward.attempt.type"
ATTEMPT_OUTCOME = "qreward.attempt.outcome"
ATTEMPT_COUNT = "qreward.attempt.count"
HEDGE_COUNT = "qreward.hedge.count"
QUEUE_WAIT_TIME = "qreward.queue.wait_time"
QUEUE_NAME = "qreward.queue.name"
WAITING_FOR = "qreward.waiting.for"
ROUTE = "qreward.route"
ENDPOINT = "qreward.endpoint"
BATCH_SIZE = "qreward.batch.size"
REJECTION_REASON = "qreward.queue.rejection.reason"
CHANGE_DIRECTION = "qreward.change.direction"
CHANGE_REASON = "qreward.change.reason"
ENDPOINT_STATE = "qreward.endpoint.state"
POOL = "qreward.pool"

# metrics

Kind = Literal["histogram", "counter", "observable_counter", "observable_updowncounter", "observable_gauge"]

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Suggested bucket boundaries of histograms of durations."""
TOKENS = tuple(4**power for power in range(14))
"""Suggested bucket boundaries of histograms of token counts."""
ITEMS = tuple(2**power for power in range(13))
"""Suggested bucket boundaries of histograms of item counts."""


class Metric(NamedTuple):
    """One instrument: its name, kind, unit, description and bucket boundaries."""

    name: str
    kind: Kind
    unit: str
    description: str
    buckets: tuple[float, ...] = ()


def _seconds(name: str, description: str) -> Metric:
    return Metric(name, "histogram", "s", description, SECONDS)


def _state(name: str, unit: str, description: str) -> Metric:
    return Metric(name, "observable_updowncounter", unit, description)


def _tokens(name: str, description: str) -> Metric:
    return Metric(name, "histogram", "{token}", description, TOKENS)


def _token_total(name: str, description: str) -> Metric:
    return Metric(name, "counter", "{token}", description)


_OURS = {
    "attempt_duration": _seconds("qreward.client.attempt.duration", "Duration of one attempt at one endpoint."),
    "retry_delay": _seconds("qreward.client.call.retry_delay", "Time in which a call that was retried had no attempt in flight."),
    "queue_size": _state("qreward.client.queue.size", "{request}", "Requests that wait for an endpoint."),
    "queue_capacity": _state(
        "qreward.client.queue.capacity", "{request}", "Maximum number of single requests that may wait, if there is a limit."
    ),
    "waiting": _state("qreward.client.waiting", "{request}", "Items that have no result and are not in flight, by what they wait for."),
    "queue_wait": _seconds("qreward.client.queue.wait_time", "Time of a single call before its first attempt."),
    "queue_rejections": Metric(
        "qreward.client.queue.rejections", "counter", "{request}", "Requests that ended without having been sent: full, deadline, closed."
    ),
    "active_requests": _state("qreward.client.active_requests", "{request}", "Requests in flight at an endpoint."),
    "limit": _state("qreward.client.concurrency.limit", "{request}", "Requests that an endpoint may have in flight now."),
    "limit_changes": Metric(
        "qreward.client.concurrency.limit.changes",
        "observable_counter",
        "{change}",
        "Changes of qreward.client.concurrency.limit, by direction and reason.",
    ),
    "rate_limit_wait": _seconds(
        "qreward.client.rate_limit.wait_time", "Time in which no requests are sent to an endpoint that rejected one."
    ),
    "endpoint_count": _state("qreward.client.endpoint.count", "{endpoint}", "Endpoints by state: available, ejected, probing."),
    "hedge_budget": Metric("qreward.client.hedge.budget", "observable_gauge", "{attempt}", "Hedges that the budget allows now."),
    "batch_size": Metric("qreward.client.batch.size", "histogram", "{item}", "Calls that were merged into one request.", ITEMS),
    "schedule_duration": _seconds("qreward.schedule.duration", "Duration of a call of a scheduled function."),
}

_OPERATION_DURATION = _seconds("gen_ai.client.operation.duration", "GenAI operation duration.")


def _chunk_times(prefix: str) -> dict[str, Metric]:
    return {
        "first_chunk": _seconds(f"{prefix}.time_to_first_chunk", "Time until the first chunk of a streamed answer."),
        "per_chunk": _seconds(f"{prefix}.time_per_output_chunk", "Time between chunks of a streamed answer."),
    }


METRICS: dict[Dialect, dict[str, Metric]] = {
    "v1.41": {
        "duration": _OPERATION_DURATION,
        **_chunk_times("gen_ai.client.operation"),
        "tokens": _tokens("gen_ai.client.token.usage", "Number of input and output tokens used."),
        **_OURS,
    },
    "latest": {
        "duration": _seconds("gen_ai.client.inference.duration", "Duration of an inference."),
        "other_duration": _OPERATION_DURATION,
        **_chunk_times("gen_ai.client.inference"),
        "input_total": _token_total("gen_ai.client.inference.usage.input_tokens", "Input tokens used."),
        "output_total": _token_total("gen_ai.client.inference.usage.output_tokens", "Output tokens used."),
        "cache_read_total": _token_total("gen_ai.client.inference.usage.cache_read.input_tokens", "Input tokens read from a cache."),
        "reasoning_total": _token_total("gen_ai.client.inference.usage.reasoning.output_tokens", "Output tokens used for reasoning."),
        "input_tokens": _tokens("gen_ai.client.inference.operation.input_tokens", "Input tokens of an inference."),
        "output_tokens": _tokens("gen_ai.client.inference.operation.output_tokens", "Output tokens of an inference."),
        **_OURS,
    },
}
"""The metrics of each dialect. The code finds a metric by its key, because the name of a metric depends on the dialect."""

INFERENCE = frozenset({"chat", "text_completion"})
"""Operations whose metrics have different names in ``v1.41`` and ``latest``."""
