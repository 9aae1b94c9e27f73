"""The options of calls, and their validation."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from qreward.callables import NOT_GIVEN, FunctionKind, kind_of, show_keywords
from qreward.codecs import json as jsonio
from qreward.codecs.base import RESERVED, Codec, WireRequest
from qreward.errors import ELSEWHERE, TYPO, ConfigError, QRewardError, closest, did_you_mean, meant
from qreward.scheduler.task import RequestOptions
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint, Hedge, Limits, PrefixAffinity, Priority, Retry, Route, priority_level
from qreward.transport import connection_settings

if TYPE_CHECKING:
    from qreward.engine.driver import Backend
    from qreward.progress import Progress
    from qreward.results import Result
    from qreward.telemetry import Telemetry

DEFAULT = NOT_GIVEN


class Watching(TypedDict, total=False):
    """Telemetry and observers of a client; see :class:`~qreward.client.QRewardClient`."""

    telemetry: Telemetry | None
    observers: Iterable[object]


class ClientSettings(Watching, total=False):
    """Settings of a client besides its endpoints; see :class:`~qreward.client.QRewardClient`."""

    routes: Iterable[Route]
    retry: Retry | None
    hedge: Hedge | None
    prefix_affinity: PrefixAffinity | None
    max_queued: int | None
    timeout: float | None
    transport: Any
    backend_factory: Callable[[], Backend]
    clock: Callable[[], float]


class ModelParams(TypedDict, total=False):
    """Members of the JSON body that are declared for type checkers. A call also accepts others; ``extra_body`` accepts every name."""

    add_generation_prompt: bool
    chat_template_kwargs: Mapping[str, Any]
    dimensions: int
    echo: bool
    encoding_format: str
    frequency_penalty: float | None
    logit_bias: Mapping[str, float] | None
    logprobs: bool | int | None
    max_completion_tokens: int | None
    max_tokens: int | None
    metadata: Mapping[str, str] | None
    min_p: float
    modalities: Sequence[str] | None
    n: int | None
    parallel_tool_calls: bool
    presence_penalty: float | None
    prompt_cache_key: str
    raw_scores: bool
    reasoning_effort: str | None
    repetition_penalty: float
    response_format: Any
    safety_identifier: str
    seed: int | None
    service_tier: str | None
    stop: str | Sequence[str] | None
    stream_options: Mapping[str, Any] | None
    structured_outputs: Mapping[str, Any]
    suffix: str | None
    temperature: float | None
    tool_choice: Any
    tools: Iterable[Any]
    top_k: int
    top_logprobs: int | None
    top_p: float | None
    truncate: bool
    truncate_prompt_tokens: int | None
    user: str
    verbosity: str | None


class SchedulingOptions(TypedDict, total=False):
    """Options that decide when a request is sent, and how long it may take.

    Attributes:
        timeout: seconds of a call or stream, including the time in the queue, or of one item of a batch from when an endpoint takes it. If
            no endpoint of the route responds for so long, all waiting items of the batch fail with ``RequestTimeout``. The default is the
            client's timeout. None sets no limit.
        priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``.
        tenant: name of the party that the request is made for. Tenants that wait at the same priority receive equal shares of
            the endpoints.
    """

    timeout: float | None
    priority: Priority | int | str
    tenant: str | None


class CallOptions(SchedulingOptions, ModelParams, total=False):
    """Options of one call. Every name that is not an option is a parameter of the model: a member of the JSON body.

    Attributes:
        hedge: False prevents the request from being sent to two endpoints at once. Streams are hedged only before the first token.
        extra_headers: additional HTTP headers of the request.
        extra_body: additional members of the JSON body; they override parameters of the same name.
    """

    hedge: bool
    extra_headers: Mapping[str, str] | None
    extra_body: Mapping[str, Any] | None


class ChatOptions(CallOptions, total=False):
    """Options of a chat completion: the options of one call, and ``group``.

    Attributes:
        group: name of a group of requests whose prompts begin with the same text, such as the id of a question, which go to the same
            endpoint. A tuple names nested groups, the outermost first. A function receives the messages and returns the group, or None.
            Without a group, prompts that begin alike are found by their text; see :class:`~qreward.settings.policies.PrefixAffinity`.
    """

    group: object


class ResultOptions(TypedDict, total=False):
    """Options that decide how the results of many items are collected.

    Attributes:
        deadline: seconds of the whole batch. Items that have no result after this time fail with ``DeadlineExceeded``. If an
            input without a length was not read to its end, one more result with this error stands for the rest.
        progress: True shows a progress bar, or writes lines to the log. A function is called repeatedly with a
            :class:`~qreward.progress.Progress`. See :func:`~qreward.progress.start_progress`.
        keep_results: False returns only the statistics, so that memory does not grow with the number of items.
        on_result: function called in the event loop with each ``Result`` as soon as it is known.
    """

    deadline: float | None
    progress: bool | Callable[[Progress], object] | None
    keep_results: bool
    on_result: Callable[[Result[Any]], object] | None


class BatchOptions(CallOptions, ResultOptions, total=False):
    """Options of a batch: the options of one call, and the options that decide how results are collected."""


class ChatBatchOptions(ChatOptions, ResultOptions, total=False):
    """Options of a batch of chat completions: the options of one completion, and the options that decide how results are collected."""


class JudgeBatchOptions(SchedulingOptions, ResultOptions, total=False):
    """Options of a batch of a judge."""


def check_batch_options(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a name that ``JudgeBatchOptions`` does not have."""
    known = JudgeBatchOptions.__optional_keys__
    for name in options:
        if name not in known:
            raise ConfigError(f"{name!r} is not an option of this call; {did_you_mean(name, sorted(known))}")


class BulkOptions(TypedDict, total=False):
    """Options of a bulk run; see :class:`~qreward.bulk.requests.BulkSettings`, which validates them."""

    model: str | None
    params: Mapping[str, Any]
    template: str | None
    system: str | None
    columns: Mapping[str, str]
    timeout: float | None
    priority: Priority | int | str
    tenant: str | None
    deadline: float | None
    max_cost: float | None
    max_tokens: int | None
    sample: int | None
    shard: tuple[int, int] | None
    retry_failed: bool
    resume: Literal["auto", "force"]
    provider_batches: Literal["auto", "never"]
    progress: bool | Callable[[Progress], object] | None


class StreamOptions(ChatOptions, total=False):
    """Options of a stream: the options of one chat completion, and ``on_interrupt``.

    Attributes:
        on_interrupt: what happens if the stream breaks off after the first token. ``"raise"`` ends the stream with ``StreamInterrupted``.
            ``"restart"`` starts the answer over, within the limits of :class:`Retry`. Read such a stream with ``events()`` or ``final()``.
    """

    on_interrupt: Literal["raise", "restart"]


class BatchStreamOptions(StreamOptions, ResultOptions, total=False):
    """Options of a batch of streams.

    Attributes:
        max_concurrent_streams: maximum number of concurrent streams; 0 for as many as the endpoints accept.
        on_stream_error: function called with the index and the error of each failed stream after its last token was read. The other
            streams continue. An exception that the function raises ends the iteration.
    """

    max_concurrent_streams: int
    on_stream_error: Callable[[int, QRewardError], object] | None


_PARAMS = ModelParams.__optional_keys__
_PARAM_TYPO = 0.88
"""Minimum similarity of a misspelled parameter: higher than ``TYPO``, because servers have many parameters with similar names."""
_OF_ENDPOINTS = Endpoint.model_fields.keys() - {"models"}  # OpenRouter has a parameter ``models``
_KINDS: tuple[Any, ...] = (CallOptions, ChatOptions, BatchOptions, ChatBatchOptions, StreamOptions, BatchStreamOptions)
_NAMES: dict[type, frozenset[str]] = {kind: kind.__optional_keys__ - _PARAMS for kind in _KINDS}
"""The names of the options of each kind of call."""
OPTIONS = frozenset().union(*_NAMES.values())
"""The options of all calls. None of them is sent to a server as a parameter."""


def show_options(client: type) -> None:
    """Make ``help`` and completion show the options of the methods of a class, without the parameters of models."""
    for method in vars(client).values():
        function = method.__func__ if isinstance(method, classmethod) else method
        if isfunction(function) and not hasattr(function, "__wrapped__"):  # a blocking twin has the signature of its method
            show_keywords(function, _PARAMS)


def arguments_of(kind: type, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the options among the arguments of a call, and the parameters of the model."""
    names = _NAMES[kind]
    if names.isdisjoint(arguments):
        return {}, arguments
    options: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for name, value in arguments.items():
        (options if name in names else params)[name] = value
    return options, params


def preparer(
    codec: Codec,
    model: str,
    params: Mapping[str, Any],
    extra_headers: Mapping[str, str] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    group: object = None,
    **_: object,
) -> Callable[[Any], WireRequest]:
    """Return a function that makes a ``WireRequest`` of one item. Values that all items of a batch share are checked by this call.

    The options of a call can be passed as keywords. Those that do not concern the request are ignored.
    """
    if not isinstance(model, str) or not model:
        what = repr(model) if isinstance(model, str | int | float | None) else f"a {type(model).__name__}"
        several = not isinstance(model, str) and isinstance(model, Sequence | Iterator)
        pairs = "; several items are one argument, such as zip(prompts, responses)" if several else ""
        raise ConfigError(f"model must be the name of a model, not {what}{pairs}")
    if extra_body is not None and not isinstance(extra_body, Mapping):
        raise ConfigError(f"extra_body must be a mapping, not a {type(extra_body).__name__}")
    if extra_headers is not None and not isinstance(extra_headers, Mapping):
        raise ConfigError(f"extra_headers must be a mapping, not a {type(extra_headers).__name__}")
    merged = {**params, **extra_body} if extra_body else params
    if merged:
        _check_members(params, merged)
    if extra_headers is not None:
        connection_settings.check_call_headers(extra_headers, model)
    validate = codec.validate
    if callable(group):
        return lambda inputs: WireRequest(codec, model, validate(inputs), merged, extra_headers, group(inputs))
    return lambda inputs: WireRequest(codec, model, validate(inputs), merged, extra_headers, group)


def _check_members(params: Mapping[str, Any], merged: Mapping[str, Any]) -> None:
    """Check the members of the JSON body. ``extra_body`` may set names that are also options of a call; so ``params`` alone is checked for
    those, and ``merged`` for all else."""
    check_params(params)
    if merged.get("stream"):
        raise ConfigError(
            "stream=True cannot be used in this call; for tokens as they come, call stream_chat_completion or batch_stream_chat_completion"
        )
    if not RESERVED.isdisjoint(merged):
        name = min(RESERVED & set(merged))
        raise ConfigError(f"{name!r} cannot be set in extra_body; pass it as the argument {name}=")
    for name, value in merged.items():
        if type(value) not in jsonio.PLAIN:
            jsonio.check(value, name)


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a parameter that is an option of another call, a setting of a client or endpoint, or misspelled."""
    for name in params:
        if fault := _fault_of(name):
            raise ConfigError(fault)


@lru_cache(maxsize=1024)  # comparing names is the slowest part of a call, and a program uses few names
def _fault_of(name: str) -> str | None:
    to_server = f"A parameter of the server with this name goes into extra_body={{{name!r}: ...}}"
    if name in OPTIONS:
        batches = "; only batches have a deadline, one call has timeout=" if name == "deadline" else ""
        return f"{name!r} is an option of other calls, not of this one{batches}. {to_server}"
    if name in _PARAMS:
        return None
    near = [] if name in ELSEWHERE else closest(name, OPTIONS, cutoff=TYPO)
    if not near and (place := _place_of(name)):
        return f"{name!r} is not an option of a call; {place}. {to_server}"
    if near := near or closest(name, _PARAMS, cutoff=_PARAM_TYPO):
        return f"{name!r} is not an option of this call; did you mean {near[0]!r}? {to_server}"
    if near := closest(name, ELSEWHERE, cutoff=TYPO):
        return f"{name!r} is not an option of a call; did you mean {near[0]!r}? {ELSEWHERE[near[0]]}. {to_server}"
    return "extra_query is not supported; put parameters of the server into extra_body" if name == "extra_query" else None


def _place_of(name: str) -> str | None:
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if ours := meant(name, Limits.model_fields):
        return f"it belongs to the endpoint: Endpoint(base_url, limits=Limits({ours}=...))"
    if name in _OF_ENDPOINTS:
        return f"it belongs to the endpoint: Endpoint(base_url, {name}=...)"
    return f"it is a setting of the client: QRewardClient(endpoints, {name}=...)" if name in ClientSettings.__optional_keys__ else None


def client_settings(endpoints: object, settings: Mapping[str, Any]) -> tuple[ClientConfig, dict[str, Any]]:
    for name in settings:
        if name not in ClientSettings.__optional_keys__:
            hint = _place_of(name) or did_you_mean(name, sorted(ClientSettings.__optional_keys__))
            raise ConfigError(f"{name!r} is not a setting of a client; {hint}")
    given = {name: value for name, value in settings.items() if name in ClientConfig.model_fields and value is not DEFAULT}
    if given.get("retry", DEFAULT) is None:
        del given["retry"]
    if "routes" in given:
        given["routes"] = tuple(given["routes"])
    others = {name: value for name, value in settings.items() if name not in ClientConfig.model_fields}
    endpoints = endpoints or ()
    if isinstance(endpoints, str | Mapping | Endpoint) or not isinstance(endpoints, Iterable):
        raise ConfigError("endpoints must be a list, such as [Endpoint('http://gpu-0:8000/v1')]")
    return ClientConfig(endpoints=tuple(map(endpoint_of, endpoints)), **given), others


def batch_items(name: str, given: object) -> Iterable[Any] | AsyncIterable[Any]:
    """Return ``given`` if it can be the input of a batch, or raise ``ConfigError``."""
    if type(given) is list:
        return given
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable | AsyncIterable):
        raise ConfigError(f"{name} must be a list, an iterator or an async iterator of items, not a {type(given).__name__}")
    if is_table(given):
        how = "pass one column, such as df['prompt'], or its rows, such as df.to_dict('records')"
        raise ConfigError(f"{name} must be a list of items, not a table, which gives the names of its columns; {how}")
    return given


def is_table(given: object) -> bool:
    """Return whether ``given`` is a table, such as one of pandas: iterating over it may give its columns, but its length is its rows.

    Tables of pandas, polars and pyarrow have both attributes. Data sets that give rows may have one: those of Hugging Face a ``shape``.
    """
    return hasattr(given, "columns") and hasattr(given, "shape")


def callback(name: str, given: Callable[..., object] | None) -> Callable[..., object] | None:
    if given is not None and kind_of(given) is not FunctionKind.THREADED:
        raise ConfigError(f"{name} must be a plain function, not {given!r}")
    return given


def keeps_results(options: Mapping[str, Any]) -> bool:
    """Return the option ``keep_results``. Raises ``ConfigError`` if it is neither True nor False."""
    keep = options.get("keep_results", True)
    if not isinstance(keep, bool):
        raise ConfigError(f"keep_results must be True or False, not {keep!r}")
    return keep


def endpoint_of(given: Endpoint | Mapping[str, Any] | str) -> Endpoint:
    if isinstance(given, Endpoint):
        return given
    if isinstance(given, str):
        return Endpoint(given)
    if isinstance(given, Mapping):
        return Endpoint(**given)
    raise ConfigError(f"an endpoint must be an Endpoint, a mapping or a URL, not a {type(given).__name__}")


def seconds(name: str, value: float | None) -> float | None:
    """Return ``value`` if it is a positive number of seconds, or None for no limit. Raises ``ConfigError`` for other values."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ConfigError(f"{name} must be a positive number of seconds, or None for none, not {value!r}")
    return float(value)


def count(name: str, value: int) -> int:
    """Return ``value`` if it is an integer of at least 0, where 0 means no limit. Raises ``ConfigError`` for other values."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"{name} must be a whole number, 0 for no limit, not {value!r}")
    return value


def request_options(options: Mapping[str, Any], default_timeout: float | None) -> RequestOptions:
    """Check the options of a call that concern each of its requests. The requests of a call with ``on_interrupt`` are streamed."""
    timeout = options.get("timeout", DEFAULT)
    hedge, tenant = options.get("hedge", True), options.get("tenant")
    streamed, on_interrupt = "on_interrupt" in options, options.get("on_interrupt", "raise")
    if not isinstance(hedge, bool):
        raise ConfigError(f"hedge must be True or False here, not {hedge!r}; how requests are hedged is set by the client's Hedge(...)")
    if tenant is not None and (not isinstance(tenant, str) or not tenant):
        raise ConfigError(f"tenant must be a name, or None, not {tenant!r}")
    if on_interrupt not in ("raise", "restart"):
        raise ConfigError(f"on_interrupt must be 'raise' or 'restart', not {on_interrupt!r}")
    limit = default_timeout if timeout is DEFAULT else seconds("timeout", timeout)
    try:
        level = priority_level(options["priority"]) if "priority" in options else Priority.NORMAL.value
    except ValueError as error:
        raise ConfigError(f"priority {error}") from None
    return RequestOptions(level, limit, hedge, tenant, on_interrupt == "restart", streamed)
