"""``ConfigWatcher``: checks at intervals whether settings have changed, and applies the new ones. One thread each, no event loop.

The settings come from a file, from the environment or from a function. Each of these sources returns settings only if they have
changed since the last check. It reports an error once, and not again before something changes. A source knows nothing of threads or
of the object that is changed.

``ConfigWatcher`` decides when to check and reports errors. The object that is changed decides what the settings mean.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import NoneType, TracebackType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin

from qreward import options
from qreward.engine import background
from qreward.errors import ConfigError, QRewardError
from qreward.functions.config import FIXED, ScheduleConfig, read_settings
from qreward.settings.client import ClientConfig, load_config
from qreward.settings.files import SettingsLocation
from qreward.spelling import closest

PREFIX = "QREWARD_SCHEDULE_"
RECENT_NS = 2_000_000_000
"""Nanoseconds for which a file that was just written is read again although its metadata are unchanged.

Clocks of file systems are coarse, up to 2 s, so a second change may have the same time as the first (as in git's "racy" index
entries).
"""
_SIMPLE = {bool, int, float, str, NoneType}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UNSEEN = object()


class SettingsSource(Protocol):
    """A place that settings are read from.

    Attributes:
        name: name of the source in errors and logs.
    """

    name: str

    def look(self) -> Any:
        """Return the settings if they have changed, else None. Raises ``ConfigError`` with the source's name and the problem."""

    def forget(self) -> None:
        """Forget the last settings, which were not applied. The next ``look`` returns them again."""


class FileSource:
    """A file. It is read when its time, size or inode has changed, for example after it was replaced.

    Settings are returned only if the content has changed too.

    Args:
        path: path of the file, which need not exist yet.
        read: converts the file to settings, or raises ``ConfigError``.
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
        """The metadata of the file, or None if they may be misleading; and a digest of its content, or the reason why it cannot be read."""
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
    """The environment variables that begin with a prefix. The rest of the name is a setting in upper case. Empty variables are ignored."""

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
            ScheduleConfig(**{name: value})  # checked alone, so that the error can name the variable; all are checked together later
        except ConfigError as error:
            texts = [text.removeprefix(f"{name}: ") for _, text in error.faults]
            raise ConfigError(f"{variable}: {'; '.join(texts)}") from None
        except ValueError as error:
            raise ConfigError(f"{variable}: {error}") from None
        return name, value


def value_of(name: str, text: str) -> Any:
    """Convert a text to the value of a parameter.

    Raises ``ValueError`` unless the text is a number, true or false, none, or a word that the parameter allows.

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
    if str in kinds or (int in kinds and text.isalpha()):  # a percentile, or the name of a priority
        return text
    raise ValueError(f"must be {'a number' if float in kinds else 'a whole number'}{' or none' if NoneType in kinds else ''}")


def _kinds(annotation: Any) -> set[Any]:
    """The plain types in an annotation."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, get_args(annotation)))
    return {origin or annotation}


class CallbackSource:
    """A function that returns a mapping of settings, or None if nothing has changed.

    Args:
        callback: called at each check.
        read: converts its return value to settings, or raises ``ConfigError``.
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
        except Exception as error:  # the message is left out because it may hold secrets
            raise ConfigError(f"callback: raised {type(error).__name__}") from error
        if given is None:
            return None
        try:
            return self._read(given)
        except ConfigError as error:
            raise SettingsLocation("callback").named(error) from None


def read_mapping(given: object) -> dict[str, Any]:
    """Return a copy of a mapping of settings of a function. Raises ``ConfigError``."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"must return a mapping of settings, or None for no change, not a {type(given).__name__}")
    return dict(given)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays cannot be compared as a whole
        return False


logger = logging.getLogger("qreward.schedule")

PATIENCE = 2.0
"""Seconds that ``stop`` waits for a running callback. A callback that hangs is left running, and its result is dropped."""


class ConfigWatcher:
    """Keeps the settings of a function or of a client in step with a file, the environment or a callback.

    Settings that are invalid, incomplete or missing change nothing. They are reported once: as a warning of the logger
    ``qreward.schedule`` and to ``on_error``. Valid settings are applied as a whole. For a function, a parameter that the source no longer
    sets returns to its value when the watcher was created, and a parameter that it never set is left alone. For a client, the source
    holds the complete configuration. After a fork, a running watcher also runs in the child process.

    Args:
        target: a :class:`ScheduleConfig`, a function decorated with ``@schedule``, or a client.
        file: path of a YAML, JSON or TOML file, which may be missing at first. Update it by renaming a complete file over it.
        env: True reads ``QREWARD_SCHEDULE_TIMEOUT`` and similar variables, for all parameters that are numbers, texts or booleans. A text
            is used as another prefix. Not for clients.
        callback: called at each check; returns a mapping of settings, or None if nothing has changed.
        poll_interval: seconds between checks.
        on_error: called with the ``ConfigError``, in the watcher's thread.
        wait: waits for an event for at most the given number of seconds, and returns whether it was set; for tests.

    Raises:
        ConfigError: not exactly one of ``file``, ``env`` and ``callback`` is given, or the target has another type.

    Example:
        >>> config = ScheduleConfig(timeout=30)
        >>> watcher = ConfigWatcher(config, callback=lambda: {"timeout": 10})
        >>> watcher.poll_once(), config.timeout
        (True, 10.0)
    """

    def __init__(
        self,
        target: Any,
        *,
        file: str | Path | None = None,
        env: bool | str = False,
        callback: Callable[[], Mapping[str, Any] | None] | None = None,
        poll_interval: float = 5.0,
        on_error: Callable[[Exception], object] | None = None,
        wait: Callable[[Event, float], bool] = Event.wait,
    ) -> None:
        self._target = _target_of(target)
        self._source = _source_of(self._target, file, env, callback)
        interval = options.seconds("poll_interval", poll_interval)
        if interval is None:
            raise ConfigError(
                "poll_interval must be a positive number of seconds; to check only on demand, call poll_once() and never start()"
            )
        self._interval = interval
        self._on_error = options.callback("on_error", on_error)
        self._wait = wait
        self._stopping = Event()
        self._thread: threading.Thread | None = None
        self._begin()
        background.watch(self, ConfigWatcher._begin_again)

    def _begin(self) -> None:
        self._changing = threading.Lock()  # guards ``_thread``
        self._looking = threading.RLock()  # one check at a time; a callback that a check runs may check again

    def _begin_again(self) -> object:
        """In a forked child, replace the locks, which may be held, and start a new thread if one was running."""
        inherited = self._changing, self._looking, self._thread, self._stopping
        self._begin()
        if self._thread is not None:
            self._watch()
        return inherited

    @property
    def running(self) -> bool:
        """Whether the watcher's thread is running."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Check now, before this method returns, and then every ``poll_interval`` seconds. Does nothing if the watcher is running."""
        if self.running:
            return
        self.poll_once()
        with self._changing:
            if not self.running:
                self._watch()

    def stop(self) -> None:
        """Stop checking: no change is applied after this has returned. Does nothing if the watcher is not running.

        The watcher may be started again.
        """
        with self._changing:
            thread, self._thread = self._thread, None
            self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)

    def poll_once(self) -> bool:
        """Check now. Returns True if something was changed. Errors are reported as usual, not raised."""
        return self._look(None)

    def __enter__(self) -> ConfigWatcher:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<ConfigWatcher {self._source.name}{', running' if self.running else ''}>"

    def _watch(self) -> None:
        self._stopping = stopping = Event()
        self._thread = threading.Thread(target=self._run, args=(stopping,), name="qreward-config-watcher", daemon=True)
        self._thread.start()

    def _run(self, stopping: Event) -> None:
        while not self._wait(stopping, self._interval):
            self._look(stopping)

    def _look(self, stopping: Event | None) -> bool:
        with self._looking:
            try:
                settings = self._source.look()
                if settings is None:
                    return False
                if stopping is not None and stopping.is_set():
                    self._source.forget()
                    return False
                changed = self._apply(settings)
            except Exception as error:
                self._tell(error)
                return False
        if changed:
            logger.info("%s: changed %s", self._source.name, ", ".join(sorted(changed)))
        return bool(changed)

    def _apply(self, settings: Any) -> frozenset[str]:
        try:
            return self._target.apply(settings)
        except ConfigError as error:
            raise SettingsLocation(self._source.name).named(error) from None

    def _tell(self, error: Exception) -> None:
        text = str(error) if isinstance(error, QRewardError) else f"{self._source.name}: {type(error).__name__}"
        logger.warning("%s; nothing was changed", text)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                logger.exception("on_error of a ConfigWatcher raised")


class _Target(Protocol):
    """The object whose settings are changed."""

    def read_file(self, path: Path, /) -> Any: ...

    def read_mapping(self, given: Any, /) -> Any: ...

    def apply(self, settings: Any, /) -> frozenset[str]: ...


class _FunctionTarget:
    """The configuration of a function, with the values it had in the code."""

    read_file = staticmethod(read_settings)
    read_mapping = staticmethod(read_mapping)

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config
        self._in_code = config.snapshot()
        self._said: frozenset[str] = frozenset()

    def apply(self, settings: dict[str, Any]) -> frozenset[str]:
        back = {name: self._in_code[name] for name in self._said - settings.keys()}
        changed = self._config.update(**back, **settings)
        self._said = frozenset(settings)
        return changed


class _ClientTarget:
    """A client, async or blocking."""

    read_file = staticmethod(load_config)

    def __init__(self, client: Any) -> None:
        self._client = client

    @staticmethod
    def read_mapping(given: object) -> ClientConfig:
        if isinstance(given, ClientConfig):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"must return a mapping of settings, or None for no change, not a {type(given).__name__}")
        return load_config(given)

    def apply(self, settings: ClientConfig) -> frozenset[str]:
        changed: frozenset[str] = self._client.reload(settings)
        return changed


def _target_of(target: Any) -> _Target:
    config = target if isinstance(target, ScheduleConfig) else getattr(target, "config", None)
    if isinstance(config, ScheduleConfig):
        return _FunctionTarget(config)
    if isinstance(config, ClientConfig) and callable(getattr(target, "reload", None)):
        return _ClientTarget(target)
    raise ConfigError(f"ConfigWatcher takes a ScheduleConfig, a function with @schedule or a client, not a {type(target).__name__}")


def _source_of(target: _Target, file: object, env: object, callback: Any) -> SettingsSource:
    given = [name for name, there in (("file", file is not None), ("env", bool(env)), ("callback", callback is not None)) if there]
    if len(given) != 1:
        raise ConfigError(f"a ConfigWatcher needs exactly one of file, env and callback; {' and '.join(given) or 'none'} was given")
    if isinstance(file, str | Path):
        return FileSource(file, target.read_file)
    if env is True or isinstance(env, str):
        if isinstance(target, _ClientTarget):
            raise ConfigError("env= works for functions only; for a client use file= or callback=")
        return EnvironmentSource(PREFIX if env is True else env)
    checked = options.callback("callback", callback)
    if checked is None:
        raise ConfigError(f"{given[0]} must be {'a path' if file is not None else 'True or a prefix'}")
    return CallbackSource(checked, target.read_mapping)
