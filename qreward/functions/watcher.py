"""``ConfigWatcher``: checks regularly whether settings have changed, and applies new settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any

from qreward import options
from qreward.engine import background
from qreward.errors import ConfigError, QRewardError
from qreward.functions.config import ScheduleConfig, read_settings, same
from qreward.settings.client import ClientConfig, load_config
from qreward.settings.files import SettingsLocation


def _called(callback: Any, read: Callable[[Any], Any]) -> Any:
    """Return the settings that a callback returns, or None if nothing has changed."""
    try:
        answer = callback()
    except ConfigError:
        raise
    except Exception as error:  # the message is left out because it may hold secrets
        raise ConfigError(f"callback: raised {type(error).__name__}") from error
    if answer is None or isinstance(answer, ClientConfig):
        return answer
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise ConfigError(f"callback: must return a mapping of settings, or None for no change, not a {type(answer).__name__}")
    try:
        return read(answer)
    except ConfigError as error:
        raise SettingsLocation("callback").named(error) from None


class _FunctionTarget:
    """Applies settings to a function. A setting that the source no longer has is reset to the value that it had in the code."""

    def __init__(self, config: ScheduleConfig) -> None:
        self._config = config
        self._in_code = config.snapshot()
        self._applied: frozenset[str] = frozenset()
        self.lock = config._changes.lock

    @staticmethod
    def read(source: Path | Mapping[str, Any]) -> dict[str, Any]:
        return dict(source) if isinstance(source, Mapping) else read_settings(source)[0]

    def apply(self, settings: dict[str, Any]) -> frozenset[str]:
        restored = {name: self._in_code[name] for name in self._applied - settings.keys()}
        changed = self._config.update(**restored, **settings)
        self._applied = frozenset(settings)
        return changed


class _ClientTarget:
    """Applies settings to a client. The source has the complete configuration of the client."""

    read = staticmethod(load_config)

    def __init__(self, client: Any) -> None:
        self.apply: Callable[[Any], frozenset[str]] = client.reload
        self.lock = nullcontext()


logger = logging.getLogger("qreward.schedule")

STOP_TIMEOUT = 2.0
"""Maximum number of seconds that ``stop`` waits for a running callback. After this time, the result of the callback is discarded."""


class ConfigWatcher:
    """Updates the settings of a function or a client when a file or the result of a callback changes.

    If any setting is invalid, or the file is missing or incomplete, nothing is changed, and the error is reported once, as a warning of the
    logger ``qreward.schedule`` and to ``on_error``. For a function, the source may set some of the parameters; one that it no longer sets
    is reset to its value at the creation of the watcher. For a client, the source has the complete configuration. After a fork, a running
    watcher also runs in the child process.

    Args:
        target: a :class:`ScheduleConfig`, a function decorated with ``@schedule``, or a client.
        file: path of a YAML, JSON or TOML file, which may be missing at first. To update it, write a new file and rename it to this path.
        callback: function that is called at each check. It returns a mapping of settings, or None if nothing has changed.
        poll_interval: seconds between checks.
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
        poll_interval: float = 5.0,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        config = target if isinstance(target, ScheduleConfig) else getattr(target, "config", None)
        if isinstance(config, ScheduleConfig):
            self._target: _FunctionTarget | _ClientTarget = _FunctionTarget(config)
        elif isinstance(config, ClientConfig) and callable(getattr(target, "reload", None)):
            self._target = _ClientTarget(target)
        else:
            raise ConfigError(f"ConfigWatcher takes a ScheduleConfig, a function with @schedule or a client, not a {type(target).__name__}")
        if (file is None) == (callback is None):
            raise ConfigError("a ConfigWatcher needs exactly one of file and callback")
        if file is None:
            self._name, self._read = "callback", partial(_called, options.callback("callback", callback), self._target.read)
        elif isinstance(file, str | Path):
            path = Path(file).expanduser().absolute()
            self._name, self._read = str(path), partial(self._target.read, path)
        else:
            raise ConfigError("file must be a path")
        interval = options.seconds("poll_interval", poll_interval)
        if interval is None:
            raise ConfigError(
                "poll_interval must be a positive number of seconds; to check only on demand, call poll_once() and never start()"
            )
        self._interval = interval
        self._on_error = options.callback("on_error", on_error)
        self._settings: object = None  # the settings that were last applied, or could not be applied
        self._reported: str | None = None  # the error of the last check, if the settings could not be read
        self._stopping = Event()
        self._thread: threading.Thread | None = None
        self._make_locks()
        background.watch(self, ConfigWatcher._start_in_child)

    def _make_locks(self) -> None:
        self._changing = threading.Lock()  # guards ``_thread``
        self._looking = threading.RLock()  # held during a check; reentrant, because a callback may call ``poll_once``

    def _start_in_child(self) -> object:
        """Replace the locks in a forked child, because they may be held. Start a new thread if the watcher was running in the parent."""
        inherited = self._changing, self._looking, self._thread, self._stopping
        self._make_locks()
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
        if self.running:
            return
        self.poll_once()
        with self._changing:
            if not self.running:
                self._start_thread()

    def stop(self) -> None:
        """Stop checking. After this method has returned, no change is applied. The watcher may be started again."""
        with self._changing:
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
        self._stopping = stopping = Event()
        self._thread = threading.Thread(target=self._run, args=(stopping,), name="qreward-config-watcher", daemon=True)
        self._thread.start()

    def _run(self, stopping: Event) -> None:
        while not self._wait(stopping, self._interval):
            self._check(stopping)

    def _check(self, stopping: Event | None) -> bool:
        with self._looking:
            try:
                changed = self._take_over(stopping)
            except Exception as error:
                self._report(error)
                return False
        if changed:
            logger.info("%s: changed %s", self._name, ", ".join(sorted(changed)))
        return bool(changed)

    def _take_over(self, stopping: Event | None) -> frozenset[str]:
        """Apply the settings of the source if they have changed. Returns the names of the settings that were changed."""
        reported, nothing = self._reported, frozenset[str]()
        try:
            self._reported, settings = None, self._read()
        except ConfigError as error:
            self._reported = str(error)
            if self._reported == reported:
                return nothing
            raise
        if settings is None or same(settings, self._settings):
            return nothing
        with self._target.lock:  # while this thread waits for the lock, ``stop`` may time out and return
            if stopping is not None and stopping.is_set():
                return nothing
            self._settings = settings
            try:
                return self._target.apply(settings)
            except ConfigError as error:
                raise SettingsLocation(self._name).named(error) from None

    def _report(self, error: Exception) -> None:
        text = str(error) if isinstance(error, QRewardError) else f"{self._name}: {type(error).__name__}"
        logger.warning("%s; nothing was changed", text)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                logger.exception("on_error of a ConfigWatcher raised")
