"""The settings of a reward server, each written once: the command line and the environment are made of this model.

Knows texts and the environment; knows nothing of HTTP or of scoring.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, SecretStr, field_validator, model_validator

from qreward.batching.reward_buffer import Mode
from qreward.errors import ConfigError
from qreward.settings.base import Count, Number, Policy, Rate, Seconds, SomeSeconds, expand_variables, wrong

_TOKEN = "on the command line with --token-env NAME or --token-file PATH"  # noqa: S105 - no token
PREFIX = "QREWARD_SERVE_"
"""What the names of environment variables begin with, such as ``QREWARD_SERVE_PORT``."""

Port = Annotated[int, BeforeValidator(Number(whole=True, least=0, most=65535))]


class ServerConfig(Policy):
    """All that may be set of a reward server.

    Args:
        host: address to listen at. One that can be reached from other machines needs a token.
        port: port to listen at; 0 takes any that is free.
        token: what callers send as ``Authorization: Bearer``. ``${VAR}`` is read from the environment. Never shown.
        model: the name of what scores, as the server tells it.
        mode: shape of the answers to queries with metadata: singleton, batch, or auto, which is that of the query.
        max_batch_size: most completions in one call of the scorer.
        batch_wait_timeout_s: seconds for which a batch that is not full waits for more, although a slot is free.
        max_concurrent_batches: calls of the scorer under way at once.
        isolate_errors: when the scorer raises for a batch, call it again with the halves, so that only what fails alone has an error.
        timeout: seconds for one completion, queueing included; none is no limit.
        max_queue: most completions waiting; a request that finds no room is answered 429.
        rate: scoring requests a second, in the long run and at once; none is no limit.
        max_items: most completions in one request.
        max_text_chars: most characters of one text.
        max_body_bytes: most bytes of one request.
        max_pending_bytes: most bytes of all requests that are being read or wait for their answer; more are answered 429.
        body_timeout: seconds in which a request must have come whole.
        drain_timeout: seconds that are given to what is under way when the server is to end.

    Raises:
        ConfigError: a setting is unknown or wrong; the message says where, never the value of a secret.

    Example:
        >>> ServerConfig(port=8080, max_batch_size=32).max_queue
        4096
    """

    host: str = "127.0.0.1"
    port: Port = 5000
    token: SecretStr | None = None
    model: str = "reward"
    mode: Mode = "auto"
    max_batch_size: Count = 64
    batch_wait_timeout_s: SomeSeconds = 0.0
    max_concurrent_batches: Count = 1
    isolate_errors: bool = True
    timeout: Seconds | None = 600.0
    max_queue: Count = 4096
    rate: Rate | None = None
    max_items: Count = 1024
    max_text_chars: Count = 1_000_000
    max_body_bytes: Count = 32 * 1024 * 1024
    max_pending_bytes: Count = 256 * 1024 * 1024
    body_timeout: Seconds = 30.0
    drain_timeout: Seconds = 30.0

    @field_validator("token", mode="before")
    @classmethod
    def _expand(cls, value: object) -> object:
        return expand_variables(value)

    @field_validator("token")
    @classmethod
    def _sendable(cls, value: SecretStr | None) -> SecretStr | None:
        text = value.get_secret_value() if value is not None else "-"
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("must be a text of printable ASCII characters without blanks (a line break at its end?)")
        return value

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.token is None and not is_loopback(self.host):
            raise wrong((("host",), f"{self.host!r} can be reached from other machines; set a token ({_TOKEN}), or use host 127.0.0.1"))
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_items > self.max_queue:
            limits = f"max_items is {self.max_items} and max_queue is {self.max_queue}"
            raise ValueError(f"{limits}, but a request of max_items texts must fit into the queue; raise max_queue, or lower max_items")
        if self.max_body_bytes > self.max_pending_bytes:
            limits = f"max_body_bytes is {self.max_body_bytes} and max_pending_bytes is {self.max_pending_bytes}"
            raise ValueError(f"{limits}, but the largest request must fit; raise max_pending_bytes, or lower max_body_bytes")
        return self

    @classmethod
    def from_texts(cls, **given: str | None) -> Self:
        """A configuration of texts, of which None and empty ones are not given and ``none`` is off; the environment says the rest."""
        texts = {name.removeprefix(PREFIX).lower(): text for name, text in os.environ.items() if name.startswith(PREFIX)}
        texts |= {name: text for name, text in given.items() if text is not None}
        values: dict[str, Any] = {name: None if text.lower() == "none" else text for name, text in texts.items() if text}
        return cls(**values)

    @classmethod
    def from_env(cls) -> Self:
        """A configuration of the environment: ``QREWARD_SERVE_PORT`` is ``port``, and so on. Raises ``ConfigError``."""
        return cls.from_texts()


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def helps() -> dict[str, str]:
    """Setting -> what it is, out of the words above."""
    lines = (ServerConfig.__doc__ or "").partition("Args:")[2].partition("Raises:")[0].splitlines()
    found = (line.strip().partition(": ") for line in lines)
    return {name: text for name, _, text in found if name in ServerConfig.model_fields}


def token_of(variable: str | None, path: str | None) -> str | None:
    """The token in an environment variable or a file; None if neither is named.

    Raises:
        ConfigError: both are named, or it is not there; what it holds is never shown.
    """
    if variable and path:
        raise ConfigError("pass --token-env or --token-file, not both")
    if variable:
        if not os.environ.get(variable):
            raise ConfigError(f"the environment variable {variable}, named by --token-env, is not set (or empty)")
        return os.environ[variable]
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - one read
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token in {path!r}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    if not token:
        raise ConfigError(f"the file {path!r}, named by --token-file, is empty")
    return token


__all__ = ["PREFIX", "ServerConfig", "helps", "is_loopback", "token_of"]
