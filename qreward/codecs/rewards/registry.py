"""The registry of the kinds of servers, and the operations that a kind may support."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.dialects import Decide
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rewards.base import ListCodec, Operation, ServerKind, pair_item, parts_item, text_item, token_item
from qreward.codecs.rewards.kinds import BUILT_IN, EmbeddingList, local_codec
from qreward.errors import BadRequest, ConfigError
from qreward.settings.local import LocalFunction
from qreward.settings.policies import SERVER_KINDS, Endpoint, RewardModel
from qreward.spelling import did_you_mean

_KINDS = {kind.name: kind for kind in BUILT_IN}
_USUAL = RewardModel()


def _check_ranking(params: Mapping[str, Any]) -> None:
    if not isinstance(params.get("query"), str):
        raise BadRequest(f"rerank needs a query, which is a text, not a {type(params.get('query')).__name__}")
    if name := next((name for name in ("top_n", "top_k") if params.get(name)), None):
        raise BadRequest(f"{name} is not supported: every document gets a score; sort the results and keep the best")


def _check_choices(params: Mapping[str, Any]) -> None:
    each = params.get("n")
    if each is not None and (type(each) is not int or each < 1):
        raise BadRequest("n must be a whole number of at least 1")


SCORE = Operation("score", pair_item)  # a RewardScore for each pair (prompt, response), conversation or text
CLASSIFY = Operation("classify", pair_item)  # the probability of each label, for the same items
RERANK = Operation("rerank", text_item, _check_ranking)  # the relevance of each document to params["query"]
EMBED = Operation("embeddings", token_item)  # a vector for each text or list of token ids
COMPLETE = Operation("completions", token_item, _check_choices)  # a list of n choices for each prompt
MODERATE = Operation("moderations", parts_item)  # the moderation of each text or list of parts, a dict
_OPERATIONS = [operation.name for operation in (SCORE, CLASSIFY, RERANK, EMBED, COMPLETE, MODERATE)]


def register_kind(kind: ServerKind) -> None:
    """Register a kind of reward server, so that ``Endpoint(kind=...)`` accepts its name.

    The kind is registered in this process only. Call ``register_kind`` in the module that defines the codecs, and import that module in
    every process that unpickles a client or an ``Endpoint`` of this kind. A kind that was registered before with the same name is replaced.
    Built-in kinds cannot be replaced.

    Args:
        kind: the kind; see :class:`ServerKind`.

    Raises:
        ConfigError: the name is not a text or belongs to a built-in kind, an operation is unknown, or a codec has no path.

    Example:
        register_kind(ServerKind("acme", {"score": AcmeReward}, probe=("/health",)))    # AcmeReward: see ListCodec
        endpoint = Endpoint("http://gpu-0:8000", kind="acme")
    """
    if not isinstance(kind, ServerKind) or not isinstance(kind.name, str) or not kind.name:
        raise ConfigError("register_kind takes a ServerKind with a name, which is the value of Endpoint.kind")
    if any(kind.name == built_in.name for built_in in BUILT_IN):
        raise ConfigError(f"the kind {kind.name!r} is built in; give yours another name")
    for operation in kind.codecs:
        if operation not in _OPERATIONS:
            raise ConfigError(f"kind {kind.name!r}: there is no operation {operation!r}; {did_you_mean(operation, _OPERATIONS)}")
        for codec in kind.routes(operation).values():
            if not (isinstance(codec, type) and issubclass(codec, ListCodec) and getattr(codec, "path", "").startswith("/")):
                raise ConfigError(f"kind {kind.name!r}: the codec of {operation!r} must be a ListCodec with a path such as '/reward'")
    _KINDS[kind.name] = kind
    if kind.name not in SERVER_KINDS:
        SERVER_KINDS.append(kind.name)
    codec_of.cache_clear()


def kind_of(name: str) -> ServerKind:
    """Return the kind with this name. Raises ``ConfigError`` if the kind is not registered in this process."""
    if name not in _KINDS:
        raise ConfigError(f"the kind of server {name!r} is not registered in this process; call register_kind in a module it imports")
    return _KINDS[name]


@lru_cache(maxsize=4096)
def codec_of(kind: str, operation: Operation, settings: RewardModel = _USUAL) -> ListCodec:
    """Return the codec of an operation for a kind of server. Equal arguments return the same codec. Raises ``ConfigError``."""
    routes = kind_of(kind).routes(operation.name)
    if not routes:
        kinds = sorted(each.name for each in _KINDS.values() if operation.name in each.codecs)
        raise ConfigError(f"an endpoint of kind {kind!r} does not support {operation.name}; the kinds that do are {', '.join(kinds)}")
    route = (settings.route or "") if operation is SCORE else ""
    if route not in routes:
        known = [repr(each) for each in routes if each]
        if settings.route is None:
            one = f"set RewardModel(route={' or '.join(known)}), or the kind of the server, such as kind='vllm'"
            raise ConfigError(f"an endpoint of kind {kind!r} needs a route to score; {one}")
        remedy = f"set it to {' or '.join(known)}" if known else "leave it out"
        raise ConfigError(f"an endpoint of kind {kind!r} has no route {settings.route!r} for RewardModel(route=...); {remedy}")
    return routes[route](operation, settings)


def codec_at(endpoint: Endpoint, operation: Operation) -> ListCodec:
    settings = endpoint.reward or _USUAL
    if isinstance(endpoint.compute, LocalFunction):
        return local_codec(operation, settings, endpoint.compute.max_batch_size)
    return codec_of(endpoint.kind, operation, settings)


def bound(call: WireRequest, endpoint: Endpoint) -> tuple[WireRequest, str, bool]:
    """Return a request with the codec of the endpoint that it goes to, the path, and whether the path is outside ``/v1``.

    A chat has the same codec and path at every endpoint.
    """
    codec = call.codec
    if isinstance(codec, Operation):
        found = codec_at(endpoint, codec)
        return WireRequest(found, call.model, call.inputs, call.params, call.headers), found.path, found.native
    if codec is EMBEDDINGS:
        place = kind_of(endpoint.kind).routes(EMBED.name).get("", EmbeddingList)
        return call, place.path, place.native
    if isinstance(codec, Decide):
        dialect = codec.dialect_at(endpoint, call.model)
        return WireRequest(dialect, call.model, call.inputs, call.params, call.headers, call.group), dialect.path, dialect.native
    return call, codec.path, getattr(codec, "native", False)


def server_root(base_url: str) -> str:
    return base_url.removesuffix("/v1")
