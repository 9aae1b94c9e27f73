"""The built-in kinds of reward servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import NoneType
from typing import Any

from msgspec.structs import replace

from qreward.codecs import json as jsonio
from qreward.codecs.base import Codec, Ignored, Malformed, WireRequest
from qreward.codecs.chat import joined
from qreward.codecs.embeddings import EmbeddingsCodec, embeddings_codec
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.base import (
    ALONE,
    Choices,
    Conversation,
    ListCodec,
    MergeLimits,
    Moderated,
    NumberCodec,
    Operation,
    Pair,
    RewardScore,
    ServerKind,
    pair_item,
    parts_item,
    text_item,
    token_item,
)
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.errors import BadRequest, ConfigError, did_you_mean
from qreward.results import Usage
from qreward.settings.local import LocalFunction
from qreward.settings.policies import BATCH_KIND, SERVER_KINDS, Endpoint, RewardModel

# the OpenAI API, and servers with routes like it


class VectorScore(NumberCodec):
    """``POST /embeddings`` of a server that returns a reward as a vector of one number. A longer vector is an error without ``label``."""

    path = "/embeddings"
    value_in = "embedding"


class EmbeddingList(ListCodec):
    path = "/embeddings"

    def value(self, row: Any) -> list[float]:
        return parsing.numbers(parsing.row_of(row).get("embedding"), "embedding")


class CompletionList(ListCodec):
    """``POST /completions``. Choice ``k`` of prompt ``i`` has the index ``i * n + k`` in the response, and ``k`` in the result."""

    path = "/completions"
    member = "prompt"
    answer = Choices

    def body(self, items: list[Any]) -> dict[str, Any]:
        """Return the prompts. A single text is not sent as a list, because some servers take no lists."""
        return {self.member: items[0]} if len(items) == 1 and type(items[0]) is str else super().body(items)

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        each, count = call.params.get("n") or 1, len(call.inputs)
        choices = parsing.member(document, "choices")
        if 0 < len(choices) < count * each and each > 1:
            what = f"the answer has {len(choices)} results for {count * each} items"
            raise Ignored(f"{what}; send each prompt {each} times if the server ignores n")
        found = parsing.in_order(choices, count * each)
        return [found[start : start + each] for start in range(0, count * each, each)]

    def value(self, row: Any) -> list[Any]:
        choices = [parsing.row_of(choice) for choice in row]
        if not all(isinstance(choice.get("text"), str) for choice in choices):
            raise InvalidRow("one of its choices has no text")
        for choice in choices:
            parsing.check_ending(choice.get("finish_reason"))
        return [{**choice, "index": index} for index, choice in enumerate(choices)]

    def outputs(self, values: list[Any]) -> list[float] | None:
        return [sum(float(len(choice["text"])) for choice in value) if isinstance(value, list) else 0.0 for value in values]


class ModerationList(ListCodec):
    path = "/moderations"
    rows_in = "results"
    answer = Moderated

    def value(self, row: Any) -> dict[str, Any]:
        found = parsing.row_of(row)
        if not isinstance(found.get("flagged"), bool):
            raise InvalidRow("its result has no 'flagged'")
        return found


class Rerank(ListCodec):
    """``POST /rerank`` as vLLM and Jina serve it. The results are sorted by score; ``index`` says to which document a result belongs."""

    path = "/rerank"
    member = "documents"
    rows_in = "results"
    value_in = "relevance_score"

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        rows = parsing.member(document, self.rows_in)
        if any(not isinstance(row, dict) or row.get("index") is None for row in rows):
            raise Malformed("the ranking has no indexes, so its scores cannot be matched to documents")
        return parsing.in_order(rows, len(call.inputs))

    def value(self, row: Any) -> float:
        return parsing.number(parsing.row_of(row).get(self.value_in))


# vLLM: a list with one bad item is refused as a whole, and a conversation is a request of its own


class VllmClassify(NumberCodec):
    """``POST /classify`` for a reward, which is one of the numbers in ``probs``. These are logits if ``use_activation`` is false."""

    path = "/classify"
    native = chats = last = True
    value_in = "probs"

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: self.settings.activation}


class VllmLabels(VllmClassify):
    """``POST /classify`` for the probability of each label. vLLM names only the most likely label; Infinity, with this API, names all."""

    def defaults(self) -> dict[str, Any]:
        return {self.settings.activation_field: True}

    def value(self, row: Any) -> Any:
        if isinstance(row, list):
            return parsing.labelled(row)
        row = parsing.row_of(row)
        probs = parsing.numbers(row.get("probs"), "probs")
        names = list(self.settings.labels) or [f"LABEL_{position}" for position in range(len(probs))]
        if len(names) != len(probs):
            raise InvalidRow(f"it has {len(probs)} classes, and labels names {len(names)}")
        best = row.get("label")
        parsing.check_labels(best, probs, self.settings.labels)
        if isinstance(best, str) and not self.settings.labels:
            names[probs.index(max(probs))] = best
        if len(set(names)) < len(names):
            raise InvalidRow("two of its classes have one name; name them all: RewardModel(labels=...)")
        return dict(zip(names, probs, strict=True))


class VllmPooling(VllmClassify):
    """``POST /pooling`` for a reward. If the server returns a reward for each token or step, the last reward counts. Several numbers are
    an error without ``label``, because a model of embeddings answers with a vector."""

    path = "/pooling"
    last = False
    value_in = "data"

    def defaults(self) -> dict[str, Any]:
        return {**super().defaults(), "encoding_format": "float"}

    def value(self, row: Any) -> RewardScore:
        row = parsing.row_of(row)
        data = row.get("data")
        return super().value({"data": data[-1]} if isinstance(data, list) and data and isinstance(data[-1], list) else row)


class VllmScore(ListCodec):
    """``POST /score`` of a cross-encoder. Two lists of texts hold the pairs. All versions of vLLM accept the names of these lists."""

    path = "/score"
    native = pairs = True
    texts = False
    defaults = VllmClassify.defaults

    def body(self, items: list[Any]) -> dict[str, Any]:
        return {"text_1": [pair.prompt for pair in items], "text_2": [pair.response for pair in items]}


# SGLang: /v1/classify always applies a softmax, so a reward, which has one class, would always be 1.0


class SglangClassify(NumberCodec):
    """``POST /classify``, which returns an array of ``{"embedding", "meta_info"}`` in the order of the texts."""

    path = "/classify"
    native = True
    member = "text"
    rows_in = ""
    value_in = "embedding"

    def value(self, row: Any) -> RewardScore:
        parsing.check_ending(_meta(row).get("finish_reason"))
        return super().value(row)

    def usages(self, rows: list[Any]) -> list[Usage] | None:
        found = [jsonio.usage_of(_meta(row)) for row in rows]
        if any(used is None or used.prompt_tokens is None for used in found):
            return None
        return [Usage(used.prompt_tokens, None, used.prompt_tokens) for used in found if used is not None]


def _meta(row: Any) -> dict[str, Any]:
    found = row.get("meta_info") if isinstance(row, dict) else None
    return found if isinstance(found, dict) else {}


class SglangLabels(VllmLabels):
    path = "/v1/classify"
    chats = False
    defaults = ListCodec.defaults

    def value(self, row: Any) -> Any:
        probs = super().value(row)
        if len(probs) == 1:
            raise InvalidRow("the model has one class, for which this server always returns 1.0; call score() instead")
        return probs


# Text Embeddings Inference. ["a", "b"] is one pair, so each item is sent as a list: [["a"], ["b"]]


_WHOLE = {"truncate": False}  # otherwise TEI since 1.9 cuts texts that are too long, and returns the scores of their beginnings


class TeiLabels(ListCodec):
    """``POST /predict`` for the probability of each label. The server sorts labels by score, so a reward is selected by its name."""

    path = "/predict"
    native = pairs = True
    rows_in = ""
    limits = MergeLimits(items=32, bytes=2_000_000)  # the server's defaults; a probe reads the limit of the items from GET /info

    def defaults(self) -> dict[str, Any]:
        return {**_WHOLE, "raw_scores": False}

    def body(self, items: list[Any]) -> dict[str, Any]:
        return {"inputs": [[item.prompt, item.response] if isinstance(item, Pair) else [item] for item in items]}

    def value(self, row: Any) -> Any:
        return parsing.labelled(row)


class TeiPredict(TeiLabels):
    def defaults(self) -> dict[str, Any]:
        return {**_WHOLE, "raw_scores": not self.settings.activation}

    def value(self, row: Any) -> RewardScore:
        scores, label, names = parsing.labelled(row), self.settings.label, self.settings.labels
        if isinstance(label, int) and names and -len(names) <= label < len(names):
            label = names[label]
        elif isinstance(label, int):
            if label < 0:
                raise InvalidRow(
                    "its labels are sorted by score, so a position means nothing; set RewardModel(label=...) to a name, or set labels"
                )
            label = f"LABEL_{label}"
        return RewardScore(parsing.by_name(scores, label, ""), scores if len(scores) > 1 else None)


# OpenRLHF and qreward serve


class OpenRlhfReward(ListCodec):
    """``POST /get_reward`` with ``query`` (prompt and response in one text), ``prompts`` and ``labels``.

    A score has the attributes ``reward``, ``score`` and those in ``extra_logs``. ``RewardModel(label=...)`` selects one of them.
    """

    path = "/get_reward"
    native = True

    def form(self, item: Any) -> Any:
        return item if isinstance(item, Pair) else super().form(item)

    def body(self, items: list[Any]) -> dict[str, Any]:
        queries = [self.settings.render(item.prompt, item.response) if isinstance(item, Pair) else item for item in items]
        known = [item if isinstance(item, Pair) else Pair("", "") for item in items]
        labels = ["" if pair.label is None else pair.label for pair in known]
        return {"query": queries, "prompts": [pair.prompt for pair in known], "labels": labels}

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        count = len(call.inputs)
        rewards = parsing.as_many(parsing.member(document, "rewards"), count, "rewards")
        logs = document.get("extra_logs")
        columns = {**(logs if isinstance(logs, dict) else {}), "score": document.get("scores"), "reward": rewards}
        whole = {name: column for name, column in columns.items() if isinstance(column, list) and len(column) == count}
        return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]

    def value(self, row: Any) -> RewardScore:
        wanted = "reward" if self.settings.label is None else self.settings.label
        if wanted not in row:
            raise InvalidRow(f"it has {parsing.safe_names(row)}; RewardModel(label=...) must be one of them")
        return RewardScore(parsing.number(row[wanted], "reward"), {name: float(raw) for name, raw in row.items() if parsing.is_number(raw)})


# NVIDIA NIM


class NimReward(ListCodec):
    """``POST /chat/completions``, whose answer is a text such as ``helpfulness:1.25,correctness:0.43`` or ``reward:-7.1``."""

    path = "/chat/completions"
    texts = False
    chats = True
    rows_in = "choices"
    limits = ALONE

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        choices = parsing.member(document, self.rows_in)
        if not choices:
            raise Malformed("the answer has no choices")
        return parsing.in_order(choices[:1], len(call.inputs))

    def value(self, row: Any) -> RewardScore:
        row = parsing.row_of(row)
        parsing.check_ending(row.get("finish_reason"))  # "length" is accepted, because these servers send it with complete numbers
        message = row.get("message")
        attributes = attributes_of(joined(message.get("content")) if isinstance(message, dict) else "")
        return RewardScore(parsing.by_name(attributes, self.settings.label, "reward"), attributes)


_ATTRIBUTE = re.compile(r"\s*([A-Za-z][\w .-]{0,40}?)\s*:\s*([^\s,]+)\s*")


def attributes_of(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _ATTRIBUTE.fullmatch(part)
        if match is None or match[1] in found:
            raise InvalidRow("its text is not a list of attributes such as helpfulness:1.25,correctness:0.43")
        try:
            value = float(match[2])
        except ValueError:
            raise InvalidRow(f"its {match[1]} is a text, not a finite number") from None
        found[match[1]] = parsing.number(value, match[1])
    return found


# a function in this process: its items and results are the JSON that qreward.transport.local reads


class LocalScore(ListCodec):
    """Passes the items to the function: a text, a mapping with ``prompt``, ``response`` and ``label``, or a list of messages."""

    path = "/local/score"
    pairs = chats = True

    def mergeable(self, item: Any) -> bool:  # noqa: ARG002 - a function takes conversations in a list too
        return True

    def form(self, item: Any) -> Any:
        item = super().form(item)
        if isinstance(item, Pair):
            return {"prompt": item.prompt, "response": item.response} | ({} if item.label is None else {"label": item.label})
        return item.messages if isinstance(item, Conversation) else item

    def encode(self, call: WireRequest, model: str) -> bytes:
        self.operation.check(call.params)
        return jsonio.write(model, "items", [self.form(item) for item in call.inputs], {"params": call.params}, all_text=False)

    def value(self, row: Any) -> RewardScore:
        if not isinstance(row, dict):
            return RewardScore(parsing.number(row))
        if row.get("error"):
            raise parsing.InvalidRow(f"the function returned an error for it: {row['error']}")
        label = self.settings.label
        kinds = (int, float, NoneType) if isinstance(label, int) else (int, float)  # NaN arrives as null, and keeps its position
        found = {name: raw for name, raw in row.items() if name == "reward" or type(raw) in kinds}
        reward = parsing.number(parsing.by_name(found, label, "reward"), "reward")
        return RewardScore(reward, {name: float(raw) for name, raw in found.items() if parsing.is_number(raw)})


def _like(codec: type[ListCodec], **fields: Any) -> type[ListCodec]:
    return type(codec.__name__, (codec,), fields)


_TEI = {"native": True, "limits": TeiLabels.limits}
BUILT_IN = (
    ServerKind(
        "openai",
        {
            "score": {"embeddings": VectorScore}, "rerank": Rerank, "completions": CompletionList, "moderations": ModerationList,
            "embeddings": _like(EmbeddingList, limits=MergeLimits(items=2048, tokens=300_000)),  # as the openai package documents them
        },
        probe=("/v1/models",), chat=True, lists_models=True,
    ),
    ServerKind(
        "vllm",
        {
            "score": {
                "": VllmClassify, "classify": VllmClassify, "pooling": VllmPooling, "score": VllmScore,
                "embeddings": _like(VectorScore, chats=True),
            },
            "classify": VllmLabels, "rerank": _like(Rerank, native=True), "embeddings": EmbeddingList, "completions": CompletionList,
        },
        probe=("/health", "/metrics"), chat=True, lists_models=True,
    ),
    ServerKind(
        "sglang",
        {
            "score": {"": SglangClassify, "classify": SglangClassify, "embeddings": VectorScore}, "classify": SglangLabels,
            "rerank": _like(Rerank, path="/v1/rerank", native=True, rows_in="", value_in="score"),
            "embeddings": EmbeddingList, "completions": CompletionList,
        },
        probe=("/health", "/v1/loads"), chat=True,
    ),
    ServerKind(
        "tei",
        {
            "score": {"": TeiPredict, "classify": TeiPredict}, "classify": TeiLabels,
            "rerank": _like(Rerank, member="texts", rows_in="", value_in="score", defaults=lambda _: _WHOLE, **_TEI),
            "embeddings": _like(EmbeddingList, path="/v1/embeddings", **_TEI),  # instead of /embed: its response has the usage
        },
        probe=("/health", "/metrics"), info="/info",
    ),
    ServerKind("openrlhf", {"score": OpenRlhfReward}),
    ServerKind("nim", {"score": NimReward}, probe=("/v1/health/ready",), lists_models=True),
    ServerKind(BATCH_KIND, {}, probe=("/v1/models",), chat=True, lists_models=True),  # OpenAI's Batch API, which only bulk runs use
)  # fmt: skip


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
    if name not in _KINDS:
        raise ConfigError(f"the kind of server {name!r} is not registered in this process; call register_kind in a module it imports")
    return _KINDS[name]


@lru_cache(maxsize=4096)
def codec_of(kind: str, operation: Operation, settings: RewardModel = _USUAL, local: int | None = None) -> ListCodec:
    """Return the codec of an operation for a kind of server, or for a function in this process that takes ``local`` items at once. Equal
    arguments return the same codec. Raises ``ConfigError``."""
    if local is not None:
        if operation is not SCORE:
            raise ConfigError(f"a function in this process answers chat completions and scores, but not {operation.name}")
        codec = LocalScore(operation, settings)
        codec.limits = MergeLimits(items=local)
        return codec
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
    local = endpoint.compute.max_batch_size or 1 if isinstance(endpoint.compute, LocalFunction) else None
    return codec_of(endpoint.kind, operation, endpoint.reward or _USUAL, local)


def bound(call: WireRequest, endpoint: Endpoint) -> WireRequest:
    """Return a request with the codec of the endpoint that it goes to. Most requests have the same codec at every endpoint."""
    codec: Codec
    if isinstance(call.codec, Operation):
        codec = codec_at(endpoint, call.codec)
    elif isinstance(call.codec, EmbeddingsCodec):
        route = kind_of(endpoint.kind).routes(EMBED.name).get("", EmbeddingList)
        codec = embeddings_codec(route.path, route.native, call.codec.partial)
    else:
        return call
    return replace(call, codec=codec)


def server_root(base_url: str) -> str:
    return base_url.removesuffix("/v1")
