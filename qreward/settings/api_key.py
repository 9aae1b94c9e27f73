"""``ApiKey``: a key that expires, and is obtained from a function or a command."""

from __future__ import annotations

import shlex
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

from pydantic import GetCoreSchemaHandler, SecretStr
from pydantic_core import CoreSchema, core_schema

from qreward.spelling import did_you_mean

KEPT = 3
"""Number of keys that are still hidden in errors after a newer one was obtained."""

Source = Callable[[], str | Awaitable[str]]


class ApiKey:
    """An API key that is obtained when it is needed, again before it expires, and again after the server has refused it (401).

    Endpoints with the same function or command share one key, in all event loops and threads. While a new key is obtained, requests wait
    for it. A function that is not ``async`` runs in a thread.

    Args:
        source: function that returns the key, or a command that prints it: one string, or a list of its words. No shell is used.
        seconds: lifetime of a key in seconds. By default, a key is used until the server refuses it.

    Example:
        >>> from qreward import Endpoint
        >>> Endpoint("http://judge/v1", api_key=ApiKey("gcloud auth print-access-token", seconds=3000)).api_key
        ApiKey('gcloud ...', seconds=3000)
    """

    def __init__(self, source: Source | str | Sequence[str], seconds: float | None = None) -> None:
        if not callable(source):
            words = shlex.split(source) if isinstance(source, str) else list(source)
            if not words or not all(isinstance(word, str) for word in words):
                raise ValueError("must be a function that returns the key, or a command that prints it")
            self.source: Source | tuple[str, ...] = tuple(words)
            self._shown = f"{words[0]} ..." if len(words) > 1 else words[0]
        else:
            self.source = source
            self._shown = getattr(source, "__qualname__", type(source).__name__)
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise ValueError("seconds must be a number greater than 0")
        self.seconds = seconds
        self.state = _STATES.setdefault(self.source, ObtainedKeys())

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(self.state.keys)

    def get_secret_value(self) -> str:
        """Return the latest key, as pydantic's ``SecretStr`` does; ``""`` before a key was obtained."""
        return self.state.keys[-1] if self.state.keys else ""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema())

    def __reduce__(self) -> tuple[type[ApiKey], tuple[Any, float | None]]:
        return ApiKey, (self.source, self.seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ApiKey) and (self.source, self.seconds) == (other.source, other.seconds)

    def __hash__(self) -> int:
        return hash((self.source, self.seconds))

    def __repr__(self) -> str:
        return f"ApiKey({self._shown!r}{'' if self.seconds is None else f', seconds={self.seconds:g}'})"


class ObtainedKeys:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keys: deque[str] = deque(maxlen=KEPT)
        self.count = 0  # how many keys were obtained
        self.until = 0.0  # when the latest key must be replaced
        self.pending: Future[None] | None = None  # ends when the key that is being obtained is known


_STATES: WeakValueDictionary[Hashable, ObtainedKeys] = WeakValueDictionary()


def api_key_of(value: Any) -> Any:
    """Convert a function, or a mapping with ``command`` as in a configuration file, to an :class:`ApiKey`. Other values are returned."""
    if isinstance(value, dict):
        for name in value.keys() - {"command", "seconds"}:
            raise ValueError(f"has no setting {name!r}; {did_you_mean(name, ('command', 'seconds'))}")
        return ApiKey(value.get("command", ()), value.get("seconds"))
    if callable(value):
        return ApiKey(value)
    if value is not None and not isinstance(value, str | SecretStr | ApiKey):
        raise ValueError(f"must be a string, a function, or a mapping with a command, not a {type(value).__name__}")
    return value
