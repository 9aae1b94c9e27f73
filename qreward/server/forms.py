"""The accepted request bodies: ``/get_reward`` of OpenRLHF and of MolGenDocking's buffer, ``/classify`` and ``/score`` of vLLM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from qreward.batching.reward_buffer import Query, check_mode, with_prompts
from qreward.codecs.json import REFUSED
from qreward.errors import BadRequest
from qreward.server.config import ServerConfig
from qreward.server.http_errors import HTTPError, invalid

T = TypeVar("T")
_PLACE = re.compile(r"(?P<words>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_SIDES = (("text_1", "queries", "data_1"), ("text_2", "documents", "data_2", "items"))
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+|\.\.\.)\]")


class OpenRlhfBody(msgspec.Struct):
    """Body of ``POST /get_reward`` in the form that OpenRLHF sends."""

    query: str | list[str]
    prompts: str | list[str] | None = None
    labels: str | list[Any] | None = None


class BufferBody(msgspec.Struct):
    """Body of ``POST /get_reward`` in the form that MolGenDocking sends, with ``metadata``."""

    query: str | list[str]
    metadata: dict[str, Any] | list[dict[str, Any]]
    prompts: str | list[str] | None = None


class ClassifyBody(msgspec.Struct):
    """Body of ``POST /classify`` in the form that vLLM accepts: texts, or one conversation whose last message is scored."""

    input: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None


class ScoreBody(msgspec.Struct):
    """Body of ``POST /score`` in the form that vLLM accepts: two lists of texts, under any of vLLM's names for them."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    items: str | list[str] | None = None
    use_activation: bool | None = None
    activation: bool | None = None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    form: str
    query: Query
    activation: bool = False


def read_get_reward(body: bytes, config: ServerConfig) -> ScoreRequest:
    document = _decode(body, dict[str, Any])
    form: type[BufferBody | OpenRlhfBody] = BufferBody if "metadata" in document else OpenRlhfBody
    if form is BufferBody and "labels" in document:
        raise invalid(["labels"], "a body with metadata takes no labels; put the label into the metadata")
    try:
        fields = msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        raise _invalid_field(error) from None
    queries = _texts(fields.query, "query", config)
    single = isinstance(fields.query, str)
    prompts = None if fields.prompts is None else _texts(fields.prompts, "prompts", config)
    if isinstance(fields, BufferBody):
        metadata = [fields.metadata] if isinstance(fields.metadata, dict) else fields.metadata
        _same_length(queries, "query", metadata=metadata, prompts=prompts)
        query = Query(queries, with_prompts(metadata, prompts), single)
        try:
            check_mode(query, config.mode)
        except BadRequest as error:
            raise invalid(["query"], str(error)) from None
        return ScoreRequest("buffer", query)
    labels = [fields.labels] if isinstance(fields.labels, str) else fields.labels
    _same_length(queries, "query", prompts=prompts, labels=labels)
    metadata = with_prompts([{}] * len(queries), prompts)
    if labels is not None:
        metadata = [{**meta, "label": label} for meta, label in zip(metadata, labels, strict=True)]
    return ScoreRequest("openrlhf", Query(queries, metadata, single))


def read_classify(body: bytes, config: ServerConfig) -> ScoreRequest:
    fields = _decode(body, ClassifyBody)
    if (fields.input is None) == (fields.messages is None):
        raise invalid(["input"], "send either input (a text or a list of texts) or messages (one conversation)")
    activation = bool(fields.use_activation or fields.activation or fields.softmax)
    if fields.messages is not None:
        return ScoreRequest("classify", _conversation(fields.messages, config), activation)
    texts = _texts(fields.input, "input", config)
    return ScoreRequest("classify", Query(texts, [{} for _ in texts]), activation)


def read_score(body: bytes, config: ServerConfig) -> ScoreRequest:
    fields = _decode(body, ScoreBody)
    (left, prompts), (right, responses) = (_either(fields, names, config) for names in _SIDES)
    if len(prompts) == 1:
        prompts = prompts * len(responses)
    _same_length(prompts, left, **{right: responses})
    activation = bool(fields.use_activation or fields.activation)
    return ScoreRequest("score", Query(responses, [{"prompt": prompt} for prompt in prompts]), activation)


def _conversation(messages: list[dict[str, Any]], config: ServerConfig) -> Query:
    """Convert a conversation. The last message is the completion. The last user message before it is the prompt."""
    if not messages:
        raise invalid(["messages"], "is empty; the last message of a conversation is scored")
    texts = [_text_of(message, at) for at, message in enumerate(messages)]
    _texts(texts, "messages", config)
    prompts = [text for text, message in zip(texts[:-1], messages[:-1], strict=True) if message.get("role") == "user"]
    return Query([texts[-1]], [{"prompt": prompts[-1] if prompts else "", "messages": messages[:-1]}], single=True)


def _text_of(message: dict[str, Any], at: int) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise invalid(["messages", at, "content"], "must be a text, or a list of parts that are texts")
    return "".join(texts)  # type: ignore[arg-type] # checked above


def _texts(value: str | list[str] | None, name: str, config: ServerConfig) -> list[str]:
    """Return one or several texts as a list. Raises ``HTTPError`` if a text is too long or there are too many texts."""
    assert value is not None
    texts = [value] if isinstance(value, str) else value
    if len(texts) > config.max_items:
        raise invalid([name], f"holds {len(texts)} texts, but a request may hold at most {config.max_items}; send several requests")
    for at, text in enumerate(texts):
        if len(text) > config.max_text_chars:
            place: list[str | int] = [name] if isinstance(value, str) else [name, at]
            raise invalid(place, f"has {len(text)} characters, but a text may have at most {config.max_text_chars}")
    return texts


def _either(fields: ScoreBody, names: Sequence[str], config: ServerConfig) -> tuple[str, list[str]]:
    given = [name for name in names if getattr(fields, name) is not None]
    if len(given) != 1:
        raise invalid([names[0]], f"send exactly one of {', '.join(names)}, not {len(given)}")
    return given[0], _texts(getattr(fields, given[0]), given[0], config)


def _same_length(expected: Sequence[Any], name: str, **others: Sequence[Any] | None) -> None:
    for other, values in others.items():
        if values is not None and len(values) != len(expected):
            raise invalid([other], f"holds {len(values)}, but {name} holds {len(expected)}; there must be one for each")


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid_field(error) from None
    except REFUSED as error:
        message = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise HTTPError(400, "bad_json", f"the body is not JSON: {message}") from None


def _invalid_field(error: Exception) -> HTTPError:
    """Return the error for a message of msgspec, such as ``Expected `str`, got `int` - at `$.query[3]```."""
    match = _PLACE.fullmatch(str(error))
    assert match is not None  # the pattern matches any text
    where: list[str | int] = [name or (int(at) if at.isdigit() else at) for name, at in _STEP.findall(match["path"] or "")]
    return invalid(where, match["words"])
