"""Where a watcher looks for settings: a file, the environment, a function. Says what is there if it is not as it was.

Each tells a trouble once, and then not again until something is different. Knows nothing of threads, nor of who is to be changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

from qreward.errors import ConfigError
from qreward.functions.config import FIXED, ScheduleConfig
from qreward.reading import Place
from qreward.spelling import closest

PREFIX = "QREWARD_SCHEDULE_"
RECENT_NS = 2_000_000_000
"""Nanoseconds for which a file that was just written is read again although nothing seems different: clocks of file systems
are coarse, to 2 s, so that a second change may bear the time of the first (as in git's "racy" index entries)."""
_SIMPLE = {bool, int, float, str, NoneType}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UNSEEN = object()


class Source(Protocol):
    """Somewhere settings stand.

    Attributes:
        name: as it is called in errors and logs.
    """

    name: str

    def look(self) -> Any:
        """The settings if they are not as they were, else None. Raises ``ConfigError`` with the name and what is wrong."""

    def forget(self) -> None:
        """What was seen last was not taken: it is to be seen again."""


class FileSource:
    """A file, read when its time, size or inode is another (so when it is replaced, too) and its content as well.

    Args:
        path: of the file, which need not exist yet.
        read: makes settings of it, or raises ``ConfigError``.
    """

    def __init__(self, path: str | Path, read: Callable[[Path], Any]) -> None:
        self._path = Path(path).expanduser().absolute()
        self._read = read
        self.name = str(self._path)
        self.forget()

    def forget(self) -> None:
        self._mark: object = None
        self._content: object = _UNSEEN

    def look(self) -> Any:
        mark, content = self._state()
        self._mark = mark
        if content == self._content:
            return None
        self._content = content
        return self._read(self._path)

    def _state(self) -> tuple[object, object]:
        """What the file looks like from outside, None if that may deceive, and a digest of it, or why it cannot be read."""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if mark == self._mark:
                return mark, self._content
            digest = hashlib.sha256(self._path.read_bytes()).digest()
        except OSError as error:
            return None, error.errno
        return None if time.time_ns() - stat.st_mtime_ns < RECENT_NS else mark, digest


class EnvironmentSource:
    """The variables of the process that begin with a prefix, each of which must be a setting in upper case; empty ones are not set."""

    name = "environment"

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self.forget()

    def forget(self) -> None:
        self._seen: dict[str, str] | None = None

    def look(self) -> dict[str, Any] | None:
        seen = {name: text for name in sorted(os.environ) if name.startswith(self._prefix) and (text := os.environ.get(name))}
        if seen == self._seen:
            return None
        self._seen = seen
        return dict(self._read(variable, text) for variable, text in seen.items())

    def _read(self, variable: str, text: str) -> tuple[str, object]:
        name = variable.removeprefix(self._prefix).lower()
        if name not in ScheduleConfig.model_fields or variable != self._prefix + name.upper():
            near = closest(name, ScheduleConfig.model_fields)
            hint = (
                f"did you mean {self._prefix}{near[0].upper()}?" if near else f"every variable that begins with {self._prefix} must be one"
            )
            raise ConfigError(f"{variable}: is not a setting; {hint}")
        try:
            value = value_of(name, text)
            ScheduleConfig(**{name: value})  # by itself, so that the variable can be named; together they are checked later
        except ConfigError as error:
            texts = [text.removeprefix(f"{name}: ") for _, text in error.faults]
            raise ConfigError(f"{variable}: {'; '.join(texts)}") from None
        except ValueError as error:
            raise ConfigError(f"{variable}: {error}") from None
        return name, value


def value_of(name: str, text: str) -> Any:
    """What a text means for a parameter. Raises ``ValueError`` unless it is just a number, true or false, none, or a word it takes.

    Example:
        >>> value_of("timeout", "30"), value_of("timeout", "none"), value_of("debug", "true"), value_of("hedged_request_time", "p95")
        (30.0, None, True, 'p95')
    """
    kinds = _kinds(ScheduleConfig.model_fields[name].annotation)
    if name in FIXED or not kinds <= _SIMPLE:
        raise ValueError("is set in code, not in the environment")
    word = text.lower()
    if word == "none":
        if NoneType not in kinds:
            raise ValueError("cannot be none")
        return None
    if bool in kinds:
        if word not in ("true", "false"):
            raise ValueError("must be true or false")
        return word == "true"
    if float in kinds and _NUMBER.fullmatch(text):
        return float(text)
    if int in kinds and _WHOLE.fullmatch(text):
        return int(text)
    if str in kinds or (int in kinds and text.isalpha()):  # a percentile; the name of a priority
        return text
    raise ValueError(f"must be {'a number' if float in kinds else 'a whole number'}{' or none' if NoneType in kinds else ''}")


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that an annotation is made of."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {origin or annotation}


class CallbackSource:
    """A function that returns a mapping of settings, or None if there is nothing new.

    Args:
        callback: called at each look.
        read: makes settings of what it returned, or raises ``ConfigError``.
    """

    name = "callback"

    def __init__(self, callback: Callable[[], Any], read: Callable[[Any], Any]) -> None:
        self._callback = callback
        self._read = read
        self.forget()

    def forget(self) -> None:
        self._seen: object = None
        self._trouble: str | None = None

    def look(self) -> Any:
        told, self._trouble = self._trouble, None
        try:
            settings = self._settings()
        except ConfigError as error:
            self._trouble = str(error)
            if self._trouble != told:
                raise
            return None
        if settings is None or _equal(settings, self._seen):
            return None
        self._seen = settings
        return settings

    def _settings(self) -> Any:
        try:
            given = self._callback()
        except Exception as error:  # its text may hold anything
            raise ConfigError(f"callback: raised {type(error).__name__}") from error
        if given is None:
            return None
        try:
            return self._read(given)
        except ConfigError as error:
            raise Place("callback").named(error) from None


def read_mapping(given: object) -> dict[str, Any]:
    """The settings of a function as a mapping, which may be changed afterwards. Raises ``ConfigError``."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"must return a mapping of settings, or None for no change, not a {type(given).__name__}")
    return dict(given)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays are not comparable as a whole
        return False
