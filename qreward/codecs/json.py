"""JSON both ways: strict about what we send, lenient about what comes back.

msgspec does the work; the standard library takes what msgspec refuses. Knows nothing of chats or embeddings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

import msgspec

from qreward.codecs.base import Malformed
from qreward.errors import BadRequest
from qreward.results import Usage

_PLAIN = frozenset({str, int, bool, NoneType})
_BYTES = (bytes, bytearray, memoryview)


REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the strict decoder raises for a body that is to be read leniently."""


def write(model: str, name: str, inputs: Any, params: Mapping[str, Any], *, all_text: bool) -> bytes:
    """A request as JSON. Raises ``BadRequest`` naming what JSON cannot hold.

    Args:
        model: the server's name of it.
        name: what the dialect calls the inputs.
        inputs: messages, or what is to be embedded.
        params: everything else of the body.
        all_text: the inputs are known to hold nothing that has to be looked for, which is what keeps ordinary calls cheap.

    Example:
        >>> write("judge-7b", "input", ["a"], {"dimensions": 8}, all_text=True)
        b'{"model":"judge-7b","input":["a"],"dimensions":8}'
    """
    try:
        for key, value in params.items():
            check(value, key)
        if not all_text:
            check(inputs, name)
        return _ENCODER.encode({"model": model, name: inputs, **params})
    except (TypeError, ValueError):
        return _write_slowly({"model": model, name: inputs, **params})


def check(value: object, path: str) -> None:
    """Raise ``BadRequest`` if there is something in ``value`` that JSON cannot hold, saying where (``messages[1].content``).

    msgspec would not notice: it writes NaN as null and bytes as base64.
    """
    if type(value) in _PLAIN:
        return
    try:
        _check(value, path)
    except RecursionError:
        raise BadRequest(f"{path or 'the request'} refers to itself, or is nested too deeply for JSON; flatten it") from None


def read_leniently(body: bytes) -> Any:
    """What the body says, with a byte order mark, NaN, bare control characters or broken UTF-8 tolerated. Raises ``Malformed``."""
    if not body.strip():
        raise Malformed("the answer is empty")
    try:
        return json.loads(body.decode("utf-8-sig", "replace"), strict=False)
    except (ValueError, RecursionError):
        raise Malformed("the answer is not JSON, or was cut off") from None


def read_object(body: bytes) -> dict[str, Any]:
    """As :func:`read_leniently`, for what must be a JSON object."""
    document = read_leniently(body)
    if not isinstance(document, dict):
        raise Malformed(f"the answer is a JSON {type(document).__name__} instead of an object")
    return document


def usage_of(raw: object) -> Usage | None:
    """Usage from an odd answer: counts may be floats or missing."""
    if not isinstance(raw, dict):
        return None
    return Usage(_count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens")), _count(raw.get("total_tokens")))


def dumped(value: Any) -> Any:
    """A pydantic object (an openai message, say) as plain data; anything else as it is."""
    return value.model_dump(mode="json", exclude_none=True) if callable(getattr(value, "model_dump", None)) else value


def _check(value: object, path: str) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"{path} is {value}, which JSON cannot represent; send a finite number or leave it out")
    elif isinstance(value, dict):
        _check_members(value, path)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]")
    elif isinstance(value, _BYTES):
        raise BadRequest(f"{path} holds {kind.__name__}, not text; decode it, or send base64.b64encode(...).decode()")
    elif not isinstance(value, str | int):
        _check(_simplified(value, path), path)


def _check_members(value: dict[Any, object], path: str) -> None:
    for key, inner in value.items():
        if not isinstance(key, str | int | float):
            raise BadRequest(f"{path} has a key that is a {type(key).__name__}; keys must be texts")
        _check(inner, f"{path}.{key}" if path else str(key))


def _count(raw: object) -> int | None:
    try:
        return int(raw) if isinstance(raw, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def _write_slowly(payload: dict[str, Any]) -> bytes:
    """For lone surrogates, which the standard library can escape; and to say what is wrong where nothing can be done."""
    try:
        check(payload, "")
        return json.dumps(msgspec.to_builtins(payload, enc_hook=_plain), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the request cannot be written as JSON ({error}); use texts, numbers, lists and dicts") from None


def _simplified(value: object, path: str) -> object:
    try:
        return msgspec.to_builtins(value, enc_hook=_plain, builtin_types=_BYTES)
    except (TypeError, ValueError):
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise BadRequest(f"{path} is a {kind}, which JSON cannot hold; convert it to text, numbers, lists or dicts") from None


def _plain(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic objects, mappings, and numpy's subclasses of float and str."""
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
