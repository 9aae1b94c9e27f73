"""Examines one endpoint, and derives the problems of its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, Reply, TransportError, WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rewards.registry import SCORE, kind_of, server_root
from qreward.codecs.rewards.server_info import MODELS, SLOTS, Load, read_load
from qreward.errors import ConfigError, QRewardError, RequestError, RequestTimeout
from qreward.scheduler.outcome import Failure
from qreward.scheduler.routing import Routes, is_glob, matches
from qreward.settings.client import ClientConfig, without_effect
from qreward.settings.policies import Endpoint
from qreward.spelling import closest
from qreward.transport.backend import HttpBackend
from qreward.transport.connection import PASSING, EndpointConnection, open_transport

API_MODELS = "the list of models under base_url"
_NIM_READY = "/v1/health/ready"
STATUS_PATHS = ("/health", "/metrics", "/info", "/v1/loads", "/get_load", SLOTS, _NIM_READY)
GUARDED = (API_MODELS, MODELS, "/info", "/v1/loads")
"""Routes for which a server with authentication requires a key."""
DISTINCT_KINDS = ("vllm", "sglang", "tei", "openrlhf", "nim")
"""Kinds of server that can be recognised by their responses. The kind ``openai`` is missing, because any server may have the API of OpenAI.
Kinds that a user has registered are missing too."""
_PRODUCTS = {"llama.cpp": "openai", "Infinity": "openai"}
"""Servers that can be recognised and have no kind of their own -> their kind."""
NO_SUCH_API = (400, 404, 405, 422, 500, 501)
"""Statuses of servers that do not offer chat completions."""
ANY_NAME = "any"
MAX_LISTED = 6
"""Maximum number of names that a message lists."""
_UNLISTED = "; if the server has no list of models, add a model name to models and check with --call"
_REMEDY = "change models or the route, or map names with model_names"


class Examined(msgspec.Struct):
    """The findings of an examination."""

    statuses: dict[str, int] = {}
    failure: str | None = None
    seconds: float | None = None
    seems: str | None = None
    load: Load = Load()
    listed: bool = False
    refusal: str | None = None
    elsewhere: str | None = None
    context: int | None = None
    moved_to: str | None = None

    @property
    def reachable(self) -> bool:
        return bool(self.statuses)


async def examine(endpoint: Endpoint, seconds: float) -> Examined:
    """Send all GET requests and make the TLS handshake, and return the findings. Responses that take more than ``seconds`` are ignored."""
    try:
        connection = EndpointConnection(endpoint)
    except ConfigError as error:
        return Examined(failure=str(error))
    found = Examined()
    replies: dict[str, Reply] = {}
    try:
        async with asyncio.timeout(seconds):
            await _get_all(connection, found, replies)
    except TimeoutError:
        if not found.reachable:
            found.failure = f"no answer within {seconds:g} s; check base_url, and that the server is up and not overloaded"
    finally:
        await connection.aclose()
    _read(endpoint.kind, found, replies)
    return found


async def _get_all(connection: EndpointConnection, found: Examined, replies: dict[str, Reply]) -> None:
    """Send one GET request alone. If the server is reachable, send all other GET requests concurrently."""
    first = (*kind_of(connection.endpoint.kind).probe, "/health")[0]
    await _get(connection, first, found, replies)
    if found.failure is None:
        lists = (MODELS,) if connection.endpoint.base_url.endswith("/v1") else (API_MODELS, MODELS)
        await asyncio.gather(*(_get(connection, path, found, replies) for path in (*lists, *STATUS_PATHS) if path != first))
        listing = kind_of(connection.endpoint.kind).lists_models and {found.statuses.get(path) for path in lists} == {404}
        if listing or set(found.statuses.values()) <= {404}:
            found.elsewhere = await _api_at_host(connection.endpoint)


async def _api_at_host(endpoint: Endpoint) -> str | None:
    """Return the URL of the OpenAI API at another path of the host: ``/v1``, or ``/`` as for Infinity. None if no API is there."""
    host = "{0.scheme}://{0.netloc}".format(urlsplit(endpoint.base_url))
    transport = open_transport(endpoint.model_copy(update={"base_url": host}))
    try:
        for path, root in ((MODELS, f"{host}/v1"), ("/models", host)):
            reply = await transport.get(path)
            exists = reply.status in (401, 403) or bool(read_load(MODELS, reply.status, reply.body).models)
            if exists and root != endpoint.base_url:
                return root
    except TransportError:
        pass
    finally:
        await transport.aclose()
    return None


async def _get(connection: EndpointConnection, path: str, found: Examined, replies: dict[str, Reply]) -> None:
    began = perf_counter()
    try:
        reply = await connection.transport.get("/models" if path == API_MODELS else connection.root + path)
    except TransportError as error:
        if not found.reachable:
            found.failure = connection.secrets.hide(str(error))
            if "; " not in found.failure:  # the connection broke off, as it does if the server speaks another protocol
                found.failure += "; check the scheme, the host and the port of base_url, and the log of the server"
        return
    took = perf_counter() - began
    found.failure, found.seconds = None, min(took, found.seconds or took)
    found.statuses[path], replies[path] = reply.status, reply


def _read(kind: str, found: Examined, replies: dict[str, Reply]) -> None:
    ready, known = set(), kind_of(kind)
    loads = {
        path: read_load(MODELS if path == API_MODELS else path, reply.status, reply.body, known.readers) for path, reply in replies.items()
    }
    for path, load in loads.items():
        listing = path in (API_MODELS, MODELS)
        if not listing and load.ready is not None and (load.ready or path in known.probe):  # a proxy may return 502 for an unknown path
            ready.add(load.ready)
        found.load = found.load.joined(load)
        found.listed = found.listed or (listing and bool(load.models))
    found.load = msgspec.structs.replace(found.load, ready=min(ready, default=None))
    found.seems = _seems(replies, loads)
    found.context = min((size for path in (API_MODELS, MODELS) if path in replies for size in _contexts(replies[path])), default=None)
    lists = known.lists_models or known.chat
    found.refusal = None if found.listed or not lists else _refusal(replies.get(API_MODELS) or replies.get(MODELS))
    if replies and all(_is_page(reply) for reply in replies.values()):
        found.refusal = _PAGE
    moved = next((reply for reply in replies.values() if 300 <= reply.status < 400), None)
    target = urlsplit("" if moved is None else moved.headers.get("Location", ""))
    found.moved_to = f"{target.scheme}://{target.netloc.rpartition('@')[2]}" if target.scheme and target.netloc else None


def _contexts(reply: Reply) -> Iterator[int]:
    try:
        document = jsonio.read_leniently(reply.body)
    except Malformed:
        return
    rows = document.get("data") if isinstance(document, dict) else None
    for row in rows if isinstance(rows, list) else []:
        size = row.get("max_model_len") if isinstance(row, dict) else None
        if type(size) is int and size > 0:
            yield size


_PAGE = "a web page"
_EMPTY = "an empty list"


def _refusal(reply: Reply | None) -> str | None:
    """Return what a server answered instead of a list of models. None if the answer does not show whether the server has such a list."""
    if reply is None or 300 <= reply.status < 400 or reply.status in (401, 403, *PASSING):
        return None
    if not 200 <= reply.status < 300:
        return str(reply.status)
    if _is_page(reply):
        return _PAGE
    try:
        document = jsonio.read_leniently(reply.body)
    except Malformed:
        document = None
    return _EMPTY if isinstance(document, dict) and document.get("data", "") in (None, []) else "something else"


def _is_page(reply: Reply) -> bool:
    return 200 <= reply.status < 300 and reply.body.lstrip()[:1] == b"<"


def _seems(replies: Mapping[str, Reply], loads: Mapping[str, Load]) -> str | None:
    """Return the kind of server, or None if it is not recognised. The kind is recognised by content that only this kind returns."""
    metrics = b"\n" + replies["/metrics"].body if "/metrics" in replies else b""
    owners = b"".join(replies[path].body for path in (API_MODELS, MODELS) if path in replies).replace(b" ", b"")
    ready, empty = replies.get(_NIM_READY), Load()
    signs = {
        "tei": loads.get("/info", empty).limits.items is not None or b"\nte_queue_size" in metrics,
        "sglang": b"\nsglang:" in metrics or b'"owned_by":"sglang"' in owners or loads.get("/v1/loads", empty).running is not None,
        "vllm": b"\nvllm:" in metrics or b'"owned_by":"vllm"' in owners,
        "llama.cpp": b"\nllamacpp:" in metrics or b'"owned_by":"llamacpp"' in owners,
        "Infinity": b'"owned_by":"infinity"' in owners,
        "nim": ready is not None and ready.status == 200 and not ready.body.lstrip().startswith(b"<"),
    }
    return next((kind for kind, shown in signs.items() if shown), None)


async def call(endpoint: Endpoint, model: str, seconds: float, what: str | None = None) -> QRewardError | None:
    """Send one small model request. Return None if it succeeds, and its error without secrets if it fails.

    ``what`` is asked for: ``chat``, ``scores`` or ``embeddings``; by default what the endpoint seems to serve.
    """
    what = what or ("chat" if endpoint.reward is None and kind_of(endpoint.kind).chat else "scores")
    if what == "scores":
        request = WireRequest(SCORE, model, [SCORE.item(("Say yes.", "yes"))], {}, None)
    elif what == "embeddings":
        request = WireRequest(EMBEDDINGS, model, EMBEDDINGS.validate(["yes"]), {}, None)
    else:
        request = WireRequest(CHAT, model, CHAT.validate([{"role": "user", "content": "Say yes."}]), {"max_tokens": 1}, None)
    backend = HttpBackend()
    try:
        async with asyncio.timeout(seconds):
            outcome = await backend.send(endpoint, request)
        return outcome.error if isinstance(outcome, Failure) else None
    except TimeoutError:
        return RequestTimeout(f"endpoint {endpoint.name!r}, model {model!r}: no answer within {seconds:g} s; give it more with --timeout")
    except QRewardError as error:
        return error
    finally:
        await backend.aclose()


def patterns_of(endpoint: Endpoint, config: ClientConfig) -> list[str]:
    """Return the model patterns for which the endpoint is used: the patterns of its routes and of its ``models``, exact names first."""
    routed = [route.pattern for route in config.routes if endpoint.name in route.endpoints]
    return sorted(dict.fromkeys((*routed, *endpoint.models)), key=is_glob)


def model_to_call(endpoint: Endpoint, config: ClientConfig, served: Iterable[str]) -> str | None:
    """Return the name of a model that may be requested from the endpoint, or None if no name is known."""
    patterns = patterns_of(endpoint, config)
    served = list(served)
    there = [ANY_NAME if name == "*" else name for name in served if name == "*" or not is_glob(name)]
    known = [*(pattern for pattern in patterns if not is_glob(pattern)), *endpoint.model_names, *_called(endpoint.model_names, there)]
    named = next((name for name in known if any(matches(pattern, name) for pattern in patterns)), None)
    return named if named is not None or kind_of(endpoint.kind).lists_models else next(iter(served), ANY_NAME)


class ScorerModel(NamedTuple):
    """A model that a scorer of the settings requests."""

    setting: str  # setting that names the model, such as ``judge.model``
    model: str
    scores: bool  # True for a reward model, False for a judge


def endpoints_by_pattern(config: ClientConfig) -> Routes[list[str]]:
    """Return pattern -> names of the endpoints that serve it. A route replaces the endpoints' own pattern, as in a client."""
    found: dict[str, list[str]] = {}
    for endpoint in config.endpoints:
        for pattern in endpoint.models:
            found.setdefault(pattern, []).append(endpoint.name)
    table: Routes[list[str]] = Routes()
    for pattern, names in {**found, **{route.pattern: list(route.endpoints) for route in config.routes}}.items():
        table.set(pattern, names)
    return table


def asked_of(endpoint: Endpoint, config: ClientConfig, asked: Iterable[ScorerModel]) -> list[ScorerModel]:
    """Return those of the scorers' models whose requests may go to the endpoint."""
    table = endpoints_by_pattern(config)
    return [each for each in asked if endpoint.name in (table.find(each.model) or ())]


class Called(msgspec.Struct, frozen=True):
    """The outcome of the request that ``--call`` adds. If no request was sent, ``answered`` is False and ``error`` is None."""

    answered: bool = False
    error: QRewardError | None = None
    models: tuple[str, ...] = ()
    instead: str | None = None

    @property
    def status(self) -> int | None:
        """The HTTP status of the response if the request failed; None if there was no response."""
        return self.error.status_code if isinstance(self.error, RequestError) else None


NOT_CALLED = Called()


def auth_of(endpoint: Endpoint, found: Examined, called: Called = NOT_CALLED) -> str:
    """Return a text that says whether the server accepts the key. The model request counts more than the GET requests."""
    has_key = endpoint.api_key is not None or bool(endpoint.headers)
    seen = [found.statuses[path] for path in GUARDED if path in found.statuses]
    refused = None if called.answered else next((status for status in (called.status, *seen) if status in (401, 403)), None)
    if refused is not None:
        return f"refused ({refused})" if has_key else f"required ({refused})"
    if called.answered or any(200 <= status < 300 for status in seen):
        return "not refused" if has_key else "not needed"
    return "?"


def state_of(endpoint: Endpoint, found: Examined, called: Called = NOT_CALLED) -> str:
    """Return the state of the endpoint in a few words. It is ``ready`` only if the server reports readiness and refused no request."""
    if not found.reachable or found.load.ready is False:
        return "not ready" if found.reachable else "unreachable"
    auth = auth_of(endpoint, found, called)
    if auth.startswith(("refused", "required")):
        return f"key {auth}"
    if called.error is not None:
        return "call failed" + (f" ({called.status})" if called.status else "")
    if called.answered:
        return "ready, answered"
    return _refused_path(endpoint, found) or ("ready" if found.load.ready else "reachable")


def _refused_path(endpoint: Endpoint, found: Examined) -> str | None:
    statuses = found.statuses.values()
    if _of_path(endpoint, found) is not None:
        if found.refusal in (None, "404"):  # of the root that base_url names
            return "wrong path (404)"
        return f"failing ({found.refusal})" if found.refusal.startswith("5") else f"no API ({found.refusal})"
    return "redirects" if any(300 <= status < 400 for status in statuses) else None


def problems(
    endpoint: Endpoint,
    config: ClientConfig,
    found: Examined,
    called: Called = NOT_CALLED,
    asked: Iterable[ScorerModel] = (),
) -> Iterator[str]:
    """Yield the problems, most important first."""
    if found.failure is not None:
        yield found.failure
        return
    yield from _of_answers(endpoint, found, called)
    auth = auth_of(endpoint, found, called)
    if auth.startswith("refused"):
        yield f"it refuses the key that was sent ({auth[9:-1]}); check api_key, or headers if it is sent there"
    if auth.startswith("required"):
        yield f"it requires a key, and none was sent ({auth[10:-1]}); set api_key, such as ${{JUDGE_KEY}}, or OPENAI_API_KEY"
    kind = _PRODUCTS.get(found.seems or "", found.seems)
    if kind not in (None, endpoint.kind) and endpoint.kind in DISTINCT_KINDS:
        what = found.seems if found.seems in _PRODUCTS else f"a server of kind {kind!r}"
        yield f"it seems to be {what}, not {endpoint.kind!r}; set kind to {kind!r}"
    yield from (text for wanted, text in _of_models(endpoint, config, found, asked) if not _served_call(wanted, called))
    if called.error is not None:
        yield f"a call failed: {called.error}"


def notes(
    endpoint: Endpoint,
    config: ClientConfig,
    found: Examined,
    called: Called = NOT_CALLED,
    asked: Iterable[ScorerModel] = (),
) -> Iterator[str]:
    """Yield the notes: the findings that do not make calls fail. See :func:`problems` for the arguments."""
    if endpoint.kind == "openai" and found.seems is not None and found.seems not in _PRODUCTS:
        yield f"it seems to be a server of kind {found.seems!r}; with kind {found.seems!r} it can be asked for scores and for its load"
    if called.instead is not None:
        yield f"it answers requests for {called.instead}, and refuses chat completions"
    if any(_served_call(wanted, called) for wanted, _ in _of_models(endpoint, config, found, asked)):
        for model in called.models:
            if not _lists(found.load.models, model):
                yield f"its list of models has no {model!r}, but it answered a call for this model"
    unlisted = found.reachable and not found.listed and kind_of(endpoint.kind).lists_models
    if unlisted and (called.answered or found.refusal is None) and auth_of(endpoint, found, called) in ("not refused", "not needed", "?"):
        yield "it does not list its models, so their names could not be checked; check them with --call"
    if endpoint.probe is not None and not kind_of(endpoint.kind).probe:
        yield f"probe has no effect: a server of kind {endpoint.kind!r} has no status route"
    if endpoint.base_url.startswith("https") and endpoint.verify is False:
        yield "its certificate is not verified; set verify to the path of its CA bundle instead of false"
    yield from (text for name, text in without_effect(config) if name == endpoint.name)


def _of_answers(endpoint: Endpoint, found: Examined, called: Called) -> Iterator[str]:
    if found.load.ready is False:
        yield "it answers that it is not ready; wait until it has loaded its model, or look into its log"
    if moved := next((path for path, status in found.statuses.items() if 300 <= status < 400), None):
        path = "/models" if moved == API_MODELS else moved
        to = f" to {found.moved_to}" if found.moved_to else ""
        yield f"it redirects{to} ({found.statuses[moved]} for {path}); redirects are not followed; set base_url to the final one"
    if not called.answered and (text := _of_path(endpoint, found)):
        yield text


def _of_path(endpoint: Endpoint, found: Examined) -> str | None:
    """Return None if ``base_url`` seems to be the root of an API that the endpoint can use."""
    base_url, refusal, kind = endpoint.base_url, found.refusal, kind_of(endpoint.kind)
    below = found.statuses.get(MODELS, 404)
    if found.statuses.get(API_MODELS) == 404 and (below in (200, 401, 403) or below >= 500) and endpoint.reward is None:
        return f"its API is one level below base_url; set base_url to {base_url}/v1"
    if found.elsewhere is not None:
        which = "every request" if set(found.statuses.values()) <= {404} else "a request for its models"
        return f"it answers 404 to {which}, but it has an API at another path; set base_url to {found.elsewhere}"
    if set(found.statuses.values()) <= {404} and kind.probe:
        return f"it answers 404 to every request; check the host, the port and the path of base_url{_UNLISTED if found.refusal else ''}"
    if not kind.chat and kind.info is not None and found.statuses.get(kind.info) == 404:
        return (
            f"it answers 404 to GET {server_root(base_url)}{kind.info}, which servers of kind {kind.name!r} have; "
            "check kind and base_url, or check with --call whether it answers a request"
        )
    return None if refusal is None or found.load.ready is False else _of_refusal(refusal, base_url)


def _of_refusal(refusal: str, base_url: str) -> str:
    answer = f"it answers {refusal} to a request for its models (GET {base_url}/models)"
    if refusal == _EMPTY:
        return f"{answer}; load a model into the server"
    if refusal == _PAGE:
        return f"{answer}, so this is no model server; check the host, the port and the path of base_url"
    if refusal.startswith("5"):
        return f"{answer}; look into its log, and that of the gateway in front of it"
    return f"{answer}, so it may be no OpenAI-compatible server; check the host, the port and the path of base_url{_UNLISTED}"


def _of_models(endpoint: Endpoint, config: ClientConfig, found: Examined, asked: Iterable[ScorerModel]) -> Iterator[tuple[str, str]]:
    """Yield a name or pattern that the list of models does not have, and the problem in words."""
    served = found.load.models
    if not kind_of(endpoint.kind).lists_models or not found.listed:
        return
    renamed = endpoint.model_names
    for name, there in renamed.items():
        if not _lists(served, there):
            yield name, f"model_names maps {name!r} to {there!r}, but it serves {_served(there, served)}; correct model_names"
    for pattern in patterns_of(endpoint, config):
        if is_glob(pattern):
            if not any(is_glob(name) or matches(pattern, name) for name in _called(renamed, served)):
                yield pattern, f"it serves {_served(pattern, served)}, none of which matches {pattern!r}; {_REMEDY}"
        elif pattern not in renamed and not _lists(served, pattern):
            yield pattern, f"it does not serve {pattern!r}, but {_served(pattern, served)}; {_REMEDY}"
    for setting, model, _ in asked:
        if model not in (*renamed, *endpoint.models) and not _lists(served, model):
            remedy = f"change {setting}, or map the name with model_names"
            yield model, f"it does not serve {model!r}, but {_served(model, served)}; {remedy}"


def _lists(served: Iterable[str], name: str) -> bool:
    return any(name == each or matches(each, name) for each in served)


def _served_call(wanted: str, called: Called) -> bool:
    return called.answered and any(matches(wanted, model) for model in called.models)


def _called(renamed: Mapping[str, str], served: Iterable[str]) -> list[str]:
    there = list(served)
    return [*(name for name, target in renamed.items() if target in there), *(name for name in there if name not in renamed.values())]


def _served(name: str, served: tuple[str, ...]) -> str:
    names = list(dict.fromkeys((*closest(name, served, most=MAX_LISTED), *served)))
    return ", ".join(map(repr, names[:MAX_LISTED])) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")
