"""``ConfigWatcher``: checks regularly whether settings have changed, and applies new settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any

from qreward import options
from qreward.engine import background
from qreward.errors import ConfigError, QRewardError
from qreward.functions.config import ScheduleConfig, read_settings, same
from qreward.settings.client import OVERLAY, ClientConfig, load_config
from qreward.settings.files import SettingsLocation

logger = logging.getLogger("qreward.schedule")

STOP_TIMEOUT = 2.0
"""Maximum number of seconds that ``stop`` waits for a running callback. After this time, the result of the callback is discarded."""


class ConfigWatcher:
    """Updates the settings of a function or a client when a file or the result of a callback changes.

    If any setting is invalid, or the file is missing or incomplete, nothing is changed, and the error is reported once, as a warning of the
    logger ``qreward.schedule`` and to ``on_error``. Settings that could not be applied, for example because a list of addresses could not
    be read, are tried again at each check. For a function, the source may set some of the parameters; one that it no longer sets is reset
    to its value at the creation of the watcher. For a client, the source has the complete configuration. After a fork, a running watcher
    also runs in the child process.

    Args:
        target: a :class:`ScheduleConfig`, a function decorated with ``@schedule``, or a client.
        file: path of a YAML, JSON or TOML file, which may be missing at first. To update it, write a new file and rename it to this path.
        callback: function that is called at each check. It returns a mapping of settings, or None if nothing has changed.
        poll_interval: seconds between checks; with None, ``start`` checks once, and further checks are made by ``poll_once``.
        on_error: function that is called with the ``ConfigError``, in the watcher's thread.

    Raises:
        ConfigError: not exactly one of ``file`` and ``callback`` is given, or the target has another type.

    Example:
        >>> config = ScheduleConfig(timeout=30)
        >>> watcher = ConfigWatcher(config, callback=lambda: {"timeout": 10})
        >>> watcher.poll_once(), config.timeout
        (True, 10.0)
    """

    _wait = staticmethod(Event.wait)  # tests replace it

    def __init__(
        self,
        target: Any,
        *,
        file: str | Path | None = None,
        callback: Callable[[], Mapping[str, Any] | None] | None = None,
        poll_interval: float | None = 5.0,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        config = target if isinstance(target, ScheduleConfig) else getattr(target, "config", None)
        if not isinstance(config, ScheduleConfig) and not (isinstance(config, ClientConfig) and callable(getattr(target, "reload", None))):
            raise ConfigError(f"ConfigWatcher takes a ScheduleConfig, a function with @schedule or a client, not a {type(target).__name__}")
        if (file is None) == (callback is None):
            raise ConfigError("a ConfigWatcher needs exactly one of file and callback")
        if not isinstance(file, str | Path | None):
            raise ConfigError("file must be a path")
        self._interval = options.seconds("poll_interval", poll_interval)
        self._path = None if file is None else Path(file).expanduser().absolute()
        self._name = "callback" if self._path is None else str(self._path)
        self._callback = options.callback("callback", callback)
        self._on_error = options.callback("on_error", on_error)
        self._target, self._config = target, config if isinstance(config, ScheduleConfig) else None
        self._in_code: dict[str, Any] = {} if self._config is None else self._config.snapshot()
        self._applied: frozenset[str] = frozenset()  # names of the parameters of a function that the source has set
        self._settings: object = None  # the settings that were last applied
        self._pending: Any = None  # the last settings of the source until they are applied; they may be refused for a passing reason
        self._held: object = None  # the content of the file and its overlay when they were last read without an error
        self._reported: str | None = None  # the error of the last check
        self._stopping = Event()
        self._thread: threading.Thread | None = None
        self._looking = threading.RLock()  # held during a check; reentrant, because a callback may call ``poll_once``
        background.watch(self, ConfigWatcher._start_in_child)

    def _start_in_child(self) -> object:
        """Replace the lock in a forked child, because it may be held. Start a new thread if the watcher was running in the parent."""
        inherited = self._looking, self._thread, self._stopping
        self._looking = threading.RLock()
        if self._thread is not None:
            self._start_thread()
        return inherited

    @property
    def running(self) -> bool:
        """True if the watcher's thread is running."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Check once before this method returns, and then every ``poll_interval`` seconds. If the watcher is running, do nothing."""
        with self._looking:
            if not self.running:
                self.poll_once()
                self._start_thread()

    def stop(self) -> None:
        """Stop checking. After this method has returned, no change is applied. The watcher may be started again."""
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT)

    def poll_once(self) -> bool:
        """Check once. Returns True if a setting was changed. Errors are logged and passed to ``on_error``, not raised."""
        return self._check(None)

    def __enter__(self) -> ConfigWatcher:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<ConfigWatcher {self._name}{', running' if self.running else ''}>"

    def _start_thread(self) -> None:
        self._stopping = Event()
        self._thread = threading.Thread(target=self._run, args=(self._stopping,), name="qreward-config-watcher", daemon=True)
        self._thread.start()

    def _run(self, stopping: Event) -> None:
        while not self._wait(stopping, self._interval):
            self._check(stopping)

    def _check(self, stopping: Event | None) -> bool:
        with self._looking:
            try:
                changed = self._take_over(stopping)
            except Exception as error:
                text = str(error) if isinstance(error, QRewardError) else f"{self._name}: {type(error).__name__}"
                if text != self._reported:
                    self._reported = text
                    logger.warning("%s; nothing was changed", text)
                    try:
                        if self._on_error is not None:
                            self._on_error(error)
                    except Exception:
                        logger.exception("on_error of a ConfigWatcher raised")
                return False
            self._reported = None
        if changed:
            logger.info("%s: changed %s", self._name, ", ".join(sorted(changed)))
        return bool(changed)

    def _take_over(self, stopping: Event | None) -> frozenset[str]:
        """Apply the settings of the source if they have changed. Returns the names of the settings that were changed."""
        settings, changed = self._read(), frozenset[str]()
        if settings is None:
            settings = self._pending
        self._pending = settings
        if settings is None or (stopping is not None and stopping.is_set()):
            return changed
        if not same(settings, self._settings):
            try:
                if self._config is None:
                    changed = self._target.reload(settings)
                else:
                    restored = {name: self._in_code[name] for name in self._in_code.keys() & (self._applied - settings.keys())}
                    changed = self._config.update(**restored, **settings)
                    self._applied = frozenset(settings)
            except ConfigError as error:
                raise SettingsLocation(self._name).named(error) from None
            self._settings = settings
        self._pending = None
        return changed

    def _read(self) -> Any:
        """Return the settings of the source: a mapping, or for a client also a ``ClientConfig``; None if nothing has changed."""
        if self._path is not None:
            held = [_content_of(path) for path in (self._path, Path(f"{self._path}{OVERLAY}"))]
            if held == self._held:
                return None
            settings = load_config(self._path) if self._config is None else read_settings(self._path)[0]
            self._held = held
            return settings
        assert self._callback is not None
        try:
            answer: Any = self._callback()
        except ConfigError:
            raise
        except Exception as error:  # the message is left out because it may hold secrets
            raise ConfigError(f"callback: raised {type(error).__name__}") from error
        if answer is None or isinstance(answer, ClientConfig):
            return answer
        if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
            raise ConfigError(f"callback: must return a mapping of settings, or None for no change, not a {type(answer).__name__}")
        return dict(answer)


def _content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
