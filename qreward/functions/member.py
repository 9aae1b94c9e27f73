"""A decorated function at run time: what it is called with goes to the scheduler of its pool, what comes of it goes to the caller."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from qreward.core.calls.call import Call
from qreward.core.calls.function import Function
from qreward.core.outcome import Answer
from qreward.engine.calls.awaited import Awaited
from qreward.engine.calls.blocking import Blocked
from qreward.errors import CircuitOpen, ConfigError, RequestTimeout
from qreward.functions.config import ScheduleConfig
from qreward.functions.metrics import Outcome, ScheduleMetrics, ScheduleStats
from qreward.functions.settings import Settings
from qreward.functions.waiting import Switch

if TYPE_CHECKING:
    from qreward.functions.pools import Pool

log = logging.getLogger("qreward.schedule")


class Member:
    """A function, its configuration, and its place in a pool.

    Args:
        body: what is decorated.
        config: its settings; it follows their changes.
        pool: what it shares with others.
    """

    def __init__(self, body: Callable[..., Any], config: ScheduleConfig, pool: Pool) -> None:
        self.body = body
        self.name = f"{getattr(body, '__module__', None) or '?'}.{getattr(body, '__qualname__', None) or type(body).__qualname__}"
        self.config = config
        self.pool = pool
        self.settings = Settings(config)
        _check_agreement(self, pool)
        pool.members.add(self)
        self.attach()
        config._changes.follow(self._follow)

    def attach(self) -> None:
        """Begin anew in the pool's engine."""
        engine = self.pool.engine
        with engine.lock:  # others of the pool may be in use
            self.function = Function(self.name, engine.scheduler.group, self.settings.terms, keyed=self.settings.key_func is not None)

    def _follow(self, config: ScheduleConfig, _changed: frozenset[str]) -> None:
        settings = Settings(config)

        def change(now: float) -> None:
            self.settings, self.function.terms = settings, settings.terms
            self.pool.engine.scheduler.changed(now, self.function)

        self.pool.engine.act(change)

    # calls

    async def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an async function."""
        settings, hasty = self.settings, Switch.off
        sink = Awaited(
            self.pool.engine.shell(),
            partial(self.body, *args, **kwargs),
            settings.judge_hastily if hasty else settings.judge,
            self._tell if settings.debug else None,
        )
        call = self._call(settings, hasty, sink, args, kwargs)
        try:
            outcome: Any = await sink.result(call)
        except BaseException:
            self._report(call, settings, "cancelled", None)
            raise
        if type(outcome) is Answer:
            self._report(call, settings, "ok", None)
            return outcome.value
        value = self._instead(call, settings, outcome, args, kwargs)
        return await value if inspect.isawaitable(value) else value

    def call_blocking(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that blocks."""
        settings, hasty = self.settings, Switch.off
        sink = Blocked(
            self.pool.desk,
            partial(self.body, *args, **kwargs),
            settings.judge_hastily if hasty else settings.judge,
            inline=not settings.needs_thread,
            tell=self._tell if settings.debug else None,
        )
        call = self._call(settings, hasty, sink, args, kwargs)
        try:
            outcome = sink.result(call)
        except BaseException:
            self._report(call, settings, "cancelled", None)
            raise
        if type(outcome) is Answer:
            self._report(call, settings, "ok", None)
            return outcome.value
        return self._instead(call, settings, outcome, args, kwargs)

    def _call(self, settings: Settings, hasty: bool, sink: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        key: Hashable = None
        if settings.key_func is not None:
            key = settings.key_func(*args, **kwargs)
            try:
                hash(key)
            except TypeError:
                raise ConfigError(
                    f"key_func of {self.name}() returned a {type(key).__name__}, which is not hashable; return a text or a tuple"
                ) from None
        return Call(self.function, key, settings.hasty if hasty else settings.terms, sink)

    def _instead(self, call: Call, settings: Settings, error: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The default, if there is one for such an error; else raise the error."""
        outcome: Outcome = "failed"
        if call.error is not error and isinstance(error, RequestTimeout):
            outcome = "timeout"
        elif call.error is not error and isinstance(error, CircuitOpen):
            outcome = "circuit_open"
        if not settings.has_default or (outcome == "failed" and not (call.covered if call.error is error else settings.covers(error))):
            self._report(call, settings, outcome, error)
            raise error
        self._report(call, settings, outcome, error, defaulted=True)
        default = settings.default
        return default(*args, **kwargs) if callable(default) else default

    # what is told

    def _report(self, call: Call, settings: Settings, outcome: Outcome, error: BaseException | None, *, defaulted: bool = False) -> None:
        if settings.callback is None and settings.exporter is None:
            return
        now = self.pool.engine.clock()
        metrics = ScheduleMetrics(
            self.name,
            call.key,
            outcome,
            None if error is None else type(error).__name__,
            defaulted,
            call.begun,
            call.retries,
            call.hedges,
            (now if call.sent_at is None else call.sent_at) - call.born,
            now - call.born,
        )
        for name, receiver in (("metrics_callback", settings.callback), ("telemetry_exporter", getattr(settings.exporter, "export", None))):
            if receiver is not None:
                try:
                    receiver(metrics)
                except Exception:
                    log.exception("%s of %s() raised; the call is not affected", name, self.name)

    def _tell(self, call: Call) -> None:
        notes, call.notes = call.notes or [], []
        for at, text in notes:
            log.debug("%s() call %d at %.3f s: %s", self.name, call.number, at - call.born, text)

    def stats(self) -> ScheduleStats:
        """What it did since it was defined or reset."""
        engine, function = self.pool.engine, self.function
        with engine.lock:
            function.forget(engine.clock())
            tally, group, lanes = function.tally, function.group, function.lanes.values()
            at = function.quantiles.at
            return ScheduleStats(
                calls=tally.calls,
                ok=tally.ok,
                failed=tally.failed,
                timeouts=tally.timeouts,
                refused=tally.refused,
                tries=tally.tries,
                retries=tally.retries,
                hedges=tally.hedges,
                hedges_won=tally.hedges_won,
                overloaded=tally.overloaded,
                waiting=sum(len(lane.line) for lane in lanes),
                inflight=sum(lane.inflight for lane in lanes),
                limit=None if group.limit == float("inf") else int(group.limit),
                rate=min(
                    (lane.ration.size for lane in lanes if lane.ration is not None),
                    default=function.terms.rate and function.terms.rate.size,
                ),
                keys=len(lanes),
                open_circuits=sum(lane.breaker is not None and lane.breaker.state != "closed" for lane in lanes),
                p50=at(0.5),
                p95=at(0.95),
                p99=at(0.99),
            )

    def reset(self) -> None:
        """Forget all counts, keys, limits that moved and open breakers. What is under way or waits goes on."""
        self.pool.engine.act(partial(_reset, self))


def _reset(member: Member, now: float) -> None:
    member.pool.engine.scheduler.reset(now, member.function)


def _check_agreement(member: Member, pool: Pool) -> None:
    mine = member.config.max_concurrency
    for other in pool.members:
        theirs = other.config.max_concurrency
        if mine is not None and theirs is not None and mine != theirs:
            raise ConfigError(
                f"{member.name}() and {other.name}() share the pool {member.config.pool!r}, but set max_concurrency={mine} and "
                f"{theirs}; set it for one of them, or to the same number for both"
            )
