"""Orders of an operator to a running process: pause, resume, drain, restore, limit and cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from qreward.engine.batch import BatchWaiter
from qreward.errors import ConfigError
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.settings.policies import Endpoint
from qreward.spelling import did_you_mean

if TYPE_CHECKING:
    from qreward.runtime import Runtime

Action = Literal["pause", "resume", "drain", "restore", "limit", "cancel"]
LIMITS = ("max_concurrency", "rpm", "tpm")
"""Limits of an endpoint that an order may change."""


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """An order."""

    action: Action
    target: str | None = None
    limits: dict[str, float | None] = {}
    reason: str = ""
    dry_run: bool = False


def steer(runtimes: Mapping[int, Runtime], order: Order) -> list[str]:
    """Carry out an order at each client that it fits. Returns sentences about its effects. Raises ``ConfigError`` if it fits none."""
    act, effects, refused = ACTIONS[order.action], list[str](), ConfigError("this process has no client")
    if order.target is None and order.action in ("drain", "restore", "limit", "cancel"):
        raise ConfigError(f"{order.action} needs the {'number of a batch' if order.action == 'cancel' else 'name of an endpoint'}")
    for runtime in runtimes.values():
        try:
            effects += act(runtime, order)
        except ConfigError as error:
            refused = error
    if not effects:
        raise refused
    return effects


def _sources(runtime: Runtime, order: Order) -> list[Source]:
    return runtime.fleet.sources() if order.target is None else [runtime.fleet.source(order.target)]


def _waiting(runtime: Runtime, pools: Iterable[Pool]) -> int:
    return sum(each.waiting for each in runtime.look.explain(pools))


def _hold(runtime: Runtime, order: Order) -> list[str]:
    sources, why = _sources(runtime, order), ""
    if order.action == "pause":
        why = f"paused: {order.reason}" if order.reason else "paused"
    if not order.dry_run:
        runtime.fleet.hold(order.target, why)
    waiting = _waiting(runtime, {pool for source in sources for pool in source.pools})
    names = ", ".join(source.name for source in sources)
    if why:
        return [f"{names}: nothing new is sent, {sum(source.inflight for source in sources)} in flight are finished, {waiting} wait"]
    return [f"{names}: requests are sent again, {waiting} wait"]


def _mark(runtime: Runtime, order: Order) -> list[str]:
    (source,) = _sources(runtime, order)
    down = order.action == "drain"
    for pool in source.pools if down else ():
        if all(other is source or other.health.marked_unhealthy for other in pool.sources):
            waiting = _waiting(runtime, [pool])
            raise ConfigError(
                f"{source.name!r} is the last endpoint of {pool.name}, so {waiting} waiting requests would fail; pause it instead"
            )
    if not order.dry_run:
        runtime.fleet.mark(source.name, down=down)
    return [f"{source.name}: {f'{source.inflight} in flight are finished, others take the rest' if down else 'back in service'}"]


def _limit(runtime: Runtime, order: Order) -> list[str]:
    (source,) = _sources(runtime, order)
    if not order.limits or (stray := next((name for name in order.limits if name not in LIMITS), None)):
        given = f"there is no limit {stray!r}; " if order.limits else ""
        raise ConfigError(f"{given}{did_you_mean(stray, LIMITS, otherwise='the limits are')}" if given else "limit needs a limit to change")
    old = cast("Endpoint", source.endpoint)
    limits = old.limits.changed(order.limits)
    if not order.dry_run:
        config, entry = runtime.config, runtime.fleet.entry_of(source.name)
        changed = [each if each is not entry else each.model_copy(update={"limits": limits}) for each in config.endpoints]
        runtime.reload(config.model_copy(update={"endpoints": tuple(changed)}))
    return [f"{source.name}: {name} {_shown(getattr(old.limits, name))} -> {_shown(getattr(limits, name))}" for name in order.limits]


def _shown(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:g}"


def _cancel(runtime: Runtime, order: Order) -> list[str]:
    waiters = [waiter for driver in runtime.engine.drivers() for waiter in list(driver.waiters)]
    batches = {str(waiter.number): waiter for waiter in waiters if isinstance(waiter, BatchWaiter)}
    batch = batches.get(cast("str", order.target))
    if batch is None:
        raise ConfigError(f"there is no batch {order.target!r}; the batches are {', '.join(batches) or 'all done'}")
    if not order.dry_run:
        batch.driver.later(partial(batch.cancel, order.reason))
    return [f"batch {order.target} ends: its items without a result get BatchCancelled"]


ACTIONS: Mapping[str, Callable[[Any, Order], list[str]]] = {
    "pause": _hold, "resume": _hold, "drain": _mark, "restore": _mark, "limit": _limit, "cancel": _cancel,
}  # fmt: skip
