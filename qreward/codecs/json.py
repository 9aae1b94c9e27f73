"""JSON encoding and decoding: strict for requests, lenient for responses."""

from __future__ import annotations

import base64
import importlib
import json
import math
import sys
from array import array
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any

import msgspec

from qreward.codecs.base import Malformed
from qreward.errors import BadRequest
from qreward.records import MOST_TOKENS, PromptTokensDetails, Usage

PLAIN = frozenset({str, int, bool, NoneType})
"""Types whose values JSON can always represent."""
_BYTES = (bytes, bytearray, memoryview)


_CHAT_NAMES = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details")
_RESPONSES_NAMES = ("input_tokens", "output_tokens", "total_tokens", "input_tokens_details")

REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec's decoder. A body for which the decoder raises one of these exceptions is decoded leniently."""


def write(model: str, name: str, inputs: Any, params: Mapping[str, Any], *, all_text: bool) -> bytes:
    """Return a request as JSON. Raises ``BadRequest`` with the position of a value that JSON cannot represent."""
    for key, value in params.items():
        if type(value) not in PLAIN:
            check(value, key)
    if not all_text:
        check(inputs, name)
    return dumps({"model": model, name: inputs, **params})


def dumps(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError):
        check(value, "")
    try:  # the standard library escapes lone surrogates
        return json.dumps(msgspec.to_builtins(value, enc_hook=_plain), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the request cannot be written as JSON ({error}); use texts, numbers, lists and dicts") from None


def check(value: object, path: str) -> None:
    """Raise ``BadRequest`` if JSON cannot represent a value. The message has the position of the fault, such as ``messages[1].content``."""
    if type(value) in PLAIN:
        return
    try:
        _check(value, path)
    except RecursionError:
        raise BadRequest(f"{path or 'the request'} refers to itself, or is nested too deeply for JSON; flatten it") from None


def read(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except REFUSED:
        return read_leniently(body)


def read_leniently(body: bytes) -> Any:
    """Decode a body that may contain a byte order mark, NaN, control characters in strings, or invalid UTF-8. Raises ``Malformed``."""
    if not body.strip():
        raise Malformed("the answer is empty")
    try:
        return json.loads(body.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        raise Malformed("the answer is not JSON, or was cut off") from None


def read_object(body: bytes) -> dict[str, Any]:
    document = read(body)
    if not isinstance(document, dict):
        raise Malformed(f"the answer is a JSON {type(document).__name__} instead of an object")
    return document


def usage_of(raw: object) -> Usage | None:
    if not isinstance(raw, dict):
        return None
    responses_api = "input_tokens" in raw and "prompt_tokens" not in raw
    names = _RESPONSES_NAMES if responses_api else _CHAT_NAMES
    details = raw.get(names[3])
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    prompt, completion, total = (_count(raw.get(name)) for name in names[:3])
    if responses_api and total is None and prompt is not None and completion is not None:
        total = prompt + completion
    return Usage(prompt, completion, total, None if cached is None else PromptTokensDetails(cached))


def _count(value: object) -> int | None:
    try:
        count = int(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1
    except (ValueError, OverflowError):
        return None
    return count if 0 <= count <= MOST_TOKENS else None


def finite(raw: Any) -> float | None:
    """Return a number, or the number that a text holds, as a float; None if there is none, or if it is infinite or NaN."""
    try:
        value = float(raw)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def dumped(value: Any) -> Any:
    """Return a pydantic object, such as an openai message, as plain data. Other values are returned unchanged."""
    return value.model_dump(mode="json", exclude_none=True) if callable(getattr(value, "model_dump", None)) else value


def base64_floats(text: str) -> list[float]:
    """Decode base64 of little-endian float32, the encoding of vectors in the OpenAI API. Raises ``ValueError``."""
    floats = array("f")
    floats.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tolist()


@cache
def openai_type(path: str) -> Any:
    """Return a class of ``openai.types``, such as ``chat.ChatCompletion``. The import takes most of a second, and is often not needed."""
    module, _, name = f"openai.types.{path}".rpartition(".")
    return getattr(importlib.import_module(module), name)


def build(path: str, body: bytes, completed: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    kind = openai_type(path)
    try:
        return kind.model_validate_json(body)
    except ValueError:
        return kind.construct(**completed(read_object(body)))


def _check(value: object, path: str) -> None:
    kind = type(value)
    if kind in PLAIN or (type(value) is float and math.isfinite(value)):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{path} is {value}, which JSON cannot represent; send a finite number or leave it out")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str | int | float):
                raise BadRequest(f"{path} has a key that is a {type(key).__name__}; keys must be texts")
            _check(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]")
    elif isinstance(value, _BYTES):
        raise BadRequest(f"{path} holds {kind.__name__}, not text; decode it, or send base64.b64encode(...).decode()")
    elif not isinstance(value, str | int | float):
        _check(_simplified(value, path), path)


def _simplified(value: object, path: str) -> object:
    try:
        return msgspec.to_builtins(value, enc_hook=_plain, builtin_types=_BYTES)
    except (TypeError, ValueError):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise BadRequest(f"{path} is a {kind}, which JSON cannot hold; convert it to text, numbers, lists or dicts") from None


def _plain(value: Any) -> Any:
    """Convert types that msgspec does not support: pydantic objects, mappings, and numpy's subclasses of float and str."""
    plain = dumped(value)
    if plain is not value:
        return plain
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
