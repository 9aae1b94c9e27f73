"""The client: what people call. Validates, finds the route, hands the work to the engine; decides nothing itself."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack, cast

from qreward import options as arguments
from qreward.chat_namespace import OpenAIFace
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.engine import background as forks
from qreward.engine.batch import BatchWaiter
from qreward.engine.fleet import LiveFleet
from qreward.engine.instrumentation import watch_for
from qreward.engine.probing import ProbingEngine
from qreward.engine.protocols import Wire
from qreward.engine.single import Single
from qreward.engine.snapshots import State, state_of, stats_of
from qreward.errors import ConfigError
from qreward.options import DEFAULT, Watching, preparer
from qreward.quota.renewal import Sharing
from qreward.quota.transports import Carriers
from qreward.results import BatchResult, FleetStats, Result
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import RequestOptions
from qreward.scheduler.scheduler import Scheduler
from qreward.scoring.endpoint_limits import KnownLists
from qreward.scoring.merger import RequestMerger
from qreward.scoring.methods import RewardCalls, TextCalls
from qreward.settings.client import ClientConfig, config_from_env, load_config
from qreward.settings.policies import Endpoint, Hedge, LoadBalanceStrategy, Priority, Retry, Route
from qreward.streaming.methods import StreamCalls
from qreward.transport.backend import HttpBackend as HttpWire

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from qreward.progress import Progress
    from qreward.telemetry import Telemetry

    OnResult = Callable[[Result[Any]], object] | None
    OnProgress = bool | Callable[[Progress], object] | None


class QRewardClient(StreamCalls, RewardCalls, TextCalls, OpenAIFace):
    """One client over many endpoints.

    Needs no running loop to be made. May be used from several event loops and threads at once: limits hold over all of
    them. Pickles by its configuration; after a fork the child starts anew with it.

    Args:
        endpoints: where requests may go; at least one.
        routes: which of them serve which models, beyond what each endpoint's ``models`` says.
        retry: when a failed request is tried again.
        hedge: when a request is sent to a second endpoint while the first still works on it; None is never.
        max_queued: single calls that may wait for a route; one more ends with ``QueueFull``. None is any number.
        timeout: seconds a request may take in all, queueing included; None waits for ever. Default 600. For an item of a batch see
            :meth:`batch_chat_completion`.
        telemetry: what OpenTelemetry is told, by default all, of which nothing is seen until an SDK is set up; None is nothing.
        observers: are told each event; see :class:`~qreward.observers.Observer`.
        wire_factory: makes what carries the requests of one event loop; for tests.
        clock: monotonic seconds; for tests in virtual time.

    Raises:
        ConfigError: a setting is wrong, or two endpoints have one name.

    Example:
        >>> from qreward import Endpoint, QRewardClient
        >>> client = QRewardClient([Endpoint("http://gpu-0:8000/v1", name="gpu-0", models=["judge-*"])])
        >>> client.list_routes()[0].pattern
        'judge-*'
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint | Mapping[str, Any] | str] | None = None,
        *,
        routes: Iterable[Route] = (),
        retry: Retry | None = None,
        hedge: Hedge | None = DEFAULT,
        max_queued: int | None = None,
        timeout: float | None = DEFAULT,
        telemetry: Telemetry | None = DEFAULT,
        observers: Iterable[object] = (),
        wire_factory: Callable[[], Wire] = HttpWire,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        settings: dict[str, Any] = {"endpoints": arguments.endpoints(endpoints or ()), "routes": tuple(routes), "max_queued": max_queued}
        if retry is not None:
            settings["retry"] = retry
        for name, value in (("hedge", hedge), ("timeout", timeout)):
            if value is not DEFAULT:
                settings[name] = value
        self._begin(ClientConfig(**settings), wire_factory, clock, telemetry, observers)

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any] | ClientConfig, **watching: Unpack[Watching]) -> QRewardClient:
        """A client from a YAML, JSON or TOML file, or a mapping. ``${VAR}`` in texts is read from the environment.

        Raises:
            ConfigError: with the file, the place, and what to change.
        """
        return cls._from(source if isinstance(source, ClientConfig) else load_config(source), **watching)

    @classmethod
    def from_env(cls, **watching: Unpack[Watching]) -> QRewardClient:
        """A client from ``QREWARD_CONFIG`` (a file), or ``OPENAI_BASE_URL`` / ``OPENAI_API_BASE`` and ``OPENAI_API_KEY``.

        Raises:
            ConfigError: none of them is set, or the file is wrong.
        """
        return cls._from(config_from_env(os.environ), **watching)

    @classmethod
    def _from(cls, config: ClientConfig, telemetry: Telemetry | None = DEFAULT, observers: Iterable[object] = ()) -> QRewardClient:
        client = cls.__new__(cls)
        client._begin(config, HttpWire, monotonic, telemetry, observers)
        return client

    def _begin(self, config: ClientConfig, wire_factory: Callable[[], Wire], clock: Callable[[], float], *watching: Any) -> None:
        self._config, self._clock, self._given = config, clock, (wire_factory, clock, *watching)
        self._telemetry, watcher, observers = arguments.watching(*watching)
        self._changing = threading.Lock()
        rng = Random()  # noqa: S311 - jitter, not secrets
        scheduler = Scheduler(config.retry, rng, arguments.tokens_of, config.hedge, config.max_queued)
        self._engine: ProbingEngine = ProbingEngine(scheduler, wire_factory, clock=clock, watch=watch_for(watcher, observers, clock))
        self._collectors: dict[Hashable, RequestMerger] = {}
        self._fleet: LiveFleet = LiveFleet(self._engine, config.endpoints, config.routes)
        self._lists = KnownLists()
        self._engine.watch_over(self._fleet.sources, self._lists.look)
        self._carriers = Carriers()
        self._sharing = Sharing(self._engine, self._fleet.sources, self._carriers, self._carriers.__iter__)
        self._prices = {endpoint.name: endpoint.price for endpoint in config.endpoints if endpoint.price is not None}
        if self._telemetry is not None:
            self._telemetry.observe(self, QRewardClient._state)
        forks.watch(self, QRewardClient._begin_again)

    def _begin_again(self) -> object:
        """In a forked child: the parent's connections and tasks are not ours."""
        inherited = self._engine, self._fleet, self._sharing
        for carrier in self._carriers:  # its open files are copies of the parent's
            carrier.close()
        self._begin(self.config, *self._given)
        return inherited

    # requests

    async def chat_completion(
        self,
        messages: Iterable[Any],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> ChatCompletion:
        """One chat completion.

        Args:
            messages: the conversation, as in the OpenAI API: dicts, or openai's message objects.
            model: chooses the route.
            timeout: seconds in all, queueing included; the client's by default, None waits for ever.
            priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``.
            hedge: False for a request that must not be sent to two endpoints at once.
            tenant: on whose behalf; tenants that wait at the same priority get equal shares of the fleet.
            extra_headers: sent with this request.
            extra_body: goes into the JSON body, over ``params``.
            params: goes into the JSON body: ``temperature``, ``max_tokens``, ``response_format``, anything.

        Returns:
            openai's ``ChatCompletion``.

        Raises:
            RequestError: see its subclasses; with the trail of attempts. An answer that the server aborted or filtered is
                ``InvalidResponse``; one that was cut off at its token limit is returned, and its ``finish_reason`` says so.
            NoEndpoint: no route matches the model.
            ConfigError: an argument is wrong; nothing was sent.
        """
        call = preparer(CHAT, model, params, extra_headers, extra_body)(messages)
        return cast("ChatCompletion", await self._one(call, model, self._terms(timeout, priority, hedge, tenant)))

    async def batch_chat_completion(
        self,
        batch_messages: Iterable[Iterable[Any]] | AsyncIterable[Iterable[Any]],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        on_result: OnResult = None,
        progress: OnProgress = None,
        keep_results: bool = True,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> BatchResult[ChatCompletion]:
        """Many chat completions over all endpoints of the route, as fast as they can.

        Args:
            batch_messages: conversations: a list, an iterator or an async iterator; read no faster than they are sent.
            model: chooses the route.
            timeout: seconds per item, from when an endpoint takes it; the client's by default. When no endpoint of the route is alive
                for so long, all items that wait fail with ``RequestTimeout``.
            deadline: seconds for the whole batch; what is missing then comes back as ``DeadlineExceeded``.
            priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``.
            hedge, tenant: as in :meth:`chat_completion`.
            on_result: called with each ``Result`` as soon as it is there, in the event loop.
            progress: True shows a bar, or lines in the log; a function is called with a
                :class:`~qreward.progress.Progress` now and then. See :func:`~qreward.progress.start_progress`.
            keep_results: False returns only the statistics, so that any number of items takes constant memory.
            extra_headers, extra_body, params: as in :meth:`chat_completion`.

        Returns:
            Results in the order of the input; a failed item is a ``Result`` with an error.

        Raises:
            NoEndpoint, ConfigError: before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised an ``Exception`` (the ``__cause__``). What had been sent was finished first;
                it holds the results. Any other ``BaseException``, such as ``KeyboardInterrupt``, cancels what had been sent and is raised.

        Example:
            >>> async def judge(client, conversations):
            ...     batch = await client.batch_chat_completion(conversations, model="judge-7b", temperature=0)
            ...     return batch.texts(default="")
        """
        prepare = preparer(CHAT, model, params, extra_headers, extra_body)
        items, terms = arguments.items("batch_messages", batch_messages), self._terms(timeout, priority, hedge, tenant)
        return await self._many(items, prepare, model, terms, deadline, on_result, progress, keep_results)

    # the fleet, live

    def register_model_route(
        self,
        pattern: str,
        endpoints: Iterable[str],
        *,
        strategy: LoadBalanceStrategy | str = LoadBalanceStrategy.EXPECTED_FINISH,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Send the models that match ``pattern`` to these endpoints. Replaces the route with the same pattern.

        An exact name goes before globs, the most specific glob before the others.

        Raises:
            ConfigError: a bad pattern, an unknown endpoint, a weight for an endpoint that is not listed.
        """
        if isinstance(endpoints, str):
            raise ConfigError(f"endpoints must be a list of names, such as [{endpoints!r}]")
        chosen = cast("LoadBalanceStrategy", strategy)  # a text is taken too, and checked
        route = Route(pattern=pattern, endpoints=tuple(endpoints), strategy=chosen, weights=dict(weights or {}))
        with self._changing:
            self._fleet.register(route)

    def list_routes(self) -> list[Route]:
        """All routes in the order they are tried, those of the endpoints' own ``models`` among them."""
        return self._fleet.routes()

    def add_endpoint(self, endpoint: Endpoint | Mapping[str, Any] | str) -> None:
        """Add an endpoint; work that waits for its models reaches it at once. Raises ``ConfigError`` if its name is taken."""
        added = arguments.endpoint(endpoint)
        with self._changing:
            self._fleet.add(added)
            self._prices.pop(added.name, None)  # of one that was removed; until then it is kept, for batches it had a part in
            if added.price is not None:
                self._prices[added.name] = added.price
        self._look_around()

    def remove_endpoint(self, name: str) -> None:
        """Remove an endpoint; what waits goes elsewhere or fails with ``NoEndpoint``.

        What it has in flight is finished; then its connections are closed.
        """
        with self._changing:
            self._fleet.remove(name)

    def reload(self, config: str | Path | Mapping[str, Any] | ClientConfig) -> frozenset[str]:
        """Take over another configuration live, or raise ``ConfigError`` and change nothing. Returns the names of what changed."""
        wanted = config if isinstance(config, ClientConfig) else load_config(config)
        with self._changing:
            changed, self._config = self._fleet.reload(self.config, wanted, self._prices), wanted
        self._look_around()
        return changed

    def mark_unhealthy(self, name: str) -> None:
        """Send nothing to an endpoint until :meth:`mark_healthy`."""
        self._fleet.mark(name, down=True)

    def mark_healthy(self, name: str) -> None:
        """Bring an endpoint back with a clean record, whoever took it out."""
        self._fleet.mark(name, down=False)

    @property
    def config(self) -> ClientConfig:
        """The configuration as it is now, changes made live included."""
        registered = tuple(route for route in self._fleet.routes() if self._fleet.is_registered(route))
        endpoints = tuple(cast("Endpoint", source.handle) for source in self._fleet.sources())
        return self._config.model_copy(update={"endpoints": endpoints, "routes": registered})

    def stats(self) -> FleetStats:
        """What each endpoint did since the client was made (latencies are over its last thousand answers), and where it stands now."""
        now = self._clock()
        return FleetStats((source.name, stats_of(source, now)) for source in self._fleet.sources())

    async def aclose(self) -> None:
        """End what is under way with ``ClientClosed`` and close all connections. The client cannot be used afterwards."""
        await self._engine.aclose()
        await self._sharing.aclose()

    if not TYPE_CHECKING:  # type checkers are to see that it cannot be used so

        def __enter__(self) -> None:
            raise TypeError("QRewardClient is asynchronous: use `async with`, or SyncQRewardClient with `with`")

        __exit__ = __enter__

    async def __aenter__(self) -> QRewardClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return QRewardClient._from, (self.config, self._telemetry)

    def __repr__(self) -> str:
        return f"<QRewardClient {', '.join(map(repr, self._fleet.sources()))}>"

    # between the two

    async def _one(self, call: WireRequest, model: str, terms: RequestOptions) -> Any:
        shell = self._engine.shell()
        sink = Single(shell)
        return (await sink.result(terms.task(call, self._fleet.pool(model), sink, 0))).value

    async def _many(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        prepare: Callable[[Any], WireRequest],
        model: str,
        terms: RequestOptions,
        deadline: float | None,
        on_result: OnResult,
        progress: OnProgress,
        keep: bool,
    ) -> BatchResult[Any]:
        pool = self._fleet.pool(model)
        bulk = BatchWaiter(
            self._engine.shell(),
            pool,
            items,
            prepare,
            terms=terms,
            deadline=arguments.seconds("deadline", deadline),
            on_result=arguments.callback("on_result", on_result),
            **self._reporting(pool, model, items, progress),
            keep=keep,
        )
        return await bulk.run()

    def _reporting(self, pool: Pool, model: str, items: object, progress: OnProgress) -> dict[str, Any]:
        return arguments.reporting(progress, pool, items, model, self._prices, self._clock)

    def _look_around(self) -> None:
        self._engine.look_around()
        self._sharing.look_around()

    def _state(self) -> State:
        return state_of(self._engine, self._fleet.sources(), self._config.max_queued)

    def _terms(self, timeout: float | None, priority: int | str, hedge: bool, tenant: str | None) -> RequestOptions:
        seconds = self._config.timeout if timeout is DEFAULT else arguments.seconds("timeout", timeout)
        return arguments.terms(seconds, priority, hedge, tenant)
