"""Settings of a fake fleet, the same in Python and in a spec file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from qreward.settings.base import EXPANDED, Policy, instead
from qreward.settings.files import read_settings
from qreward.settings.policies import valid_patterns
from qreward.testing.responders import RESPONDERS, Responder, SyntheticJudge

_RATE = Field(default=0.0, ge=0, le=1)
_NORMAL = NormalDist()


class Latency(Policy):
    """Describes the service time of a request, which is ``base + per_token * tokens`` seconds.

    The length of a response is drawn from ``seed`` and the digest of the request. The order of the requests does not change the length. The
    length is equal for each attempt, and on all endpoints with equal ``tokens``, ``sigma`` and ``seed``. ``max_tokens`` in the request does
    not shorten the response. An embedding has no output tokens and takes ``base`` seconds. A list of items to score takes ``base`` seconds
    plus ``scoring.per_item`` seconds for each item.

    Args:
        base: seconds before the first token.
        per_token: seconds for each output token.
        tokens: mean number of output tokens.
        sigma: spread of the lognormal distribution of lengths. 0 makes all responses equally long; 0.8 is typical of chat.
        seed: seed of the lengths.

    Example:
        >>> Latency(base=0.1, per_token=0.01, tokens=200).seconds(200)
        2.1
    """

    base: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    per_token: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    tokens: float = Field(default=200.0, ge=1, allow_inf_nan=False)
    sigma: float = Field(default=0.0, ge=0, le=5)
    seed: int = 0

    def draw(self, digest: bytes) -> int:
        """Return the number of output tokens for the request with this digest, at least 1."""
        if not self.sigma:
            return round(self.tokens)
        word = int.from_bytes(blake2b(digest, digest_size=8, salt=self.seed.to_bytes(16, "little", signed=True)).digest(), "little")
        normal = _NORMAL.inv_cdf((word + 0.5) / 2**64)
        # The mean of exp(N(m, s^2)) is exp(m + s^2 / 2).
        return max(1, round(self.tokens * math.exp(self.sigma * normal - self.sigma**2 / 2)))

    def seconds(self, tokens: float) -> float:
        """Return the service time in seconds of a response with this many output tokens."""
        return self.base + self.per_token * tokens


class Faults(Policy):
    """Holds the probability (0 to 1) of each fault of an admitted request. The sum of the probabilities is at most 1.

    The server draws a fault for each attempt from one seeded random sequence per endpoint, so a retry may succeed.

    Args:
        reset: probability that the connection is reset at once.
        error_500: probability of an immediate HTTP 500.
        error_503: probability of an immediate HTTP 503.
        hang: probability that no response is ever sent. The slot is held until the client disconnects.
        truncated: probability of a complete HTTP response whose JSON is truncated. A stream ends early, without ``[DONE]``.
        error_in_200: probability of an HTTP 200 whose JSON is an ``error``. A stream ends with an event that contains this JSON.
        cut: probability that the connection closes in the middle of the body.
        malformed: probability of an HTTP 200 with a page of HTML. A stream ends with an event that is not JSON.
        stall: probability that the body begins, but is never continued. The slot is held until the client disconnects.
        slow_trickle: probability that the body is sent in pieces of 16 bytes, ``trickle_gap`` seconds apart.
        noise: probability of a complete response with meaningless additions. A stream has meaningless lines between its events: comments,
            unknown fields and blank lines, with each of the three line endings. Plain JSON is preceded by 1,000 bytes of whitespace.
        trickle_gap: seconds between the pieces of a ``slow_trickle``. In a stream, seconds of delay before each event.
        point: share (0 to 1) of the body that is sent before ``truncated``, ``cut`` and ``stall``. In a stream, the share also applies to
            ``error_in_200`` and ``malformed``. None draws a new share for each fault.
        seed: seed of the random sequence.
    """

    reset: float = _RATE
    error_500: float = _RATE
    error_503: float = _RATE
    hang: float = _RATE
    truncated: float = _RATE
    error_in_200: float = _RATE
    cut: float = _RATE
    malformed: float = _RATE
    stall: float = _RATE
    slow_trickle: float = _RATE
    noise: float = _RATE
    trickle_gap: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    point: float | None = Field(default=0.5, ge=0, lt=1)
    seed: int = 0

    def rates(self) -> dict[str, float]:
        """Return a mapping from the name of each fault that can occur to its probability."""
        return {name: rate for name, rate in self if name not in ("trickle_gap", "point", "seed") and rate > 0}

    @model_validator(mode="after")
    def _at_most_one(self) -> Faults:
        if sum(self.rates().values()) > 1 + 1e-9:
            raise ValueError("the rates add up to more than 1; each request can go wrong in one way only")
        return self


class Phase(Policy):
    """Describes a period in which an endpoint behaves differently.

    ``start`` and ``end`` are seconds since the fleet started. If several phases overlap, a ``dead`` phase has precedence, and otherwise the
    phase that is listed first.

    Args:
        behaviour: ``dead``: the port is closed and all connections are aborted; the endpoint listens again on the same port at ``end``.
            ``hang``: requests are accepted, but no work is done until ``end``.
            ``slow``: work takes ``factor`` times as long.
            ``error_503``, ``error_500``: new requests, and requests in flight when the phase begins, get this HTTP status. A stream
            that has begun is cut off.
        start: start of the phase in seconds.
        end: end of the phase in seconds; None for no end.
        factor: factor by which ``slow`` lengthens the work.
    """

    behaviour: Literal["dead", "hang", "error_503", "error_500", "slow"]
    start: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    end: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    factor: float = Field(default=10.0, ge=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _in_order(self) -> Phase:
        if self.end is not None and self.end <= self.start:
            raise ValueError("end must be later than start")
        return self


class Scoring(Policy):
    """Holds the settings of a fake reward server.

    Args:
        labels: classes of the model. For NIM, attributes of the model. The default is one label: ``reward`` for NIM, and ``LABEL_0`` for
            all other servers.
        max_tokens: maximum number of tokens of an item, at four bytes of JSON per token. A list with a longer item is refused.
        per_item: seconds of work for each item, in addition to the ``base`` of the latency.
        activation_field: name of the request field that disables the activation on vLLM; other names have no effect.
        reward_vectors: whether ``/v1/embeddings`` returns the raw scores as a vector with one number per label, as reward models do on
            SGLang and vLLM.
    """

    labels: tuple[str, ...] = ()
    max_tokens: int = Field(default=8192, ge=1)
    per_item: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    activation_field: Literal["use_activation", "activation", "softmax"] = "use_activation"
    reward_vectors: bool = False


class PrefixCache(Policy):
    """Describes the prefix cache of a fake server. ``usage`` reports the cached tokens, and so does ``/metrics`` of kind ``vllm``.

    Args:
        tokens: number of prompt tokens that the cache holds. The least recently used blocks are evicted.
        block: number of tokens in a block. Only whole blocks are shared, and at least one token of a prompt is computed.
        prefill: seconds for each prompt token that is not cached, before the first token of the response.
    """

    tokens: int = Field(default=300_000, ge=1)
    block: int = Field(default=16, ge=1)
    prefill: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class FakeEndpoint(Policy):
    """Holds the settings of one fake judge.

    Args:
        name: name of the endpoint in the fleet and in the client.
        models: glob patterns of the served models. A request for another model gets HTTP 404. ``/v1/models`` lists the patterns as they
            are.
        latency: see :class:`Latency`.
        max_concurrency: maximum number of requests served at once; None means no limit.
        over_cap: ``reject`` refuses requests above ``max_concurrency``. With ``queue``, any number of such requests wait, first come first
            served.
        reject_status: HTTP status with which ``over_cap="reject"`` refuses requests.
        rpm: requests admitted per minute. Further requests get HTTP 429.
        tpm: prompt and completion tokens admitted per minute. Further requests get HTTP 429. ``tpm`` tokens
            are admitted at once; a request with more tokens counts as ``tpm``.
        burst: requests admitted at once. The default is ``rpm``.
        rate_headers: whether the headers of every response report the rate limits, as the headers of OpenAI do:
            ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``.
        retry_after: form in which the headers of a rejection or an HTTP 500 or 503 state the time of a retry. ``seconds`` is
            ``Retry-After`` in whole seconds, and ``ms`` is ``retry-after-ms``. None means no header. The time is accurate: the first
            request that arrives after this time is admitted.
        api_key: bearer token that requests must send. Requests without this token get HTTP 401.
        faults: see :class:`Faults`.
        phases: see :class:`Phase`.
        responder: ``echo``, ``judge``, ``"module:function"``, or a function that returns the text of the response to a list of messages.
            ``judge`` compares the candidate answer with the reference answer, and answers with the JSON object that a prompt of
            ``qreward.judge.Judge`` describes. If the responder raises an exception, the request gets HTTP 500 at each attempt.
        kind: kind of server to imitate, with the values of ``Endpoint.kind``. Scores are derived from the text of an item, and the texts
            ``NAN`` and ``REFUSED`` of this module make a server fail.
        scoring: see :class:`Scoring`.
        prefix_cache: see :class:`PrefixCache`; None for a server without a prefix cache.
        decisions: whether ``/v1/decisions`` answers typed questions, in the form of OpenAI; with kind ``vllm``, without refusals. A
            request takes the time of a chat with one output token per question.
        synthetic_judge: judge that answers typed questions; see :class:`~qreward.testing.responders.SyntheticJudge`.
        port: port to listen on; 0 for any free port.

    Example:
        >>> FakeEndpoint("gpu-0", max_concurrency=64, latency=Latency(per_token=0.001)).name
        'gpu-0'
    """

    name: str = Field(min_length=1)
    models: Annotated[tuple[str, ...], AfterValidator(valid_patterns)] = ("*",)
    latency: Latency = Latency()
    max_concurrency: int | None = Field(default=None, ge=1)
    over_cap: Literal["reject", "queue"] = "reject"
    reject_status: int = Field(default=429, ge=400, le=599)
    rpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tpm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    burst: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    rate_headers: bool = False
    retry_after: Literal["seconds", "ms"] | None = None
    api_key: Annotated[SecretStr | None, EXPANDED] = None
    faults: Faults = Faults()
    phases: tuple[Phase, ...] = ()
    responder: str | Responder = "echo"
    kind: Literal["openai", "vllm", "sglang", "tei", "openrlhf", "nim"] = "openai"
    scoring: Scoring = Scoring()
    prefix_cache: PrefixCache | None = None
    decisions: bool = False
    synthetic_judge: SyntheticJudge = SyntheticJudge()
    port: int = Field(default=0, ge=0, le=65535)
    server_class: ClassVar[Any] = None  # the subclass of ``FakeServer`` that serves a subclass of this class

    def __init__(self, name: str | None = None, **data: Any) -> None:
        super().__init__(**data if name is None else {**data, "name": name})

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("responder")
    @classmethod
    def _known_responder(cls, value: str | Responder) -> str | Responder:
        if isinstance(value, str) and value not in RESPONDERS and ":" not in value:
            raise ValueError(f"must be 'echo', 'judge', 'module:function' or a function{instead(value, RESPONDERS)}")
        return value

    @model_validator(mode="after")
    def _burst_belongs_to_rate(self) -> FakeEndpoint:
        if self.burst is not None and self.rpm is None:
            raise ValueError("burst has no effect without rpm; set rpm, or leave burst out")
        return self

    @property
    def request_burst(self) -> float:
        """The number of requests admitted at once: ``burst``, or by default ``rpm``, but at least 1."""
        return self.burst or max(1.0, self.rpm or 1.0)


class FleetSpec(Policy):
    """Holds the settings of a whole fleet, which are the content of a spec file. The names of the endpoints are unique."""

    endpoints: tuple[FakeEndpoint, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique_names(self) -> FleetSpec:
        names = [endpoint.name for endpoint in self.endpoints]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"several endpoints have the name {', '.join(map(repr, twice))}; give each a name of its own")
        return self


def read_spec(source: Iterable[FakeEndpoint | Mapping[str, Any]] | Mapping[str, Any] | str | Path) -> FleetSpec:
    """Build the settings of a fleet from endpoints, from a mapping, or from the path of a ``.json``, ``.yaml`` or ``.toml`` file."""
    if not isinstance(source, str | Path):
        return FleetSpec(**(source if isinstance(source, Mapping) else {"endpoints": tuple(source)}))
    content, place = read_settings(source, empty="it must contain at least 'endpoints'", known="with 'endpoints'")
    return place.validated(FleetSpec, content)
