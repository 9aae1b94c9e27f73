"""``Runtime``: the engine, endpoints and settings behind the methods of a client."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from functools import partial
from random import Random
from time import monotonic
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakMethod

from qreward import options
from qreward.codecs.base import WireRequest
from qreward.deciding import DecisionBatch, DialectFinder, smaller
from qreward.decisions import Decision
from qreward.engine import background
from qreward.engine.batch import BatchWaiter, Items, Prepare, ResultSettings, size_of
from qreward.engine.driver import Backend, LoopDriver, Single
from qreward.engine.fleet import AddressLists, Fleet
from qreward.engine.instrumentation import Instrumentation, ObserverWatcher, StallWatch, Watcher
from qreward.engine.probing import ProbingEngine
from qreward.engine.streams import BatchStreamWaiter, StreamWaiter
from qreward.errors import ConfigError, NoEndpoint, RequestTimeout
from qreward.live.snapshot import SnapshotMaker
from qreward.options import DEFAULT
from qreward.progress import VARIABLE as PROGRESS
from qreward.progress import start_progress
from qreward.quota.renewal import Sharing
from qreward.results import BatchResult, Explanation, Result, with_trail
from qreward.scheduler.pool import Pool
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.task import RequestOptions
from qreward.scoring.merge_spec import MergeSpec
from qreward.scoring.merger import ItemWaiter, MergedBatchWaiter, MergedItem, RequestMerger
from qreward.scoring.sizing import LearnedLimits
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint
from qreward.streaming import BatchStream, Stream
from qreward.transport.backend import HttpBackend

T = TypeVar("T")
Batch = TypeVar("Batch", bound=BatchWaiter)


class Runtime:
    """Holds the engine, the endpoints and the settings of one client. ``given``: options of a call, see ``options.arguments_of``."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        telemetry: Any = DEFAULT,
        observers: Iterable[object] = (),
        backend_factory: Callable[[], Backend] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.clock = clock
        self._start_arguments = telemetry, observers, backend_factory
        self._changing = threading.Lock()
        self.addresses = AddressLists(WeakMethod(self._addresses_changed), clock)
        self._start(config)
        background.watch(self, Runtime._restart)

    def _start(self, config: ClientConfig) -> None:
        telemetry, observers, backend_factory = self._start_arguments
        self.telemetry, watch = _watching(telemetry, observers, self.clock)
        rng = Random()  # noqa: S311 - jitter, not secrets
        scheduler = Scheduler(config.retry, rng, estimated, config.hedge, config.max_queued)
        backend_factory = backend_factory or partial(HttpBackend, config.transport)
        self.engine: ProbingEngine = ProbingEngine(scheduler, backend_factory, clock=self.clock, watch=watch)
        self.fleet = Fleet(self.engine, config, self.addresses)
        self._mergers: dict[Hashable, RequestMerger] = {}
        self._list_limits = LearnedLimits()
        self.dialects = DialectFinder()
        self.engine.watch_over(self.fleet.sources, self._list_limits.apply_probe)
        self._sharing = Sharing(self.engine, self.fleet.sources)
        self.prices: dict[str, tuple[float, float]] = {}
        self._set_settings()
        self.look = SnapshotMaker(self.engine, self.fleet.sources, self.prices)
        self.engine.stalls = StallWatch(self.look.pools, self.look.reasons.values)
        self.addresses.follow()
        if self.telemetry is not None:
            self.telemetry.instruments.observe(self)
        if "QREWARD_LIVE" in os.environ:
            from qreward.live.channel import show_if_wanted  # noqa: PLC0415 - most programs show themselves to nobody

            show_if_wanted(self)

    def _restart(self) -> object:
        inherited = self.engine, self.fleet, self._sharing
        self._sharing.close_transports()  # the child's open files are copies of the parent's files
        self._changing = threading.Lock()
        self.addresses.start_again()
        self._start(self.config)
        return inherited

    # settings and state

    @property
    def config(self) -> ClientConfig:
        """The current settings, including endpoints and routes that were added later."""
        return self.fleet.config

    @property
    def closed(self) -> bool:
        return self.engine.closed

    def explain(self, model: str | None = None) -> list[Explanation]:
        if model is None:
            return self.look.explain()
        try:
            return self.look.explain([self.fleet.pool(model)])
        except NoEndpoint as error:
            return [Explanation(model, "no_endpoint", str(error))]

    def reload(self, wanted: ClientConfig) -> frozenset[str]:
        """Replace the settings. Returns the names of the endpoints and settings that changed. Raises ``ConfigError`` for ``transport``."""
        if wanted.transport != self.config.transport:
            raise ConfigError("transport cannot change while the client is in use; make a new client")
        return self.change(self.fleet.reload, wanted)

    def _addresses_changed(self) -> None:
        self.change(self.fleet.refresh)

    def change(self, change: Callable[..., T], *arguments: Any) -> T:
        """Call a method of ``fleet`` that changes its configuration, and let everything else know of the change."""
        with self._changing:
            changed = change(*arguments)
            self._set_settings()
        self.addresses.follow()
        self.dialects.changed()
        self.engine.sources_changed()
        self._sharing.sources_changed()
        return changed

    def _set_settings(self) -> None:
        self._usual = options.request_options({}, self.config.timeout)
        for source in self.fleet.sources():  # the prices of removed endpoints are kept, for the cost of running batches
            endpoint = cast("Endpoint", source.endpoint)
            if endpoint.price is not None:
                self.prices[endpoint.name] = endpoint.price
            else:
                self.prices.pop(endpoint.name, None)

    async def aclose(self) -> None:
        self.addresses.close()
        await self.engine.aclose()
        await self._sharing.aclose()

    # requests

    def request_options(self, given: Mapping[str, Any]) -> RequestOptions:
        return options.request_options(given, self.config.timeout) if given else self._usual

    def result_settings(self, given: Mapping[str, Any], pool: Pool, items: object, title: str) -> ResultSettings:
        """Check the options of :class:`~qreward.options.ResultOptions`, and start showing the progress of the batch."""
        # all prices, because an endpoint may be added while the batch runs; no prices if no endpoint of the pool has a price
        prices = self.prices if self.prices and any(source.name in self.prices for source in pool.sources) else {}
        if not given and PROGRESS not in os.environ:
            return ResultSettings(prices=prices)
        deadline, on_result = options.seconds("deadline", given.get("deadline")), options.callback("on_result", given.get("on_result"))
        keep = options.keeps_results(given)
        route, wanted = self.look.for_progress(lambda: [pool]), given.get("progress")
        progress = start_progress(wanted, size_of(items), title=title, route=route, prices=prices, clock=self.clock)
        return ResultSettings(deadline, on_result, progress, prices, keep)

    def batch(self, kind: Callable[..., Batch], prepare: Prepare, model: str, items: Items, given: Mapping[str, Any], **more: Any) -> Batch:
        """Make the waiter of a batch, whose class is ``kind``. Raises ``NoEndpoint`` and ``ConfigError``."""
        pool, request_options = self.fleet.pool(model), self.request_options(given)
        settings = self.result_settings(given, pool, items, model)
        return kind(self.engine.driver(), pool, items, prepare, request_options, settings, **more)

    def one(self, call: WireRequest, request_options: RequestOptions) -> Coroutine[Any, Any, Result[Any]]:
        """Return the coroutine that sends one request. Each caller of many holds one object less than with a coroutine of this method."""
        waiter = Single(self.engine.driver())
        return waiter.result(request_options.task(call, self.fleet.pool(call.model), waiter, 0))

    async def decide(self, call: WireRequest, request_options: RequestOptions) -> Decision:
        """Send one decision, in several requests if needed. If all requests fail, raises the error of the first request."""
        model, began, timeout = call.model, self.clock(), request_options.timeout
        pool, dialects = self.fleet.pool(model), self.dialects
        if model not in dialects.most:
            await dialects.find(self.engine.driver(), pool, model, timeout)
            if timeout is not None:
                left = timeout - (self.clock() - began)
                if left <= 0:
                    waited = f"no answer within the timeout of {timeout:g} s"
                    raise RequestTimeout(f"{waited}: which dialect of decisions {pool.name} speaks is not known yet")
                request_options = request_options._replace(timeout=left)
        most = partial(dialects.most_at, pool, model)
        if (count := len(call.inputs.questions)) <= most():
            result = await self.one(call, request_options)
            if result.error is None or not smaller(call, result.error, result.attempts, most()):
                return cast("Decision", result.value)
            count = (count + 1) // 2
        arguments = self.engine.driver(), pool, [call], lambda call: call, request_options, ResultSettings(timeout)
        batch = DecisionBatch(*arguments, most=lambda: min(most(), count), is_call=True)
        batch.began = began
        (result,) = await batch.run()
        if result.error is not None:
            raise with_trail(result.error, result.attempts)
        return cast("Decision", result.value)

    async def decide_many(self, prepare: Prepare, model: str, items: Items, given: Mapping[str, Any]) -> BatchResult[Decision]:
        """Send the decisions of a batch. The questions of a decision are divided among several requests if needed."""
        pool = self.fleet.pool(model)
        batch = self.batch(DecisionBatch, prepare, model, items, given, most=partial(self.dialects.most_at, pool, model))
        if model not in self.dialects.most:
            await self.dialects.find(batch.driver, pool, model, batch.deadline)
        return await batch.run()

    async def merged(self, spec: MergeSpec, calls: list[WireRequest], request_options: RequestOptions) -> list[Result[Any]]:
        """Send the items of one call, merged with items of other calls. Raises the error of the first item that failed."""
        pool = self.fleet.pool(spec.blank.model)
        if not calls:
            return []
        driver = self.engine.driver()
        waiter = ItemWaiter(driver)
        items = [MergedItem(call, pool, request_options, waiter, index) for index, call in enumerate(calls)]
        return await waiter.results(self._merger(driver, pool, spec, request_options.tenant, spec.key(calls[0])), items)

    def merged_many(self, spec: MergeSpec, items: Items, given: Mapping[str, Any]) -> Coroutine[Any, Any, BatchResult[Any]]:
        return self.batch(MergedBatchWaiter, spec.call, spec.blank.model, items, given, spec=spec, find=self._merger).run()

    def _merger(self, driver: LoopDriver, pool: Pool, spec: MergeSpec, tenant: str | None, key: Hashable) -> RequestMerger:
        """Return the merger of items that may share a request. The merger is created for the first item and removed after the last item."""
        mergers, place = self._mergers, (driver, pool, tenant, key)
        if place in mergers:
            return mergers[place]

        def remove() -> None:
            if mergers.get(place) is merger:
                del mergers[place]

        merger = RequestMerger(driver, pool, spec, tenant, self._list_limits, config=lambda: self.config, idle=remove)
        mergers[place] = merger
        return merger

    def stream(self, call: WireRequest, given: Mapping[str, Any]) -> Stream:
        """Return the stream of one request. Nothing is sent until the stream is used. Raises ``NoEndpoint``."""
        request_options = self.request_options({"on_interrupt": "raise", **given})
        self.fleet.pool(call.model)

        def begin() -> StreamWaiter:
            waiter = StreamWaiter(self.engine.driver())
            waiter.submit(request_options.task(call, self.fleet.pool(call.model), waiter, 0))
            return waiter

        return Stream(begin, restarts=request_options.restarts)

    def stream_many(self, prepare: Prepare, model: str, items: Items, given: Mapping[str, Any]) -> BatchStream:
        """Return the streams of many requests. Nothing is sent until the streams are used. Raises ``NoEndpoint``."""
        given = {"on_interrupt": "raise", **given}
        restarts = self.request_options(given).restarts
        most = options.count("max_concurrent_streams", given.get("max_concurrent_streams", 0))
        on_stream_error = options.callback("on_stream_error", given.get("on_stream_error"))
        options.seconds("deadline", given.get("deadline"))
        self.fleet.pool(model)
        begin = partial(self.batch, BatchStreamWaiter, prepare, model, items, given, most=most)
        return BatchStream(begin, on_stream_error, restarts=restarts)


def estimated(call: WireRequest) -> tuple[float, float]:
    try:
        prompt, most = call.codec.estimate_tokens(call)
    except Exception:
        return 0.0, 0.0  # the server says what is wrong with the parameters
    return max(0.0, prompt), max(0.0, most)


class Client(Protocol):
    """The type of a ``QRewardClient`` or a ``SyncQRewardClient``."""

    @property
    def _runtime(self) -> Runtime: ...


def runtime_of(client: Client) -> Runtime:
    return client._runtime


def _watching(telemetry: Any, observers: Any, clock: Callable[[], float]) -> tuple[Any, Instrumentation | None]:
    """Return the telemetry, and what notifies it and the observers (None if there are none)."""
    if isinstance(observers, str) or not isinstance(observers, Iterable):
        raise ConfigError(f"observers must be a list of observers, such as [MyObserver()], not {type(observers).__name__}")
    watchers: list[Watcher] = [ObserverWatcher(each) for each in observers]
    if telemetry is not None:
        from qreward.telemetry.spans import CallWatcher  # noqa: PLC0415 - OpenTelemetry takes a while to import
        from qreward.telemetry.telemetry import Telemetry  # noqa: PLC0415

        telemetry = Telemetry() if telemetry is DEFAULT else telemetry
        if not isinstance(telemetry, Telemetry):
            raise ConfigError(f"telemetry must be a Telemetry, or None for none, not {type(telemetry).__name__}")
        watchers.insert(0, CallWatcher(telemetry))
    return telemetry, Instrumentation(watchers, clock) if watchers else None


def tune_gc() -> None:
    """Make the cyclic garbage collector run less often: ``gc.set_threshold(50_000, 20, 100)``.

    With thousands of requests in flight and Python's default threshold (700), the collector repeatedly traverses live objects without
    finding garbage. This work slows down the package and the program. A library must not change the setting on its own, so call this
    function once at the start of a process that sends many requests. ``gc.set_threshold(700, 10, 10)`` restores the default.

    Example:
        >>> from qreward import tune_gc
        >>> tune_gc()
    """
    gc.set_threshold(50_000, 20, 100)
