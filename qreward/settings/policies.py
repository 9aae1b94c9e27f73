"""The models of all settings: endpoints and their keys, limits, timeouts, retries, hedging, routes and reward models."""

from __future__ import annotations

import re
import shlex
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, SecretStr, ValidationInfo, model_validator
from pydantic_core import CoreSchema, core_schema

from qreward.callables import name_of
from qreward.errors import ELSEWHERE, ConfigError, closest, did_you_mean
from qreward.settings.base import (
    EXPANDED,
    NOT_BOOL,
    Accepting,
    Count,
    Many,
    NotNegative,
    Policy,
    Positive,
    Quantile,
    Seconds,
    check_glob,
    check_header,
    expand_once,
    instead,
    must,
    repeated,
    shown,
    wrong,
)
from qreward.settings.local import AsgiApp, LocalFunction, actor_function, http_package_of

_PLACE = re.compile(r"\{(prompt|response)\}")


_DISTINCT = must(lambda names: len(set(names)) == len(names), "names a class twice; each needs a name of its own")
_WITH_BOTH = must(
    lambda text: text is None or set(_PLACE.findall(text)) == {"prompt", "response"},
    "must hold {prompt} and {response}, such as '{prompt}{response}'",
)


class RewardModel(Policy):
    """Properties of an endpoint's reward model that the server does not report.

    Args:
        route: the API of the server that returns the reward: ``classify`` (sequence classifiers; the default of vLLM, SGLang and TEI),
            ``pooling`` (vLLM's token and process reward models; the last row is the reward), ``score`` (vLLM's cross-encoders), or
            ``embeddings`` (the reward is a vector of one number). None uses the default of the endpoint's kind; ``openai`` has none.
        label: which of several numbers is the reward: the name of a class or attribute, or a position (from the end if negative). The
            default is the last class for ``classify`` of vLLM (as in verl), and the attribute ``reward`` for OpenRLHF and NIM.
        labels: names of the classes in the order of the model, for servers that do not report the names.
        activation: True makes the server apply a sigmoid or softmax to the scores. By default, scores are raw, as in training.
        activation_field: name of the vLLM parameter for ``activation``: ``use_activation`` since 0.11.2, ``activation`` in older versions,
            and ``softmax`` in the oldest versions. A server ignores an unknown name and applies its activation.
        template: text that joins prompt and response; contains ``{prompt}`` and ``{response}``. None sends prompt and response separately,
            or as a conversation if the server has a chat template. Such conversations cannot share a request.

    Example:
        >>> RewardModel(template="<user>{prompt}<assistant>{response}").render("2 + 2?", "4")
        '<user>2 + 2?<assistant>4'
    """

    route: Literal["classify", "pooling", "score", "embeddings"] | None = None
    label: Annotated[int | str, NOT_BOOL] | None = None
    labels: Annotated[tuple[str, ...], _DISTINCT] = ()
    activation: bool = False
    activation_field: Literal["use_activation", "activation", "softmax"] = "use_activation"
    template: Annotated[str | None, _WITH_BOTH] = None

    def render(self, prompt: str, response: str) -> str:
        """Return prompt and response as one text. Their braces have no special meaning. Without a template, they are concatenated."""
        if self.template is None:
            return prompt + response
        texts = {"prompt": prompt, "response": response}
        return _PLACE.sub(lambda place: texts[place[1]], self.template)


MAX_RETRY_AFTER = 60.0
"""Seconds. The method ``_calculate_retry_timeout`` of openai-python 2 has the same limit."""


class Priority(IntEnum):
    """The urgency of a request. A setting accepts any integer from 0 (most urgent, as in vLLM) to 9, and these names in any case."""

    HIGH = 0
    NORMAL = 5
    LOW = 9


def priority_level(value: object) -> int:
    """Return a priority as a number from 0 to 9. Raises ``ValueError`` for a value that is neither such a number nor a name.

    Example:
        >>> priority_level("high"), priority_level(3)
        (0, 3)
    """
    found = value
    if isinstance(value, str):
        found = int(value) if value.isdecimal() else Priority.__members__.get(value.upper())
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= 9:
        raise ValueError(f"must be a whole number from 0 (most urgent) to 9, or 'high', 'normal' or 'low', not {shown(value)}")
    return int(found)


Level = Annotated[Accepting[int, int | str], BeforeValidator(priority_level)]


class LoadBalanceStrategy(StrEnum):
    """The rule that chooses one of several available endpoints for a new request. If there is none, the first that becomes available takes
    it. A retry, and the copy of a request that hangs, go where an answer is expected first."""

    EXPECTED_FINISH = "expected_finish"
    ROUND_ROBIN = "round_robin"
    WEIGHTED_ROUND_ROBIN = "weighted_round_robin"
    LEAST_CONNECTIONS = "least_connections"


WEIGHTED = (LoadBalanceStrategy.WEIGHTED_ROUND_ROBIN, LoadBalanceStrategy.LEAST_CONNECTIONS)
"""The strategies that use weights."""


class Limits(Policy):
    """The limits of one endpoint, over all routes, event loops and threads of a client.

    Args:
        max_concurrency: maximum number of requests in flight.
        adaptive: True measures how many requests in flight, and how many requests per second, the endpoint can take, up to
            ``max_concurrency``. False uses ``max_concurrency`` (64 if it is not set) as a fixed limit.
        rpm: maximum number of requests in any minute. They may be sent at once, and are spaced evenly for a time after a rejection.
        tpm: maximum number of tokens in any minute, in the same way.
        tpm_counts: which tokens the provider counts: the tokens that were ``used`` (default), or the tokens that were ``reserved``
            (``max_tokens``).
        shared: which processes share ``rpm``, ``tpm`` and ``max_concurrency``: ``none``, ``local`` (this user's processes on this machine
            with the same address and key), or ``ray`` (the processes of the whole Ray cluster with the same address and key).

    Example:
        >>> Limits(max_concurrency=64, rpm=600).rpm
        600.0
    """

    max_concurrency: Count | None = None
    adaptive: bool = True
    rpm: Positive | None = None
    tpm: Positive | None = None
    tpm_counts: Literal["used", "reserved"] = "used"
    shared: Literal["none", "local", "ray"] = "none"

    @model_validator(mode="after")
    def _something_to_share(self) -> Limits:
        if self.shared != "none" and self.rpm is None and self.tpm is None and self.max_concurrency is None:
            raise ValueError(f"shared={self.shared!r} has nothing to share; set rpm, tpm or max_concurrency")
        return self

    def changed(self, limits: Mapping[str, float | None]) -> Limits:
        """Return these limits with others in place of some. Raises ``ConfigError``."""
        return Limits(**{**dict(self), **limits})


class Timeouts(Policy):
    """Time limits of one attempt, in seconds, without the time in the queue.

    Args:
        connect: for opening a connection.
        read: between two reads of the response. Without streaming, this includes the whole generation.
        attempt: for the whole attempt. By default, the limit is learned, well above the slowest responses of the endpoint.
    """

    connect: Seconds = 10.0
    read: Seconds | None = None
    attempt: Seconds | None = None


class Retry(Policy):
    """The settings that decide when a failed request is sent again.

    Overload (429, 503, 529) is not a failure: it uses no attempt, and the request may wait until its timeout. The first retry goes at once
    to another endpoint that is available. Any other retry waits with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015).

    Args:
        attempts: maximum number of failed attempts of one request, including the first. A connection that cannot be opened does not count
            while other endpoints of the route are in service, unless the maximum is 1.
        base: maximum number of seconds of the first wait, which doubles with each further attempt.
        cap: maximum number of seconds of any wait.
        max_retry_after: maximum number of seconds for which a ``Retry-After`` is respected. After that, one request is sent.
    """

    attempts: Count = 4
    base: Seconds = 0.5
    cap: Seconds = 8.0
    max_retry_after: Seconds = MAX_RETRY_AFTER


class Hedge(Policy):
    """The settings that decide when a request in flight is also sent to a second endpoint. The first response is used.

    Copies are sent if a single call takes unusually long (Dean and Barroso, "The Tail at Scale", CACM 2013), if the last requests of a
    batch are in flight and other endpoints are idle, if a request seems to hang (these three share one budget), and if the endpoint of a
    request has stopped responding.

    Args:
        quantile: quantile of an endpoint's latency after which a single call is hedged; for a stream, of the time to the first token.
        after: seconds after which a single call is hedged; replaces ``quantile``.
        budget: number of copies per request, averaged over all requests of a client: 0.05 is one copy for every 20 requests.
        reserve: number of copies allowed in addition, for a client that has sent few requests.
        tail: whether the last requests of a batch are copied.

    Example:
        >>> Hedge(after=2.0, budget=0.02).quantile
        0.95
    """

    quantile: Quantile = 0.95
    after: Seconds | None = None
    budget: NotNegative = 0.05
    reserve: Many = 32
    tail: bool = True


class PrefixAffinity(Policy):
    """The settings of prefix affinity: requests whose prompts begin alike go to the same endpoint, whose prefix cache holds the beginning.

    Priorities, tenants, deadlines and retries take precedence, and no endpoint stays idle because of it.

    Args:
        look_ahead: number of requests of a batch that are read ahead, among which an endpoint chooses.
        capacity: number of tokens that the prefix cache of one endpoint holds. None learns it from the cached tokens that answers report.

    Example:
        >>> PrefixAffinity(look_ahead=1024).capacity is None
        True
    """

    look_ahead: Count = 4096
    capacity: Count | None = None


KEPT_KEYS = 3
"""Number of keys that are still hidden in errors after a newer one was obtained."""

KeySource = Callable[[], str | Awaitable[str]]


class ApiKey:
    """An API key that is obtained when it is needed, again before it expires, and again after the server has refused it (401).

    Endpoints with the same function or command share one key, in all event loops and threads. While a new key is obtained, requests wait
    for it. A function that is not ``async`` runs in a thread.

    Args:
        source: function that returns the key, or a command that prints it: one string, or a list of its words. No shell is used.
        seconds: lifetime of a key in seconds. By default, a key is used until the server refuses it.

    Example:
        >>> from qreward import Endpoint
        >>> Endpoint("http://judge/v1", api_key=ApiKey("gcloud auth print-access-token", seconds=3000)).api_key
        ApiKey('gcloud ...', seconds=3000)
    """

    def __init__(self, source: KeySource | str | Sequence[str], seconds: float | None = None) -> None:
        if not callable(source):
            words = shlex.split(source) if isinstance(source, str) else list(source)
            if not words or not all(isinstance(word, str) for word in words):
                raise ValueError("must be a function that returns the key, or a command that prints it")
            if "=" in words[0]:
                raise ValueError("must begin with a program: no shell is used; set variables in the environment")
            self.source: KeySource | tuple[str, ...] = tuple(words)
            self._shown = Path(words[0]).name + (" ..." if len(words) > 1 else "")
        else:
            self.source = source
            self._shown = name_of(source)
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise ValueError("seconds must be a number greater than 0")
        self.seconds = seconds
        self.state = _STATES.setdefault(self.source, ObtainedKeys())

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(self.state.keys)

    def get_secret_value(self) -> str:
        """Return the latest key, as pydantic's ``SecretStr`` does; ``""`` before a key was obtained."""
        return self.state.keys[-1] if self.state.keys else ""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema())

    def __reduce__(self) -> tuple[type[ApiKey], tuple[Any, float | None]]:
        return ApiKey, (self.source, self.seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and (self.source, self.seconds) == (other.source, other.seconds)

    def __hash__(self) -> int:
        return hash((self.source, self.seconds))

    def __repr__(self) -> str:
        return f"ApiKey({self._shown!r}{'' if self.seconds is None else f', seconds={self.seconds:g}'})"


class ObtainedKeys:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keys: deque[str] = deque(maxlen=KEPT_KEYS)
        self.count = 0  # how many keys were obtained
        self.until = 0.0  # when the latest key must be replaced
        self.pending: Future[None] | None = None  # ends when the key that is being obtained is known


_STATES: WeakValueDictionary[Hashable, ObtainedKeys] = WeakValueDictionary()


def api_key_of(value: Any) -> Any:
    """Convert a function, or a mapping with ``command`` as in a configuration file, to an :class:`ApiKey`. Other values are returned."""
    if isinstance(value, dict):
        for name in value.keys() - {"command", "seconds"}:
            near = closest(name, ("command", "seconds"))  # another name is not shown, because one may be a key
            raise ValueError(f"has no setting {name!r}; did you mean {near[0]!r}?" if near else "takes only command and seconds")
        return ApiKey(value.get("command", ()), value.get("seconds"))
    if callable(value):
        return ApiKey(value)
    if value is not None and not isinstance(value, str | SecretStr | ApiKey):
        raise ValueError(f"must be a string, a function, or a mapping with a command, not a {type(value).__name__}")
    return value


def _expand_headers(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, dict):
        return value
    headers = {key: expand_once(raw, info) for key, raw in value.items()}
    return {check_header(key, text): text for key, text in headers.items()}


def _sendable(value: SecretStr | ApiKey | None) -> SecretStr | ApiKey | None:
    if isinstance(value, ApiKey):
        return value
    if value is None or not value.get_secret_value():
        return None
    check_header("authorization", value.get_secret_value())
    if re.fullmatch(r"\{\w+\}|%\w+%", value.get_secret_value()):
        raise ValueError("looks like an environment variable but would be used as it is; write ${NAME}, or ${NAME:-default}")
    return value


_WITHOUT_SCHEME = re.compile(r"(?P<host>[A-Za-z0-9.-]+:\d{1,5})(/|/v1/?)?|(?P<domain>[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+)/v1/?")


def _root_url(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError("must not hold line breaks, or blanks around it")
    listed = value.removeprefix("list:")
    if listed and listed != value and "://" not in listed:
        return value  # a list in a file
    try:
        parts = urlsplit(listed)
        port = parts.port
    except ValueError:
        raise ValueError("must be a URL such as 'http://gpu-0:8000/v1'; its host or port is not valid") from None
    if parts.scheme == "dns" and not port and parts.hostname:
        raise ValueError("must name a port, such as 'dns://judges:8000/v1'")
    if parts.scheme not in ("http", "https", "dns") or not parts.hostname or (parts.scheme == "dns" and listed != value):
        bare = _WITHOUT_SCHEME.fullmatch(value)  # other texts are not shown, because one may be a key
        proposed = f"http://{bare['host']}/v1" if bare and bare["host"] else f"https://{bare['domain']}/v1" if bare else ""
        hint = f"; write {proposed!r}" if proposed else " such as 'http://gpu-0:8000/v1'"
        raise ValueError(f"must be an http:// or https:// URL{hint}")
    if parts.username or parts.password:
        raise ValueError("must not hold a user or password; use api_key or headers")
    if parts.query or parts.fragment:
        raise ValueError("must not hold a query or fragment; it is the root of the API")
    if "$" in parts.netloc:
        raise ValueError("holds a variable that was not replaced; write ${NAME}, or ${NAME:-default}")
    root = value.rstrip("/")
    if path := next((path for path in _PATHS if root.endswith(path)), None):
        raise ValueError(f"must be the root of the API, without {path}; write {root.removesuffix(path)!r}")
    return root


def valid_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("must name at least one pattern; '*' takes any model")
    return tuple(map(check_glob, value))


_PATHS = ("/chat/completions", "/completions", "/embeddings", "/responses", "/rerank", "/get_reward")
"""Paths that calls append to ``base_url``, and that are often left at the end of a copied address."""
BATCH_KIND = "openai_batch"
"""The kind of endpoints that take files of requests, which only bulk runs send."""
SERVER_KINDS = ["openai", "vllm", "sglang", "tei", "openrlhf", "nim", BATCH_KIND]
"""The accepted values of ``Endpoint.kind``. ``qreward.register_kind`` adds values."""


_READABLE = must(lambda name: name == name.strip() and name.isprintable(), "must be a text without blanks around it or line breaks")
_ORDERED = must(lambda value: not isinstance(value, set | frozenset), "must be a list, because a set has no order", BeforeValidator)
_VERIFY = must(lambda value: isinstance(value, bool | str), "must be true, false, or the path of a CA bundle", BeforeValidator)
_KNOWN_KIND = must(
    lambda kind: kind in SERVER_KINDS,
    lambda kind: f"must be {', '.join(map(repr, SERVER_KINDS[:-1]))} or {SERVER_KINDS[-1]!r}{instead(kind, SERVER_KINDS)}",
)
_HTTP_CLIENT = must(
    lambda value: value is None or http_package_of(value) is not None,
    lambda value: (
        f"must be an httpx.AsyncClient or httpx.AsyncBaseTransport (httpx2's will do), not a {type(value).__name__}"
        + ("; a synchronous client cannot be used" if type(value).__name__ == "Client" else "")
    ),
)
_COMPUTE = must(
    lambda value: isinstance(value, LocalFunction | AsgiApp | None), "is set in code, by Endpoint.local, Endpoint.actors or Endpoint.app"
)
DecisionDialect = Literal["openai", "vllm", "sglang", "systemone", "generative_scoring", "chat"]


class Endpoint(Policy):
    """One server that serves requests. :meth:`local`, :meth:`actors` and :meth:`app` make endpoints without a server.

    Args:
        base_url: root of the API, such as ``https://api.example.com/v1``. ``${VAR}`` and ``${VAR:-default}`` are replaced from the
            environment. ``dns://name:port/v1`` stands for all addresses of a name, and ``list:`` with a path or a URL for a list of such
            roots (lines, or JSON). Each address becomes an endpoint with these settings, whose name is its host and port. The list is read
            when the client is made, which may block for some seconds, and again every ``refresh`` seconds.
        name: name of the endpoint in results and errors; by default host and port.
        api_key: key that is sent as ``Authorization: Bearer``, and never shown. ``${VAR}`` is replaced. An empty key is not sent. A
            function, or ``{"command": ..., "seconds": ...}`` in a configuration file, obtains a key that expires; see :class:`ApiKey`.
        models: glob patterns of the models that the server serves.
        model_names: name of a model in calls -> name of the model on the server, for models whose two names differ.
        kind: API of the server: ``openai``, ``vllm``, ``sglang``, ``tei``, ``openrlhf``, ``nim``, or a kind that ``register_kind`` has
            added. ``openai_batch`` is a provider's Batch API, which only bulk runs (``client.run``, ``qreward run``) use.
        weight: relative share of the requests under ``WEIGHTED_ROUND_ROBIN`` and ``LEAST_CONNECTIONS``.
        limits, timeouts, reward: see :class:`Limits`, :class:`Timeouts` and :class:`RewardModel`.
        decisions: API by which the server answers the questions of ``decide``: ``openai``, ``vllm``, ``sglang``, ``systemone``,
            ``generative_scoring``, or ``chat`` (log probabilities). By default, one small request finds it out.
        decision_labels: the token ids of the answers yes and no in the model's vocabulary, for ``decisions="generative_scoring"``.
        price: US dollars for a million prompt tokens and for a million completion tokens, for reports of costs.
        headers: additional HTTP headers of each request. Values may contain ``${VAR}`` and are never shown.
        group_header: name of a header that carries a hash of a call's ``group``, such as ``X-Session-ID`` or ``X-SMG-Routing-Key``, for a
            router in front of several servers.
        send_priority: True adds the priority of a call to the body as ``priority``, 0 (first) to 9, as in vLLM: a lower value is served
            earlier. vLLM needs ``--scheduling-policy priority``; SGLang ``--enable-priority-scheduling`` and
            ``--schedule-low-priority-values-first``.
        http_client: your own ``httpx.AsyncClient`` or ``httpx.AsyncBaseTransport``, used instead of the built-in HTTP client.
        compute: what runs the requests in place of a server; set by :meth:`local`, :meth:`actors` and :meth:`app`.
        verify: False disables TLS verification; a string is the path of a CA bundle.
        proxy: URL of a proxy. By default, the proxy comes from environment variables such as ``HTTPS_PROXY`` and ``NO_PROXY``. ``""`` uses
            no proxy.
        max_response_bytes: maximum number of bytes of a response. A larger response is an error.
        keepalive: seconds for which an idle connection is kept open. vLLM and uvicorn close idle connections after 5 seconds.
        probe: seconds between two probes of the server's health and load, and of the state of a batch at ``openai_batch``.
        refresh: seconds between two reads of the list of addresses. If a list cannot be read or is empty, the last one is kept.

    Example:
        >>> Endpoint("http://gpu-0:8000/v1", models=["judge-*"], limits=Limits(max_concurrency=64)).name
        'gpu-0:8000'
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        **{name: ELSEWHERE[name] for name in ("retries", "num_retries", "max_retries")},
        "timeout": "the time limit of an attempt is timeouts=Timeouts(attempt=...), of a call QRewardClient(..., timeout=...)",
    }

    base_url: Annotated[str, EXPANDED, AfterValidator(_root_url)]
    name: Annotated[str, _READABLE] = ""
    api_key: Annotated[SecretStr | ApiKey | None, BeforeValidator(api_key_of), EXPANDED, AfterValidator(_sendable)] = None
    models: Annotated[tuple[str, ...], AfterValidator(valid_patterns)] = ("*",)
    model_names: dict[str, str] = Field(default_factory=dict)
    kind: Annotated[str, _KNOWN_KIND] = "openai"
    weight: Positive = 1.0
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    reward: RewardModel | None = None
    decisions: DecisionDialect | None = None
    decision_labels: Annotated[tuple[Many, Many] | None, _ORDERED] = None
    price: Annotated[tuple[NotNegative, NotNegative] | None, _ORDERED] = None
    headers: Annotated[dict[str, SecretStr], BeforeValidator(_expand_headers)] = Field(default_factory=dict)
    group_header: Annotated[str, AfterValidator(lambda name: check_header(name, ""))] | None = None
    send_priority: bool = False
    http_client: Annotated[Any, _HTTP_CLIENT] = Field(default=None, repr=False, exclude=True)
    compute: Annotated[Any, _COMPUTE] = Field(default=None, repr=False, exclude=True)
    verify: Annotated[bool | str, _VERIFY] = True
    proxy: Annotated[SecretStr | None, EXPANDED] = None
    max_response_bytes: Count = 16 * 1024 * 1024
    keepalive: Seconds = 4.0
    probe: Seconds | None = None
    refresh: Seconds = 10.0

    def __init__(self, base_url: str | None = None, **data: Any) -> None:
        if base_url is not None:
            data["base_url"] = base_url
        super().__init__(**data)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def local(
        cls,
        function: Any,
        *,
        models: Any = ("*",),
        name: str = "",
        max_concurrency: int | None = None,
        max_batch_size: int | None = None,
        executor: Executor | None = None,
        **settings: Any,
    ) -> Self:
        """Make an endpoint of a function in this process, for chat completions and scores.

        For a chat completion, the function receives the messages, and returns a text or a completion. For a score, it receives an item (a
        text, a mapping with ``prompt`` and ``response``, or messages), or two or three arguments (prompt, response, label). It returns a
        number, or a mapping of numbers with ``reward``. Its keywords receive parameters of the call, such as ``temperature`` or ``model``.
        An exception is a :class:`~qreward.errors.ServerError`, which is tried again; ``BadRequest`` and ``RateLimited`` keep their meaning.

        Args:
            function: the function. If it is not async, it runs in a thread, and a call that is given up keeps its place among
                ``max_concurrency`` until it returns.
            models: glob patterns of the models that the function serves.
            name: name of the endpoint; by default the name of the function.
            max_concurrency: maximum number of calls at once: by default 1, or learned for an async function.
            max_batch_size: maximum number of items of one call that scores. The function then takes a list (or a list of each argument),
                and returns a list with one result or exception for each item. None passes one item.
            executor: for example a ``ProcessPoolExecutor``, which runs the function in place of a thread.
            settings: other settings of an endpoint, such as ``weight``, ``price``, ``timeouts`` and ``reward``.

        Raises:
            ConfigError: a setting is invalid, or the function cannot be used.

        Example:
            >>> Endpoint.local(lambda prompt, response: float(len(response)), models=["length"], name="length").limits.max_concurrency
            1
        """
        compute = LocalFunction(function, max_batch_size, executor)
        if max_concurrency is None and compute.blocks:
            max_concurrency = 1
        return cls._computed(compute, name or name_of(function), models, max_concurrency, settings)

    @classmethod
    def actors(
        cls,
        pool_or_actor: Any,
        *,
        models: Any = ("*",),
        name: str = "",
        method: str | None = None,
        max_batch_size: int = 32,
        **settings: Any,
    ) -> Self:
        """Make an endpoint of a :class:`~qreward.integrations.ray.ScorerPool`, or of one Ray actor.

        The scorer takes a list of items (see :meth:`local`) and returns a list. The requests of a dead actor are tried again, first at
        other endpoints of the route; a pool first uses its other actors.

        Args:
            pool_or_actor: the pool, or the handle of an actor.
            models, max_batch_size, settings: as for :meth:`local`. By default, ``max_concurrency`` is 1, or ``slots`` of a pool.
            name: name of the endpoint; by default the name of the pool's scorer. Give each actor a name of its own.
            method: name of the method of an actor, which is called with ``remote``.

        Raises:
            ConfigError: a setting is invalid, or the object is neither a pool nor an actor with this method.
        """
        compute, slots = actor_function(pool_or_actor, method, max_batch_size)
        most = settings.pop("max_concurrency", slots)
        return cls._computed(compute, name or name_of(pool_or_actor), models, most, settings)

    @classmethod
    def app(cls, asgi_app: Any, base_url: str = "http://app/v1", **settings: Any) -> Self:
        """Make an endpoint of an ASGI application in this process, such as a FastAPI app. Its requests need no socket.

        The application's lifespan is not started, and a streamed response arrives as a whole. ``base_url`` is the root of the API, as the
        application's routes and the header ``Host`` see it. Raises ``ConfigError`` for an invalid setting.
        """
        return cls(base_url, compute=AsgiApp(asgi_app), **settings)

    @classmethod
    def _computed(cls, compute: LocalFunction, name: str, models: Any, most: int | None, settings: dict[str, Any]) -> Self:
        settings.setdefault("limits", Limits(max_concurrency=most, adaptive=most is None))
        return cls(f"http://localhost/{quote(name, safe='')}", name=name, models=models, compute=compute, **settings)

    @property
    def is_list(self) -> bool:
        """True if ``base_url`` stands for a list of addresses."""
        return self.base_url.startswith(("dns://", "list:"))

    def set_for_connections(self) -> str:
        """Return the names of the settings that only a built-in HTTP client can apply, and that are set."""
        return ", ".join(name for name in ("verify", "keepalive") if getattr(self, name) != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _fits_together(self) -> Endpoint:
        if self.http_client is not None and self.compute is not None:
            raise ValueError("http_client has no effect on an endpoint without a server; leave it out")
        if self.http_client is not None and (names := self.set_for_connections()):
            raise ValueError(f"{names} cannot be set together with http_client; set it in the client you pass")
        scoring = self.decisions == "generative_scoring"
        if scoring and self.decision_labels is None:
            raise ValueError("decisions='generative_scoring' needs decision_labels: the token ids of yes and of no, such as [9693, 2201]")
        if self.decision_labels is not None and not scoring:
            raise ValueError("decision_labels have an effect only with decisions='generative_scoring'; set it, or leave them out")
        if not self.name:
            object.__setattr__(self, "name", urlsplit(self.base_url).netloc or self.base_url)
        return self

    def __getstate__(self) -> dict[Any, Any]:
        if self.http_client is not None or isinstance(self.compute, AsgiApp):
            held = "an application" if self.http_client is None else "an http_client"
            raise ConfigError(f"endpoint {self.name!r} cannot be pickled: it holds {held}; make it in each process")
        return super().__getstate__()


class Route(Policy):
    """Says which endpoints serve the models that match a pattern.

    Args:
        pattern: name of a model, or a glob (``*``, ``?``, ``[abc]``).
        endpoints: names of the endpoints; at least one.
        strategy: see :class:`LoadBalanceStrategy`.
        weights: endpoint name -> weight, which replaces the ``weight`` of the endpoint. Weights are allowed only with
            ``WEIGHTED_ROUND_ROBIN`` and ``LEAST_CONNECTIONS``.
    """

    pattern: Annotated[str, AfterValidator(check_glob)]
    endpoints: Accepting[tuple[str, ...], list[str] | tuple[str, ...]] = Field(min_length=1)
    strategy: LoadBalanceStrategy = LoadBalanceStrategy.EXPECTED_FINISH
    weights: dict[str, Positive] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_weights(self) -> Route:
        if double := repeated(self.endpoints):
            raise wrong((("endpoints",), f"names {double!r} twice; name it once, with a larger weight in weights"))
        if strays := [name for name in self.weights if name not in self.endpoints]:
            hint = did_you_mean(strays[0], self.endpoints, otherwise="its endpoints are")
            raise wrong((("weights", strays[0]), f"the route has no endpoint {strays[0]!r}; {hint}"))
        if self.weights and self.strategy not in WEIGHTED:
            default = "" if "strategy" in self.model_fields_set else "default "
            given = f"the {default}strategy {self.strategy.value!r}"
            raise wrong(
                (("weights",), f"weights have no effect with {given}; set strategy to 'weighted_round_robin', or leave weights out")
            )
        return self
