"""The settings of a reward server. The command line options and environment variables are derived from ``ServerConfig``."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from qreward.batching.reward_buffer import Mode
from qreward.errors import ConfigError
from qreward.settings.base import EXPANDED, NOT_BOOL, Accepting, Count, NotNegative, Policy, Positive, Seconds, default, with_faults, wrong

PREFIX = "QREWARD_SERVE_"
"""Prefix of the environment variables, such as ``QREWARD_SERVE_PORT``."""
_OF_KUBERNETES = re.compile(r"SERVICE_|PORT_|PORT=(?:tcp|udp|sctp)://")
"""Variables that Kubernetes sets in all pods beside a service with the name ``qreward-serve``."""
_TOKEN = "on the command line with --token-env NAME or --token-file PATH"  # noqa: S105 - no token

Port = Annotated[int, Field(ge=0, le=65535), NOT_BOOL]


def _sendable(value: SecretStr | None) -> SecretStr | None:
    text = value.get_secret_value() if value is not None else "-"
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be a text of printable ASCII characters without blanks (a line break at its end?)")
    return value


Token = Annotated[Accepting[SecretStr | None, SecretStr | str | None], EXPANDED, AfterValidator(_sendable)]


class ServerConfig(Policy):
    """Settings of a reward server.

    Args:
        host: address to listen on. An address that other machines can reach requires a token.
        port: port to listen on; 0 for any free port.
        token: bearer token that callers must send. ``${VAR}`` is read from the environment. The token is never shown.
        model: model name that the server reports.
        mode: shape of responses to queries with metadata: singleton, batch, or auto for the shape of the query.
        max_batch_size: maximum number of completions in one call of the scorer.
        batch_wait_timeout_s: seconds for which a batch that is not full waits for more completions, although the scorer may be called.
        max_concurrent_batches: maximum number of concurrent calls of the scorer.
        isolate_errors: whether a batch for which the scorer raises is split in halves, until only the completions at fault fail.
        timeout: maximum number of seconds for one completion, including its time in the queue; none for no limit.
        max_queue: maximum number of waiting completions; a request that does not fit is rejected with 429.
        rate: maximum number of scoring requests per second, which is also the largest burst (at least 1); none for no limit.
        max_items: maximum number of completions in one request.
        max_text_chars: maximum number of characters in one text.
        max_body_bytes: maximum number of bytes in one request.
        max_pending_bytes: maximum bytes of all requests that are not answered yet; a request that does not fit is rejected with 429.
        body_timeout: seconds in which a request body must arrive completely.
        drain_timeout: seconds that running requests have to finish when the server shuts down.

    Raises:
        ConfigError: a setting is unknown or invalid. The message names the setting, and never shows the value of a secret.

    Example:
        >>> ServerConfig(port=8080, max_batch_size=32).max_queue
        4096
    """

    host: str = "127.0.0.1"
    port: Port = 5000
    token: Token = default(None)
    model: str = "reward"
    mode: Mode = "auto"
    max_batch_size: Count = 64
    batch_wait_timeout_s: NotNegative = 0.0
    max_concurrent_batches: Count = 1
    isolate_errors: bool = True
    timeout: Seconds | None = 600.0
    max_queue: Count = 4096
    rate: Positive | None = None
    max_items: Count = 1024
    max_text_chars: Count = 1_000_000
    max_body_bytes: Count = 32 * 1024 * 1024
    max_pending_bytes: Count = 256 * 1024 * 1024
    body_timeout: Seconds = 30.0
    drain_timeout: Seconds = 30.0

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
    def from_env(cls, **given: str | None) -> Self:
        """Create the settings from environment variables, such as ``QREWARD_SERVE_PORT`` for ``port``, over which ``given`` texts go.

        An empty text stands for the default, and ``none`` for None.
        """
        set_here = {name.removeprefix(PREFIX): text for name, text in os.environ.items() if name.startswith(PREFIX)}
        texts = {name.lower(): text for name, text in set_here.items() if not _OF_KUBERNETES.match(f"{name}={text}")}
        texts |= {name: text for name, text in given.items() if text is not None}
        values: dict[str, Any] = {name: None if text.lower() == "none" else text for name, text in texts.items() if text}
        named = {name.lower(): f"{PREFIX}{name}: " for name in set_here if given.get(name.lower()) is None}
        try:
            return cls.from_content(values)
        except ConfigError as error:
            raise with_faults(error.faults, lambda path: named.get(str(path[0]), "") if path else "") from None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def helps() -> dict[str, str]:
    """Return a mapping from each setting to its description in the docstring of ``ServerConfig``."""
    lines = (ServerConfig.__doc__ or "").partition("Args:")[2].partition("Raises:")[0].splitlines()
    found = (line.strip().partition(": ") for line in lines)
    return {name: text for name, _, text in found if name in ServerConfig.model_fields}


def token_of(variable: str | None, path: str | None) -> str | None:
    """Return the token in an environment variable or a file; None if neither is named. Errors hide the path, which may be the token."""
    if variable and path:
        raise ConfigError("pass --token-env or --token-file, not both")
    if variable:
        if not os.environ.get(variable):
            raise ConfigError(f"the environment variable {variable}, named by --token-env, is not set (or empty)")
        return os.environ[variable]
    if path is None:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        raise ConfigError(f"the file named by --token-file cannot be read: {reason}; a token itself is set in {PREFIX}TOKEN") from None
    if not token:
        raise ConfigError("the file named by --token-file is empty")
    return token
