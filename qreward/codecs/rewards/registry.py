"""The table of codecs by kind of server, operation and route, and the operations themselves.

``bound`` makes a call for an operation into a call with the codec of an endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.base import ListCodec, Operation, pair_item, parts_item, text_item, token_item
from qreward.codecs.rewards.openai_lists import CompletionList, EmbeddingList, ModerationList, OpenAIEmbeddingList
from qreward.codecs.rewards.openrlhf_nim import NimReward, OpenRlhfReward
from qreward.codecs.rewards.sglang import SglangClassify, SglangLabels, SglangRerank
from qreward.codecs.rewards.tei import TeiEmbeddings, TeiLabels, TeiPredict, TeiRerank
from qreward.codecs.rewards.vllm import Rerank, VectorScore, VllmClassify, VllmLabels, VllmPooling, VllmRerank, VllmScore, VllmVectorScore
from qreward.errors import BadRequest, ConfigError
from qreward.settings.policies import Endpoint, RewardModel

_PARTIAL = ("top_n", "top_k")


def _check_ranking(params: Mapping[str, Any]) -> None:
    if not isinstance(params.get("query"), str):
        raise BadRequest(f"rerank needs a query, which is a text, not a {type(params.get('query')).__name__}")
    if name := next((name for name in _PARTIAL if params.get(name)), None):
        raise BadRequest(f"{name} is not supported: every document gets a score; sort the results and keep the best")


def _check_choices(params: Mapping[str, Any]) -> None:
    each = params.get("n")
    if each is not None and (type(each) is not int or each < 1):
        raise BadRequest("n must be a whole number of at least 1")


SCORE = Operation("score", pair_item)
"""A reward for each item: ``(prompt, response)``, a conversation, or a text. -> ``Score``, which is a float."""
CLASSIFY = Operation("classify", pair_item)
"""The probability of each label for each item. Items are those of ``SCORE``. -> ``dict[str, float]``"""
RERANK = Operation("rerank", text_item, _check_ranking)
"""The relevance of each item, a document, to ``params["query"]``. -> ``float``, in the order of the documents."""
EMBED = Operation("embeddings", token_item)
"""A vector for each item, a text or its token ids. -> ``list[float]``"""
COMPLETE = Operation("completions", token_item, _check_choices)
"""Legacy completions of each item, a text or its token ids. -> ``list[dict]``, the ``n`` choices."""
MODERATE = Operation("moderations", parts_item)
"""A moderation of each item, a text or a list of parts. -> ``dict``"""


_TABLE: dict[tuple[str, str], dict[str, type[ListCodec]]] = {
    ("openai", "score"): {"embeddings": VectorScore},
    ("openai", "rerank"): {"": Rerank},
    ("openai", "embeddings"): {"": OpenAIEmbeddingList},
    ("openai", "completions"): {"": CompletionList},
    ("openai", "moderations"): {"": ModerationList},
    ("vllm", "score"): {
        "": VllmClassify, "classify": VllmClassify, "pooling": VllmPooling, "score": VllmScore, "embeddings": VllmVectorScore,
    },
    ("vllm", "classify"): {"": VllmLabels},
    ("vllm", "rerank"): {"": VllmRerank},
    ("vllm", "embeddings"): {"": EmbeddingList},
    ("vllm", "completions"): {"": CompletionList},
    ("sglang", "score"): {"": SglangClassify, "classify": SglangClassify, "embeddings": VectorScore},
    ("sglang", "classify"): {"": SglangLabels},
    ("sglang", "rerank"): {"": SglangRerank},
    ("sglang", "embeddings"): {"": EmbeddingList},
    ("sglang", "completions"): {"": CompletionList},
    ("tei", "score"): {"": TeiPredict, "classify": TeiPredict},
    ("tei", "classify"): {"": TeiLabels},
    ("tei", "rerank"): {"": TeiRerank},
    ("tei", "embeddings"): {"": TeiEmbeddings},
    ("openrlhf", "score"): {"": OpenRlhfReward},
    ("nim", "score"): {"": NimReward},
}  # fmt: skip
"""(kind, operation) -> route -> codec; the route ``""`` is the default."""

_USUAL = RewardModel()


def codec_of(kind: str, operation: Operation, settings: RewardModel = _USUAL) -> ListCodec:
    """Return the codec of an operation for a kind of server. Equal arguments return the same codec.

    Raises ``ConfigError`` if this kind of server does not support the operation or the route.

    Example:
        >>> codec_of("tei", SCORE).path, codec_of("tei", SCORE).limits.items
        ('/predict', 32)
    """
    return _codec_of(kind, operation, settings)


@lru_cache(maxsize=4096)
def _codec_of(kind: str, operation: Operation, settings: RewardModel) -> ListCodec:
    routes = _TABLE.get((kind, operation.name))
    if routes is None:
        kinds = sorted(each for each, name in _TABLE if name == operation.name)
        raise ConfigError(f"an endpoint of kind {kind!r} does not support {operation.name}; the kinds that do are {', '.join(kinds)}")
    route = (settings.route or "") if operation is SCORE else ""
    if route not in routes:
        known = [repr(each) for each in routes if each]
        if settings.route is None:
            one = f"set RewardModel(route={' or '.join(known)}), or the kind of the server, such as kind: vllm"
            raise ConfigError(f"an endpoint of kind {kind!r} does not say how it scores; {one}")
        remedy = f"set it to {' or '.join(known)}" if known else "leave it out"
        raise ConfigError(f"an endpoint of kind {kind!r} has no route {settings.route!r} for RewardModel(route=...); {remedy}")
    return routes[route](operation, settings)


def settings_of(endpoint: Endpoint) -> RewardModel:
    """Return the endpoint's ``reward`` settings, or the defaults if it has none."""
    settings: RewardModel | None = getattr(endpoint, "reward", None)
    return _USUAL if settings is None else settings


def bound(call: WireRequest, endpoint: Endpoint) -> tuple[WireRequest, ListCodec]:
    """Return a call with the codec of an endpoint, and the codec. Raises ``ConfigError`` if the endpoint does not support the operation."""
    if isinstance(call.codec, ListCodec):
        return call, call.codec
    assert isinstance(call.codec, Operation)
    codec = codec_of(endpoint.kind, call.codec, settings_of(endpoint))
    return WireRequest(codec, call.model, call.inputs, call.params, call.headers), codec


def embeddings_place(kind: str) -> tuple[str, bool]:
    """Return the path of the embeddings API, and whether it is relative to the root of the server instead of the base URL.

    For a kind without a known embeddings API, the path of the OpenAI API is returned.

    Example:
        >>> embeddings_place("tei"), embeddings_place("vllm"), embeddings_place("nim")
        (('/v1/embeddings', True), ('/embeddings', False), ('/embeddings', False))
    """
    codec = _TABLE.get((kind, EMBED.name), {}).get("", EmbeddingList)
    return codec.path, codec.native


def server_root(base_url: str) -> str:
    """Return the address of a server's own routes, which are next to the ``/v1`` of its OpenAI API.

    Example:
        >>> server_root("http://gpu-0:8000/v1"), server_root("http://tei:8080")
        ('http://gpu-0:8000', 'http://tei:8080')
    """
    return base_url.removesuffix("/v1")
