"""Redaction of secrets: every text that becomes part of an error passes through ``Secrets.hide``."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, unquote, urlsplit

from qreward.settings.policies import ApiKey, Endpoint
from qreward.transport import connection_settings

_LOOKS_SECRET = re.compile(r"(?i:\bbearer\s+)[\w.~+/=:-]{6,}|\bsk-[\w*-]{4,}|(?<=//)[^/\s@]+(?=@)")
_SHORT = 8  # characters; a shorter secret is hidden only as a whole word, because a key "a" must not hide every letter a


class Secrets:
    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = frozenset(value for value in values if value)
        spellings: set[str] = set()
        for each in self._values:
            spellings |= {each, json.dumps(each)[1:-1], quote(each), quote(each, safe=""), html.escape(each), repr(each)[1:-1]}
        patterns = [_LOOKS_SECRET.pattern]
        for spelling in sorted(spellings, key=lambda spelling: (len(spelling), spelling)):  # the longest ones come first
            literal = re.escape(spelling)
            patterns.insert(0, literal if len(spelling) >= _SHORT else rf"(?<![A-Za-z0-9]){literal}(?![A-Za-z0-9])")
        self._pattern = re.compile("|".join(patterns))

    def hide(self, text: str) -> str:
        """Return the text with ``***`` in place of each secret and of everything that looks like a secret."""
        return self._pattern.sub("***", text)

    def and_headers(self, headers: Mapping[str, str] | None) -> Secrets:
        """Return these secrets together with the values of the extra headers of a call."""
        return Secrets([*self._values, *_parts(headers.values())]) if headers else self


def secrets_of(endpoint: Endpoint) -> Secrets:
    key = endpoint.api_key
    keys = list(key.known) if isinstance(key, ApiKey) else [] if key is None else [key.get_secret_value()]
    headers = [value.get_secret_value() for value in endpoint.headers.values()]
    return Secrets([*_parts([*keys, *headers]), *_credentials(connection_settings.configured_proxy(endpoint))])


def _credentials(proxy: str) -> list[str]:
    try:
        parts = urlsplit(proxy)
    except ValueError:
        return [proxy]
    if parts.password is None and parts.username is None:
        return []
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    pair = f"{user}:{password}"
    return [proxy, parts.netloc.rpartition("@")[0], pair, password or user, base64.b64encode(pair.encode()).decode()]


def _parts(values: Iterable[object]) -> list[str]:
    texts = [str(value) for value in values]  # and the part after a scheme, because a server may quote only ``abc`` of ``Token abc``
    parts = [(scheme, rest.strip()) for scheme, _, rest in (text.partition(" ") for text in texts) if rest]
    pairs = [_decoded(rest) for scheme, rest in parts if scheme.lower() == "basic"]
    return [*texts, *(rest for _, rest in parts), *pairs, *(pair.partition(":")[2] for pair in pairs)]


def _decoded(credentials: str) -> str:
    """Return the user and the password of a ``Basic`` header, which a server may quote; "" if they cannot be decoded."""
    try:
        return base64.b64decode(credentials).decode()
    except ValueError:
        return ""
