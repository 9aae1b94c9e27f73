"""From what the user set to what is decided by, made once for each change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from qreward.core.calls.outcome import Raised
from qreward.core.calls.terms import Adapting, Breaking, CallTerms, Hedging, Pause, Rate
from qreward.functions.config import UNSET, ScheduleConfig
from qreward.functions.overload import overload_of


class Settings:
    """One state of a configuration. Never changed, so that a call is treated by one of them from its beginning to its end.

    Attributes:
        terms: for the scheduler; ``hasty`` the same with nothing to wait for.
        needs_thread: a blocking caller may have to leave a try alone.
    """

    __slots__ = ("_exceptions", "_predicate", "callback", "debug", "default", "exporter", "hasty", "key_func", "needs_thread", "terms")

    def __init__(self, config: ScheduleConfig) -> None:
        self.terms = _terms(config)
        self.hasty = self.terms._replace(pause=Pause(0.0, 0.0), paced=False, hedging=None)
        self.needs_thread = config.timeout is not None or config.hedged_request_time is not None or config.speed_up_max_multiply > 1
        self.key_func: Callable[..., Hashable] | None = config.key_func
        self.default: Any = config.default_result
        self.callback = config.metrics_callback
        self.exporter = config.telemetry_exporter
        self.debug = config.debug
        exceptions: Any = config.exception_types
        is_types = isinstance(exceptions, type | tuple)
        self._exceptions: Any = exceptions if is_types else Exception
        self._predicate: Callable[[Exception], bool | float] | None = None if is_types else exceptions

    @property
    def has_default(self) -> bool:
        """Something is returned instead of an exception."""
        return self.default is not UNSET

    def covers(self, error: BaseException) -> bool:
        """Whether an exception that no try raised is one for which the default is returned."""
        if self._predicate is not None and isinstance(error, Exception):
            return self._predicate(error) is not False
        return isinstance(error, self._exceptions)

    def judge(self, error: Exception) -> Raised:
        """What an exception of the function means."""
        overload = overload_of(error)
        wait = None if overload is None else overload.retry_after
        again: bool | float = isinstance(error, self._exceptions)
        covered = bool(again)
        if again and self._predicate is not None:
            again = self._predicate(error)
            covered = again is not False
            if again is not True and again is not False:
                again, wait = True, float(again)
        if overload is not None and overload.should_retry is False:  # the server's own word goes first
            again = False
        return Raised(error, again=bool(again), wait=wait, overloaded=overload is not None, covered=covered)

    def judge_hastily(self, error: Exception) -> Raised:
        """The same with nothing to wait for."""
        raised = self.judge(error)
        raised.wait = None if raised.wait is None else 0.0
        return raised


def _terms(config: ScheduleConfig) -> CallTerms:
    hedging = breaking = adapting = None
    if config.hedged_request_time is not None:
        quantile = config.hedged_request_quantile
        after = None if isinstance(config.hedged_request_time, str) else config.hedged_request_time
        hedging = Hedging(after, quantile or 0.0, config.hedged_request_max_times, config.hedged_request_proportion)
    if config.circuit_breaker_threshold is not None:
        breaking = Breaking(config.circuit_breaker_threshold, config.circuit_breaker_recovery)
    if config.adaptive_limit:
        adapting = Adapting(
            config.adaptive_limit_min, config.adaptive_limit_max, config.adaptive_error_threshold, config.adaptive_latency_threshold
        )
    return CallTerms(
        level=int(config.priority),
        timeout=config.timeout,
        retries=config.retry_times,
        pause=Pause(config.retry_interval, config.retry_max_interval),
        abreast=config.speed_up_max_multiply,
        most=config.max_concurrency,
        rate=None if config.limit_size is None else Rate(config.limit_size, config.limit_window),
        hedging=hedging,
        breaking=breaking,
        adapting=adapting,
        noted=config.debug,
    )
