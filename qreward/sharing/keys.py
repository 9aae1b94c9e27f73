"""What stands for an address and its key, where others may see it: the key itself cannot be found from it."""

from __future__ import annotations

from hashlib import blake2b

from qreward.policies import Endpoint

SECRET_HEADERS = ("authorization", "api-key", "x-api-key")
"""Headers that hold the key where there is no ``api_key``."""


def key_of(endpoint: Endpoint) -> str:
    """A name for who pays at an address: a hash of the address, keyed by its key (BLAKE2b's own keyed mode, RFC 7693).

    Example:
        >>> key_of(Endpoint("http://a/v1", api_key="k")) == key_of(Endpoint("http://a/v1/", api_key="k", name="other"))
        True
        >>> key_of(Endpoint("http://a/v1", api_key="k")) == key_of(Endpoint("http://a/v1"))
        False
    """
    secret = blake2b(_secret(endpoint).encode(), digest_size=32, person=b"qreward-key").digest()
    return blake2b(endpoint.base_url.encode(), digest_size=16, key=secret, person=b"qreward-share").hexdigest()


def _secret(endpoint: Endpoint) -> str:
    if endpoint.api_key is not None:
        return endpoint.api_key.get_secret_value()
    headers = {name.lower(): value for name, value in endpoint.headers.items()}
    return next((headers[name].get_secret_value() for name in SECRET_HEADERS if name in headers), "")
