"""The connection settings of an endpoint, which are computed once: headers, proxy, TLS, and the secrets in them, which no text may show."""

from __future__ import annotations

import base64
import contextlib
import html
import ipaddress
import json
import re
import ssl
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr

from qreward.errors import BadRequest, ConfigError
from qreward.settings.base import check_header
from qreward.settings.policies import ApiKey, Endpoint

_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})


def request_headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers of each request to the endpoint. The endpoint's ``headers`` override the defaults. Raises ``ConfigError``."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # on a loopback or data-centre network, decompression takes longer than the larger transfer
        "User-Agent": "qreward",
    }
    if isinstance(endpoint.api_key, SecretStr):  # otherwise ``KeyedTransport`` adds it
        headers["Authorization"] = f"Bearer {endpoint.api_key.get_secret_value()}"
    own = {name: value.get_secret_value() for name, value in endpoint.headers.items()}
    if bad := _framing(own):
        raise ConfigError(f"endpoint {endpoint.name!r}: the header {bad!r} is set by the HTTP backend; remove it from headers")
    given = {name.lower() for name in own}
    return {name: value for name, value in headers.items() if name.lower() not in given} | own


def check_call_headers(headers: Mapping[str, str], model: str) -> None:
    """Raise ``BadRequest`` if the extra headers of a call cannot be sent. The message never shows the value of a header."""
    if bad := _framing(headers):
        raise BadRequest(f"the header {bad!r} is set by the HTTP backend; remove it from extra_headers", model=model)
    for name, value in headers.items():
        try:
            check_header(name, value)
        except ValueError as error:
            raise BadRequest(f"extra_headers: {error}", model=model) from None


def configured_proxy(endpoint: Endpoint) -> str:
    """Return the proxy of the endpoint. If the endpoint does not set one, return the proxy of the environment. ``""`` means no proxy."""
    if endpoint.proxy is not None:
        return endpoint.proxy.get_secret_value()
    parts = urlsplit(endpoint.base_url)
    if urllib.request.proxy_bypass(parts.netloc) or _in_no_proxy(parts.hostname or ""):
        return ""
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all", "")


def _in_no_proxy(host: str) -> bool:
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for entry in urllib.request.getproxies_environment().get("no", "").split(","):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip().strip("[]"), strict=False):
                    return True
    return False


def proxy_of(endpoint: Endpoint) -> str | None:
    """Return the URL of the proxy to use, or None. Raises ``ConfigError`` for a proxy that cannot be used."""
    proxy = configured_proxy(endpoint)
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        parts = urlsplit(proxy)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        advice = "set proxy='http://host:port' ('' for none); for SOCKS give an http_client of your own"
        raise ConfigError(f"endpoint {endpoint.name!r}: its proxy is not an http:// or https:// URL; {advice}")
    return proxy


def tls_of(endpoint: Endpoint) -> ssl.SSLContext | bool:
    """Return True for the system's CAs, False for no verification, or a context with the CA bundle. Raises ``ConfigError``."""
    if isinstance(endpoint.verify, bool):
        return endpoint.verify
    bundle = Path(endpoint.verify)
    try:
        context = ssl.create_default_context(cafile=None if bundle.is_dir() else bundle, capath=bundle if bundle.is_dir() else None)
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            f"endpoint {endpoint.name!r}: verify names a CA bundle that cannot be read ({error.strerror}): {endpoint.verify}"
        ) from None
    context.set_alpn_protocols(("http/1.1",))
    return context


def _framing(headers: Mapping[str, str]) -> str | None:
    return next((name for name in headers if isinstance(name, str) and name.lower() in _FRAMING), None)


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
    return Secrets([*_parts([*keys, *headers]), *_credentials(configured_proxy(endpoint))])


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
