"""``QRewardClient``, the asynchronous client and the main entry point of the package.

The client validates arguments, finds the route of a model and passes the request to the engine. It makes no scheduling decision itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack, cast

from qreward import options
from qreward.chat_namespace import OpenAINamespace
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.engine import background
from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import Wire
from qreward.engine.fleet import Fleet
from qreward.engine.instrumentation import watch_for
from qreward.engine.probing import ProbingEngine
from qreward.engine.single import Single
from qreward.engine.snapshots import ClientState, state_of, stats_of
from qreward.errors import ConfigError
from qreward.options import DEFAULT, Watching, preparer
from qreward.quota.renewal import Sharing
from qreward.quota.transports import LedgerTransports
from qreward.results import BatchResult, FleetStats, Result
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import RequestOptions
from qreward.scheduler.scheduler import Scheduler
from qreward.scoring.endpoint_limits import KnownLists
from qreward.scoring.merger import RequestMerger
from qreward.scoring.methods import RewardCalls, TextCalls
from qreward.settings.client import ClientConfig, config_from_env, load_config
from qreward.settings.policies import Endpoint, Hedge, LoadBalanceStrategy, Priority, Retry, Route
from qreward.streaming.methods import StreamMethods
from qreward.transport.backend import HttpBackend as HttpWire

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from qreward.progress import Progress
    from qreward.telemetry import Telemetry

    OnResult = Callable[[Result[Any]], object] | None
    OnProgress = bool | Callable[[Progress], object] | None


class QRewardClient(StreamMethods, RewardCalls, TextCalls, OpenAINamespace):
    """An asynchronous client that distributes requests over many endpoints.

    The client can be created without a running event loop, and used from several event loops and threads at once. Limits hold over all
    of them. A pickled client carries its configuration and its telemetry, but no observers. After a fork, the child process starts with
    the same configuration and no requests or connections.

    Args:
        endpoints: the endpoints that serve requests; at least one. Each is an ``Endpoint``, a mapping of its settings, or a URL.
        routes: which endpoints serve which models, in addition to each endpoint's ``models``.
        retry: when a failed request is sent again.
        hedge: when a request is also sent to a second endpoint while the first still works on it. None disables hedging.
        max_queued: number of single calls that may wait for a route. A further call fails with ``QueueFull``. None sets no limit.
        timeout: total seconds of a request, queueing included; default 600. None sets no limit. For the items of a batch, see
            :meth:`batch_chat_completion`.
        telemetry: what is recorded with OpenTelemetry; by default everything. Nothing is exported until an OpenTelemetry SDK is set up.
            None records nothing.
        observers: objects that receive an event for each step of a call; see :class:`~qreward.observers.Observer`.
        wire_factory: returns the HTTP backend of one event loop; for tests.
        clock: returns monotonic seconds; for tests in virtual time.

    Raises:
        ConfigError: a setting is invalid, or two endpoints have the same name.

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
        settings: dict[str, Any] = {"endpoints": options.endpoints(endpoints or ()), "routes": tuple(routes), "max_queued": max_queued}
        if retry is not None:
            settings["retry"] = retry
        for name, value in (("hedge", hedge), ("timeout", timeout)):
            if value is not DEFAULT:
                settings[name] = value
        self._begin(ClientConfig(**settings), wire_factory, clock, telemetry, observers)

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any] | ClientConfig, **watching: Unpack[Watching]) -> QRewardClient:
        """Create a client from a YAML, JSON or TOML file, or from a mapping.

        ``${VAR}`` in a string is replaced with the environment variable ``VAR``.

        Args:
            source: path of the file, a mapping of settings, or a ``ClientConfig``.
            watching: ``telemetry`` and ``observers``, as for :class:`QRewardClient`.

        Raises:
            ConfigError: the configuration is invalid. The message names the file, the setting and the correction.
        """
        return cls._from(source if isinstance(source, ClientConfig) else load_config(source), **watching)

    @classmethod
    def from_env(cls, **watching: Unpack[Watching]) -> QRewardClient:
        """Create a client from environment variables.

        ``QREWARD_CONFIG`` is the path of a configuration file. Without it, ``OPENAI_BASE_URL`` (or ``OPENAI_API_BASE``) and
        ``OPENAI_API_KEY`` define one endpoint.

        Args:
            watching: ``telemetry`` and ``observers``, as for :class:`QRewardClient`.

        Raises:
            ConfigError: none of the variables is set, or the configuration is invalid.
        """
        return cls._from(config_from_env(os.environ), **watching)

    @classmethod
    def _from(cls, config: ClientConfig, telemetry: Telemetry | None = DEFAULT, observers: Iterable[object] = ()) -> QRewardClient:
        client = cls.__new__(cls)
        client._begin(config, HttpWire, monotonic, telemetry, observers)
        return client

    def _begin(self, config: ClientConfig, wire_factory: Callable[[], Wire], clock: Callable[[], float], *watching: Any) -> None:
        self._config, self._clock, self._given = config, clock, (wire_factory, clock, *watching)
        self._telemetry, watcher, observers = options.watching(*watching)
        self._changing = threading.Lock()
        rng = Random()  # noqa: S311 - jitter, not secrets
        scheduler = Scheduler(config.retry, rng, options.tokens_of, config.hedge, config.max_queued)
        self._engine: ProbingEngine = ProbingEngine(scheduler, wire_factory, clock=clock, watch=watch_for(watcher, observers, clock))
        self._collectors: dict[Hashable, RequestMerger] = {}
        self._fleet: Fleet = Fleet(self._engine, config.endpoints, config.routes)
        self._lists = KnownLists()
        self._engine.watch_over(self._fleet.sources, self._lists.look)
        self._carriers = LedgerTransports()
        self._sharing = Sharing(self._engine, self._fleet.sources, self._carriers, self._carriers.__iter__)
        self._prices = {endpoint.name: endpoint.price for endpoint in config.endpoints if endpoint.price is not None}
        if self._telemetry is not None:
            self._telemetry.observe(self, QRewardClient._state)
        background.watch(self, QRewardClient._begin_again)

    def _begin_again(self) -> object:
        """Reset the client in a forked child process, which must not use the connections and tasks of its parent."""
        inherited = self._engine, self._fleet, self._sharing
        for carrier in self._carriers:  # the open files are copies of the parent's
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
        """Request one chat completion.

        Args:
            messages: the conversation, as in the OpenAI API: dicts, or message objects of the openai package.
            model: name of the model; selects the route.
            timeout: total seconds, queueing included. The default is the client's timeout; None sets no limit.
            priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``.
            hedge: False prevents the request from being sent to two endpoints at once.
            tenant: name of the party that the request is made for. Tenants that wait at the same priority receive equal shares of the
                endpoints.
            extra_headers: additional HTTP headers of this request.
            extra_body: additional members of the JSON body; they override ``params``.
            params: further members of the JSON body, such as ``temperature``, ``max_tokens`` and ``response_format``.

        Returns:
            The openai package's ``ChatCompletion``.

        Raises:
            RequestError: the request failed; see the subclasses. ``attempts`` holds every attempt. A response that the server aborted or
                filtered raises ``InvalidResponse``. A response that was cut off at its token limit is returned with the
                ``finish_reason`` ``"length"``.
            Rejected: the client ended the request: its queue is full, every endpoint of the route is marked unhealthy, or the client was
                closed.
            NoEndpoint: no route matches the model.
            ConfigError: an argument is invalid. Nothing was sent.
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
        """Request many chat completions, distributed over all endpoints of the route.

        Args:
            batch_messages: the conversations, as a list, an iterator or an async iterator. It is read no faster than its items are sent.
            model: name of the model; selects the route.
            timeout: seconds of one item, measured from when an endpoint takes it. The default is the client's timeout. If no endpoint of
                the route responds for this long, all waiting items fail with ``RequestTimeout``.
            deadline: seconds of the whole batch. Items without a result by then fail with ``DeadlineExceeded``.
            priority: 0 (most urgent) to 9, or ``"high"``, ``"normal"``, ``"low"``.
            hedge, tenant: as in :meth:`chat_completion`.
            on_result: function called in the event loop with each ``Result`` as soon as it is known.
            progress: True shows a progress bar, or writes lines to the log. A function is called repeatedly with a
                :class:`~qreward.progress.Progress`. See :func:`~qreward.progress.start_progress`.
            keep_results: False returns only the statistics, so that memory does not grow with the number of items.
            extra_headers, extra_body, params: as in :meth:`chat_completion`.

        Returns:
            Results in the order of the input. A failed item is a ``Result`` with an error.

        Raises:
            NoEndpoint, ConfigError: raised before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised an ``Exception``, which is the ``__cause__``. Requests already sent were
                finished first, and the exception holds the results. Any other ``BaseException``, such as ``KeyboardInterrupt``, cancels
                the requests and is raised unchanged.

        Example:
            >>> async def judge(client, conversations):
            ...     batch = await client.batch_chat_completion(conversations, model="judge-7b", temperature=0)
            ...     return batch.texts(default="")
        """
        prepare = preparer(CHAT, model, params, extra_headers, extra_body)
        items, terms = options.items("batch_messages", batch_messages), self._terms(timeout, priority, hedge, tenant)
        return await self._many(items, prepare, model, terms, deadline, on_result, progress, keep_results)

    # changing endpoints and routes

    def register_model_route(
        self,
        pattern: str,
        endpoints: Iterable[str],
        *,
        strategy: LoadBalanceStrategy | str = LoadBalanceStrategy.EXPECTED_FINISH,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Add a route, or replace the route with the same pattern.

        A model uses the route with its exact name. Without one, it uses the most specific glob that matches.

        Args:
            pattern: name of a model, or a glob.
            endpoints: names of the endpoints that serve the matching models.
            strategy: how an endpoint is chosen; see :class:`~qreward.settings.policies.LoadBalanceStrategy`.
            weights: endpoint name -> weight; see :class:`~qreward.settings.policies.Route`.

        Raises:
            ConfigError: the pattern is invalid, an endpoint is unknown, or a weight names an endpoint that is not listed.
        """
        if isinstance(endpoints, str):
            raise ConfigError(f"endpoints must be a list of names, such as [{endpoints!r}]")
        chosen = cast("LoadBalanceStrategy", strategy)  # ``Route`` also accepts a string, and checks it
        route = Route(pattern=pattern, endpoints=tuple(endpoints), strategy=chosen, weights=dict(weights or {}))
        with self._changing:
            self._fleet.register(route)

    def list_routes(self) -> list[Route]:
        """Return all routes in the order in which they are matched, including those from the endpoints' ``models``."""
        return self._fleet.routes()

    def add_endpoint(self, endpoint: Endpoint | Mapping[str, Any] | str) -> None:
        """Add an endpoint. Requests that already wait for its models can use it at once.

        Raises:
            ConfigError: a setting is invalid, or another endpoint has the same name.
        """
        added = options.endpoint(endpoint)
        with self._changing:
            self._fleet.add(added)
            self._prices.pop(added.name, None)  # of a removed endpoint; kept until now for the cost of running batches
            if added.price is not None:
                self._prices[added.name] = added.price
        self._look_around()

    def remove_endpoint(self, name: str) -> None:
        """Remove an endpoint.

        Requests in flight at the endpoint are finished; then its connections are closed. Waiting requests go to other endpoints, or fail
        with ``NoEndpoint`` if there are none.

        Raises:
            ConfigError: no endpoint has this name.
        """
        with self._changing:
            self._fleet.remove(name)

    def reload(self, config: str | Path | Mapping[str, Any] | ClientConfig) -> frozenset[str]:
        """Replace the configuration while the client is in use.

        Args:
            config: path of a file, a mapping of settings, or a ``ClientConfig``.

        Returns:
            Names of the endpoints that were added, removed or changed, names of the settings that changed, and ``"routes"`` if a route
            changed.

        Raises:
            ConfigError: the configuration is invalid. Nothing was changed.
        """
        wanted = config if isinstance(config, ClientConfig) else load_config(config)
        with self._changing:
            changed, self._config = self._fleet.reload(self.config, wanted, self._prices), wanted
        self._look_around()
        return changed

    def mark_unhealthy(self, name: str) -> None:
        """Send no requests to an endpoint until :meth:`mark_healthy` is called. Raises ``ConfigError`` for an unknown name."""
        self._fleet.mark(name, down=True)

    def mark_healthy(self, name: str) -> None:
        """Return an endpoint to service and clear its record of failures.

        This applies to an endpoint taken out of service by :meth:`mark_unhealthy` or by the circuit breaker. Raises ``ConfigError`` for an
        unknown name.
        """
        self._fleet.mark(name, down=False)

    @property
    def config(self) -> ClientConfig:
        """The current configuration, including changes made since the client was created."""
        registered = tuple(route for route in self._fleet.routes() if self._fleet.is_registered(route))
        endpoints = tuple(cast("Endpoint", source.handle) for source in self._fleet.sources())
        return self._config.model_copy(update={"endpoints": endpoints, "routes": registered})

    def stats(self) -> FleetStats:
        """Return counts and latencies of each endpoint since the client was created, and its current state.

        Latencies cover about the last thousand responses of an endpoint.
        """
        now = self._clock()
        return FleetStats((source.name, stats_of(source, now)) for source in self._fleet.sources())

    async def aclose(self) -> None:
        """Close all connections and fail unfinished requests with ``ClientClosed``. The client cannot be used afterwards."""
        await self._engine.aclose()
        await self._sharing.aclose()

    if not TYPE_CHECKING:  # type checkers must report ``with`` as an error

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

    # from the public methods to the engine

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
            deadline=options.seconds("deadline", deadline),
            on_result=options.callback("on_result", on_result),
            **self._reporting(pool, model, items, progress),
            keep=keep,
        )
        return await bulk.run()

    def _reporting(self, pool: Pool, model: str, items: object, progress: OnProgress) -> dict[str, Any]:
        return options.reporting(progress, pool, items, model, self._prices, self._clock)

    def _look_around(self) -> None:
        self._engine.look_around()
        self._sharing.look_around()

    def _state(self) -> ClientState:
        return state_of(self._engine, self._fleet.sources(), self._config.max_queued)

    def _terms(self, timeout: float | None, priority: int | str, hedge: bool, tenant: str | None) -> RequestOptions:
        seconds = self._config.timeout if timeout is DEFAULT else options.seconds("timeout", timeout)
        return options.terms(seconds, priority, hedge, tenant)
