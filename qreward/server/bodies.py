"""The bodies of the server: requests in the forms of OpenRLHF, MolGenDocking's buffer and vLLM, the responses, and the errors."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from qreward.batching.reward_buffer import InvalidScores, Mode, Query, ScoreResult, answer_of, check_mode, summary, with_prompts
from qreward.codecs.error_body import INVALID_SCORES
from qreward.codecs.json import REFUSED, finite
from qreward.errors import BadRequest, ClientClosed, RequestTimeout
from qreward.server.config import ServerConfig

T = TypeVar("T")
_PLACE = re.compile(r"(?P<words>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_SIDES = (("text_1", "queries", "data_1"), ("text_2", "documents", "data_2", "items"))
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+|\.\.\.)\]")


class GetRewardBody(msgspec.Struct):
    """Body of ``POST /get_reward`` in the form that OpenRLHF sends, or, with ``metadata``, that MolGenDocking sends."""

    query: str | list[str]
    prompts: str | list[str] | None = None
    labels: str | list[Any] | UnsetType | None = UNSET
    metadata: dict[str, Any] | list[dict[str, Any]] | UnsetType = UNSET


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
    fields = _decode(body, GetRewardBody)
    queries = _texts(fields.query, "query", config)
    single = isinstance(fields.query, str)
    prompts = None if fields.prompts is None else _texts(fields.prompts, "prompts", config)
    if fields.metadata is not UNSET:
        if fields.labels is not UNSET:
            raise invalid(["labels"], "a body with metadata takes no labels; put the label into the metadata")
        metadata = [fields.metadata] if isinstance(fields.metadata, dict) else fields.metadata
        _same_length(queries, "query", metadata=metadata, prompts=prompts)
        query = Query(queries, with_prompts(metadata, prompts), single)
        try:
            check_mode(query, config.mode)
        except BadRequest as error:
            raise invalid(["query"], str(error)) from None
        return ScoreRequest("buffer", query)
    labels = None if fields.labels is UNSET else [fields.labels] if isinstance(fields.labels, str) else fields.labels
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
    if fields.messages is None:
        texts = _texts(fields.input, "input", config)
        return ScoreRequest("classify", Query(texts, [{} for _ in texts]), activation)
    if not (messages := fields.messages):
        raise invalid(["messages"], "is empty; the last message of a conversation is scored")
    *earlier, completion = _texts([_text_of(message, at) for at, message in enumerate(messages)], "messages", config)
    prompts = [text for text, message in zip(earlier, messages[:-1], strict=True) if message.get("role") == "user"]
    metadata = {"prompt": prompts[-1] if prompts else "", "messages": messages[:-1]}  # the last user message is the prompt
    return ScoreRequest("classify", Query([completion], [metadata], single=True), activation)


def read_score(body: bytes, config: ServerConfig) -> ScoreRequest:
    fields = _decode(body, ScoreBody)
    (left, prompts), (right, responses) = (_either(fields, names, config) for names in _SIDES)
    if len(prompts) == 1:
        prompts = prompts * len(responses)
    _same_length(prompts, left, **{right: responses})
    activation = bool(fields.use_activation or fields.activation)
    return ScoreRequest("score", Query(responses, [{"prompt": prompt} for prompt in prompts]), activation)


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
    except msgspec.ValidationError as error:  # such as: Expected `str`, got `int` - at `$.query[3]`
        match = _PLACE.fullmatch(str(error))
        assert match is not None  # the pattern matches any text
        where: list[str | int] = [name or (int(at) if at.isdigit() else at) for name, at in _STEP.findall(match["path"] or "")]
        raise invalid(where, match["words"]) from None
    except REFUSED as error:
        message = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        with suppress(ValueError, RecursionError):
            json.loads(body.decode())
            message = "NaN, infinities and half surrogate pairs such as \\ud83d are not allowed; send null, or repair the text"
        raise HTTPError(400, "bad_json", f"the body is not JSON: {message}") from None


# responses


def answer(request: ScoreRequest, scored: Sequence[ScoreResult], model: str, mode: Mode) -> bytes:
    """Return the response body. Raises ``HTTPError`` if no completion has a reward, or if the form cannot express missing rewards."""
    if request.form == "buffer":
        results = []
        for one in scored:
            feedback = None if one.feedback is None else _raw(one.feedback)
            results.append(ScoreResult(one.reward, one.error, _raw(one.meta), feedback))
        return write(dict(answer_of(request.query, results, mode)))
    if any(isinstance(one.cause, InvalidScores) for one in scored):  # clients must not send parts of this list; see InvalidScores
        raise _error(500, INVALID_SCORES, scored)
    if scored and all(one.reward is None for one in scored):
        raise _no_rewards(scored)
    if request.form == "openrlhf":
        if any(one.reward is None for one in scored):
            raise _error(424, "scorer_failed", scored)
        logs, rewards = _logs(scored), [one.reward for one in scored]
        return write({"rewards": rewards, "scores": logs.get("score", rewards), "extra_logs": logs})
    data: list[dict[str, Any]] = []
    for at, one in enumerate(scored):
        reward = one.reward
        if request.activation and reward is not None:  # vLLM applies a sigmoid to the logit of a model with one class
            small = math.exp(-abs(reward))
            reward = (1 if reward >= 0 else small) / (1 + small)
        if request.form == "classify":
            label = None if reward is None else "LABEL_0"  # vLLM's name for the class of a model with only one class
            row: dict[str, Any] = {"index": at, "label": label, "probs": [reward], "num_classes": 1}
        else:
            row = {"index": at, "object": "score", "score": reward}
        data.append(row if one.error is None else {**row, "error": one.error})
    head = {"id": f"{request.form}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}
    return write({**head, "data": data})


def _error(status: int, kind: str, scored: Sequence[ScoreResult]) -> HTTPError:
    return HTTPError(status, kind, summary(scored) or "", errors=[one.error for one in scored])


def _no_rewards(scored: Sequence[ScoreResult]) -> HTTPError:
    causes = {type(one.cause) for one in scored}
    if causes == {ClientClosed}:
        return draining()
    if causes == {RequestTimeout}:
        return _error(504, "timeout", scored)
    return _error(422, "unscorable", scored) if all(one.own for one in scored) else _error(500, "scorer_failed", scored)


def _logs(scored: Sequence[ScoreResult]) -> dict[str, list[float]]:
    """Return the metadata of the completions by name. Only names that have a finite number for every completion are included."""
    logs: dict[str, list[float]] = {}
    for name in scored[0].meta if scored else ():
        values: list[Any] = [one.meta.get(name) for one in scored]
        if all(isinstance(value, int | float) and finite(value) is not None for value in values):
            logs[str(name)] = list(map(float, values))
    return logs


def write(document: Any) -> bytes:
    """Encode a document as JSON. NaN becomes null."""
    return msgspec.json.encode(document, enc_hook=_plain)


def _raw(value: Any) -> Any:
    """Return a value as JSON. If this fails, its parts or the whole value become text."""
    for attempt in (lambda: value, lambda: {str(key): str(each) for key, each in value.items()}, lambda: str(value)):
        try:
            return msgspec.Raw(write(attempt()))
        except Exception:  # noqa: S112 - a scorer may return objects whose methods raise
            continue
    return {"unreadable": type(value).__name__} if isinstance(value, Mapping) else None


def _plain(value: Any) -> Any:
    """Convert types that msgspec does not know. Arrays, tensors and their numbers become Python values. All other values become text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# errors


class HTTPError(Exception):
    """An error, and the response to it. The body has the format of OpenAI and vLLM."""

    content_type = "application/json"

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers or {}
        self.body = write({"error": {"message": message, "type": kind, "code": status, **more}})


def busy(kind: str, message: str, seconds: float) -> HTTPError:
    """Return a 429 error with the retry time in two headers: ``Retry-After`` in seconds and ``retry-after-ms``. Both are rounded up."""
    seconds = min(max(seconds, 0.001), 60.0)  # scoring may become faster, so callers should not wait longer
    headers = {"retry-after": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(seconds * 1000))}
    return HTTPError(429, kind, f"{message}; retry in {seconds:.3g} s", headers)


def draining() -> HTTPError:
    message = "the server is shutting down and takes no new requests; send them to another server"
    return HTTPError(503, "draining", message, {"connection": "close"})


def too_large(most: int) -> HTTPError:
    return HTTPError(413, "body_too_large", f"the request is longer than {most} bytes; send fewer completions at once")


def invalid(where: Sequence[str | int], message: str) -> HTTPError:
    """Return a 422 error with the place in the body, such as ``["query", 3]``."""
    place = ".".join(map(str, where))
    return HTTPError(422, "invalid_request", f"{place}: {message}" if place else message, where=list(where))
