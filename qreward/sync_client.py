"""``SyncQRewardClient``, the blocking client.

Each method calls the method of :class:`~qreward.client.QRewardClient` with the same name and signature, through the portal: an event loop
in a background thread. The arguments are documented there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from qreward.chat_namespace import SyncOpenAINamespace
from qreward.client import QRewardClient
from qreward.codecs.rewards.answers import Score
from qreward.engine.driver import Wire
from qreward.engine.portal import portal
from qreward.errors import ClientClosed
from qreward.options import DEFAULT, Watching
from qreward.results import BatchResult, FleetStats
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint, Hedge, LoadBalanceStrategy, Priority, Retry, Route
from qreward.streaming.handles import OnStreamError
from qreward.streaming.methods import OnInterrupt
from qreward.streaming.sync import SyncBatchStream, SyncStream
from qreward.transport.backend import HttpBackend as HttpWire

if TYPE_CHECKING:
    from openai.types import CompletionChoice, CreateEmbeddingResponse, Moderation
    from openai.types.chat import ChatCompletion

    from qreward.client import OnProgress, OnResult
    from qreward.telemetry import Telemetry


class SyncRewardCalls:
    """The methods of ``SyncQRewardClient`` for rewards, labels, rankings and embeddings. Their items may share HTTP requests."""

    _client: QRewardClient

    def score(
        self,
        prompt: Any,
        response: str = DEFAULT,
        *,
        model: str,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Score:
        """Return the reward of one response. See :meth:`QRewardClient.score`."""
        return portal().call(
            self._client.score,
            prompt,
            response,
            model=model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_score(
        self,
        pairs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[Score]:
        """Return the rewards of many responses. See :meth:`QRewardClient.batch_score`, and for the input :meth:`batch_chat_completion`."""
        return portal().call(
            self._client.batch_score,
            pairs,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def classify(
        self,
        prompt: Any,
        response: str = DEFAULT,
        *,
        model: str,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> dict[str, float]:
        """Return the probability of each label for one item. See :meth:`QRewardClient.classify`."""
        return portal().call(
            self._client.classify,
            prompt,
            response,
            model=model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_classify(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[dict[str, float]]:
        """Return the probability of each label for many items. See :meth:`QRewardClient.batch_classify`."""
        return portal().call(
            self._client.batch_classify,
            items,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> list[float]:
        """Return the relevance of each document to the query. See :meth:`QRewardClient.rerank`."""
        return portal().call(
            self._client.rerank,
            query,
            documents,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def embeddings(
        self,
        input: str | Iterable[Any],  # noqa: A002 - the API's name
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> CreateEmbeddingResponse:
        """Request the embeddings of one input. See :meth:`QRewardClient.embeddings`."""
        return portal().call(
            self._client.embeddings,
            input,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_embeddings(
        self,
        batch_input: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[CreateEmbeddingResponse]:
        """Request the embeddings of many inputs. See :meth:`QRewardClient.batch_embeddings`, and :meth:`batch_chat_completion`."""
        return portal().call(
            self._client.batch_embeddings,
            batch_input,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )


class SyncTextCalls:
    """The methods of ``SyncQRewardClient`` for legacy completions and moderations."""

    _client: QRewardClient

    def text_completion(
        self,
        prompt: str | Iterable[int],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> list[CompletionChoice]:
        """Request a legacy completion. See :meth:`QRewardClient.text_completion`."""
        return portal().call(
            self._client.text_completion,
            prompt,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_text_completion(
        self,
        prompts: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[list[CompletionChoice]]:
        """Request many legacy completions. See :meth:`QRewardClient.batch_text_completion`."""
        return portal().call(
            self._client.batch_text_completion,
            prompts,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def moderation(
        self,
        input: str | list[Any],  # noqa: A002 - the API's name
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Moderation:
        """Request the moderation of one input. See :meth:`QRewardClient.moderation`."""
        return portal().call(
            self._client.moderation,
            input,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_moderation(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[Moderation]:
        """Request the moderation of many inputs. See :meth:`QRewardClient.batch_moderation`."""
        return portal().call(
            self._client.batch_moderation,
            inputs,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )


class SyncQRewardClient(SyncRewardCalls, SyncTextCalls, SyncOpenAINamespace):
    """A blocking client that distributes requests over many endpoints.

    Arguments, results and errors are those of :class:`QRewardClient`. The requests run in one background thread, which all blocking clients
    of the process share. A client may be used from many threads at once. It may also be used where an event loop runs, such as in a
    notebook; the loop is blocked during the call. Context variables are passed on.

    Ctrl-C cancels the request. For a batch, a note on the ``KeyboardInterrupt`` contains the number of finished items, whose results were
    passed to ``on_result``. ``on_result`` and the input of a batch run in the background thread. They should be fast, and a blocking call
    made in them raises ``RuntimeError``.

    A pickled client carries its configuration and its telemetry, but no observers. After a fork, the child process starts with the same
    configuration and no requests or connections.

    Example:
        >>> from qreward import Endpoint, SyncQRewardClient
        >>> with SyncQRewardClient([Endpoint("http://gpu-0:8000/v1", models=["judge-*"])]) as client:
        ...     [route.pattern for route in client.list_routes()]
        ['judge-*']
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
        self._client = QRewardClient(
            endpoints,
            routes=routes,
            retry=retry,
            hedge=hedge,
            max_queued=max_queued,
            timeout=timeout,
            telemetry=telemetry,
            observers=observers,
            wire_factory=wire_factory,
            clock=clock,
        )

    @classmethod
    def from_config(cls, source: str | Path | Mapping[str, Any] | ClientConfig, **watching: Unpack[Watching]) -> SyncQRewardClient:
        """Create a client from a YAML, JSON or TOML file, or from a mapping. See :meth:`QRewardClient.from_config`."""
        return cls._over(QRewardClient.from_config(source, **watching))

    @classmethod
    def from_env(cls, **watching: Unpack[Watching]) -> SyncQRewardClient:
        """Create a client from environment variables. See :meth:`QRewardClient.from_env`."""
        return cls._over(QRewardClient.from_env(**watching))

    @classmethod
    def _over(cls, client: QRewardClient) -> SyncQRewardClient:
        self = cls.__new__(cls)
        self._client = client
        return self

    # chat completions

    def chat_completion(
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
        """Request one chat completion. See :meth:`QRewardClient.chat_completion`."""
        return portal().call(
            self._client.chat_completion,
            messages,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_chat_completion(
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
        """Request many chat completions. See :meth:`QRewardClient.batch_chat_completion`.

        ``batch_messages`` is read and ``on_result`` is called in the background thread. If they are slow, they delay all blocking clients.
        """
        return portal().call(
            self._client.batch_chat_completion,
            batch_messages,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def stream_chat_completion(
        self,
        messages: Iterable[Any],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        on_interrupt: OnInterrupt = "raise",
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> SyncStream:
        """Stream one chat completion. See :meth:`QRewardClient.stream_chat_completion`."""
        return SyncStream(
            self._client.stream_chat_completion(
                messages,
                model,
                timeout=timeout,
                priority=priority,
                hedge=hedge,
                tenant=tenant,
                on_interrupt=on_interrupt,
                extra_headers=extra_headers,
                extra_body=extra_body,
                **params,
            )
        )

    def batch_stream_chat_completion(
        self,
        batch_messages: Iterable[Iterable[Any]] | AsyncIterable[Iterable[Any]],
        model: str,
        *,
        max_concurrent_streams: int = 0,
        on_stream_error: OnStreamError = None,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        on_interrupt: OnInterrupt = "raise",
        progress: OnProgress = None,
        keep_results: bool = True,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> SyncBatchStream:
        """Stream many chat completions. See :meth:`QRewardClient.batch_stream_chat_completion`.

        ``batch_messages`` is read and ``on_stream_error`` is called in the background thread.
        """
        return SyncBatchStream(
            self._client.batch_stream_chat_completion(
                batch_messages,
                model,
                max_concurrent_streams=max_concurrent_streams,
                on_stream_error=on_stream_error,
                timeout=timeout,
                deadline=deadline,
                priority=priority,
                hedge=hedge,
                tenant=tenant,
                on_interrupt=on_interrupt,
                progress=progress,
                keep_results=keep_results,
                extra_headers=extra_headers,
                extra_body=extra_body,
                **params,
            )
        )

    # changing endpoints and routes

    def register_model_route(
        self,
        pattern: str,
        endpoints: Iterable[str],
        *,
        strategy: LoadBalanceStrategy | str = LoadBalanceStrategy.EXPECTED_FINISH,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Add a route, or replace the route with the same pattern. See :meth:`QRewardClient.register_model_route`."""
        self._client.register_model_route(pattern, endpoints, strategy=strategy, weights=weights)

    def list_routes(self) -> list[Route]:
        """Return all routes in the order in which they are matched."""
        return self._client.list_routes()

    def add_endpoint(self, endpoint: Endpoint | Mapping[str, Any] | str) -> None:
        """Add an endpoint. See :meth:`QRewardClient.add_endpoint`."""
        self._client.add_endpoint(endpoint)

    def remove_endpoint(self, name: str) -> None:
        """Remove an endpoint. See :meth:`QRewardClient.remove_endpoint`."""
        self._client.remove_endpoint(name)

    def reload(self, config: str | Path | Mapping[str, Any] | ClientConfig) -> frozenset[str]:
        """Replace the configuration while the client is in use. See :meth:`QRewardClient.reload`."""
        return self._client.reload(config)

    def mark_unhealthy(self, name: str) -> None:
        """Send no requests to an endpoint until :meth:`mark_healthy` is called. See :meth:`QRewardClient.mark_unhealthy`."""
        self._client.mark_unhealthy(name)

    def mark_healthy(self, name: str) -> None:
        """Return an endpoint to service and clear its record of failures. See :meth:`QRewardClient.mark_healthy`."""
        self._client.mark_healthy(name)

    @property
    def config(self) -> ClientConfig:
        """The current configuration, including changes made since the client was created."""
        return self._client.config

    def stats(self) -> FleetStats:
        """Return counts and latencies of each endpoint, and its current state. See :meth:`QRewardClient.stats`."""
        return self._client.stats()

    def close(self) -> None:
        """Close all connections and fail unfinished requests of all threads with ``ClientClosed``. The client cannot be used afterwards."""
        with contextlib.suppress(ClientClosed):  # the process ends, and the portal has closed the connections
            portal().call(self._client.aclose)

    def __enter__(self) -> SyncQRewardClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # type checkers must report ``async with`` as an error

        def __aenter__(self) -> None:
            raise TypeError("SyncQRewardClient blocks: use `with`, or QRewardClient with `async with`")

        __aexit__ = __aenter__

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncQRewardClient._over, (self._client,)

    def __repr__(self) -> str:
        return repr(self._client).replace("<", "<Sync", 1)
