"""``ConfigWatcher``: looks now and then where settings stand, and takes over what is new. One thread each, no event loop.

Knows when to look and whom to tell; where settings stand is in ``sources``, what they mean is known by what is changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Protocol

from qreward import arguments
from qreward.config import ClientConfig, load_config
from qreward.engine import forks
from qreward.errors import ConfigError, QRewardError
from qreward.functions.config import ScheduleConfig
from qreward.functions.reading import read_settings
from qreward.functions.sources import PREFIX, CallbackSource, EnvironmentSource, FileSource, Source, read_mapping
from qreward.reading import Place

logger = logging.getLogger("qreward.schedule")

PATIENCE = 2.0
"""Seconds that ``stop`` waits for a callback that is under way; it may hang, and is then left to end by itself."""


class ConfigWatcher:
    """Keeps the settings of a function, or of a client, as a file, the environment or a callback says.

    What is wrong, half written or missing changes nothing, and is told once: as a warning of the logger ``qreward.schedule``
    and to ``on_error``. What is right is taken over as a whole. Of a function, a parameter that is no longer said goes back to
    what it was when the watcher was made, and what was never said is left alone; of a client, the file is all that holds.
    After a fork a running watcher runs in the child, too.

    Args:
        target: a :class:`ScheduleConfig`, a function that is decorated with ``@schedule``, or a client.
        file: path of a YAML, JSON or TOML file, which may be missing at first. Best replaced by renaming a finished one.
        env: True reads ``QREWARD_SCHEDULE_TIMEOUT`` and its like, for all parameters that are numbers, texts or true and false;
            a text is another prefix. Not for clients.
        callback: called at each look; returns a mapping of settings, or None if nothing is to change.
        poll_interval: seconds between looks.
        on_error: called with the ``ConfigError``, in the watcher's thread.
        wait: waits for the event at most so many seconds, and says whether it came; for tests.

    Raises:
        ConfigError: not exactly one of ``file``, ``env`` and ``callback`` is given, or the target is none.

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
        interval = arguments.seconds("poll_interval", poll_interval)
        if interval is None:
            raise ConfigError(
                "poll_interval must be a positive number of seconds; to check only on demand, call poll_once() and never start()"
            )
        self._interval = interval
        self._on_error = arguments.callback("on_error", on_error)
        self._wait = wait
        self._stopping = Event()
        self._thread: threading.Thread | None = None
        self._begin()
        forks.watch(self, ConfigWatcher._begin_again)

    def _begin(self) -> None:
        self._changing = threading.Lock()  # over which thread is ours
        self._looking = threading.RLock()  # one look at a time; what follows from one may look again

    def _begin_again(self) -> object:
        """In a forked child: the parent's thread is not here, and its locks may be held."""
        inherited = self._changing, self._looking, self._thread, self._stopping
        self._begin()
        if self._thread is not None:
            self._watch()
        return inherited

    @property
    def running(self) -> bool:
        """Whether it looks by itself."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Look now, before this returns, and every ``poll_interval`` from then on. Does nothing if it is running."""
        if self.running:
            return
        self.poll_once()
        with self._changing:
            if not self.running:
                self._watch()

    def stop(self) -> None:
        """Look no more: nothing is changed after this has returned. Does nothing if it is not running; it may be started again."""
        with self._changing:
            thread, self._thread = self._thread, None
            self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)

    def poll_once(self) -> bool:
        """Look now. True if something was changed; what is wrong is told as ever, and not raised."""
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
            raise Place(self._source.name).named(error) from None

    def _tell(self, error: Exception) -> None:
        text = str(error) if isinstance(error, QRewardError) else f"{self._source.name}: {type(error).__name__}"
        logger.warning("%s; nothing was changed", text)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                logger.exception("on_error of a ConfigWatcher raised")


class _Target(Protocol):
    """What is changed."""

    def read_file(self, path: Path, /) -> Any: ...

    def read_mapping(self, given: Any, /) -> Any: ...

    def apply(self, settings: Any, /) -> frozenset[str]: ...


class _FunctionTarget:
    """The configuration of a function, and what the code said of it."""

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
    """A client, async or not."""

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


def _source_of(target: _Target, file: object, env: object, callback: Any) -> Source:
    given = [name for name, there in (("file", file is not None), ("env", bool(env)), ("callback", callback is not None)) if there]
    if len(given) != 1:
        raise ConfigError(f"a ConfigWatcher needs exactly one of file, env and callback; {' and '.join(given) or 'none'} was given")
    if isinstance(file, str | Path):
        return FileSource(file, target.read_file)
    if env is True or isinstance(env, str):
        if isinstance(target, _ClientTarget):
            raise ConfigError("env= works for functions only; for a client use file= or callback=")
        return EnvironmentSource(PREFIX if env is True else env)
    checked = arguments.callback("callback", callback)
    if checked is None:
        raise ConfigError(f"{given[0]} must be {'a path' if file is not None else 'True or a prefix'}")
    return CallbackSource(checked, target.read_mapping)
