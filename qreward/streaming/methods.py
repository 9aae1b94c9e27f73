"""The client's streaming methods. They validate arguments and find the route; nothing is sent before the stream is used."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from qreward import options
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.engine.driver import Engine
from qreward.engine.fleet import Fleet
from qreward.engine.stream_batch import BatchStreamSink
from qreward.engine.stream_sink import Outlet
from qreward.errors import ConfigError
from qreward.options import DEFAULT, preparer
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.state import RequestOptions
from qreward.settings.policies import Priority
from qreward.streaming.handles import BatchStream, OnStreamError, Stream

if TYPE_CHECKING:
    from qreward.progress import Progress

    OnProgress = bool | Callable[[Progress], object] | None

OnInterrupt = Literal["raise", "restart"]


class StreamMethods:
    """The streaming methods of ``QRewardClient``."""

    _engine: Engine[Scheduler]
    _fleet: Fleet
    _terms: Callable[..., RequestOptions]
    _reporting: Callable[..., dict[str, Any]]

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
    ) -> Stream:
        """Stream one chat completion token by token.

        Until the first token it is handled like any other request: it waits for a slot, fails over and may be hedged. An attempt is
        ended when its first token, or a pause between tokens, takes far longer than is usual for streams of that endpoint.

        Args:
            messages, model, priority, tenant: as in :meth:`chat_completion`.
            timeout: seconds for the whole stream, including queueing and time in which the caller does not read. Defaults to the client's.
            hedge: False for a request that must not be sent to two endpoints at once. Streams are hedged only before the first token.
            on_interrupt: what happens if the stream breaks off after the first token. ``"raise"`` ends it with ``StreamInterrupted``.
                ``"restart"`` starts the answer over, within the limits of :class:`Retry`; read it with ``events()`` or ``final()``.
            extra_headers, extra_body, params: as in :meth:`chat_completion`. Usage is requested unless ``stream_options`` is given.

        Returns:
            A :class:`Stream`. Nothing is sent until it is used.

        Raises:
            NoEndpoint, ConfigError, BadRequest: immediately. All other errors are raised where the stream is read.

        Example:
            >>> async def ask(client, messages):
            ...     async for token in client.stream_chat_completion(messages, model="judge-7b"):
            ...         print(token, end="")
        """
        call = preparer(CHAT, model, params, extra_headers, extra_body)(messages)
        restarts = _restarts(on_interrupt)
        return self._stream(call, self._terms(timeout, priority, hedge, tenant)._replace(restarts=restarts))

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
    ) -> BatchStream:
        """Stream many chat completions over all endpoints of the route, token by token.

        Args:
            batch_messages: a list, an iterator or an async iterator of conversations. It is read no faster than requests are sent.
            model: model name; selects the route.
            max_concurrent_streams: maximum number of concurrent streams; 0 for as many as the endpoints accept.
            on_stream_error: called with the index and error of each failed stream after its last token was read. The other streams
                continue. An exception that it raises ends the iteration.
            on_interrupt: as in :meth:`stream_chat_completion`.
            timeout, deadline, priority, hedge, tenant, progress, keep_results: as in :meth:`batch_chat_completion`.
            extra_headers, extra_body, params: as in :meth:`chat_completion`.

        Returns:
            A :class:`BatchStream`. Nothing is sent until it is used.

        Raises:
            NoEndpoint, ConfigError: immediately. The error of an item is in its result.

        Example:
            >>> async def ask(client, conversations):
            ...     async for index, token in client.batch_stream_chat_completion(conversations, model="judge-7b"):
            ...         print(index, token)
        """
        prepare = preparer(CHAT, model, params, extra_headers, extra_body)
        items = options.items("batch_messages", batch_messages)
        restarts = _restarts(on_interrupt)
        settings = {
            "terms": self._terms(timeout, priority, hedge, tenant)._replace(restarts=restarts, streamed=True),
            "deadline": options.seconds("deadline", deadline),
            "keep": keep_results,
            "most": options.count("max_concurrent_streams", max_concurrent_streams),
        }
        failed = options.callback("on_stream_error", on_stream_error)
        self._fleet.pool(model)
        begin = partial(_begin_batch, self, items, prepare, model, progress, settings)
        return BatchStream(begin, failed, restarts=restarts)

    def _stream(self, call: WireRequest, terms: RequestOptions) -> Stream:
        """The stream of a validated request. Raises ``NoEndpoint``."""
        self._fleet.pool(call.model)
        return Stream(partial(_begin, self, call, terms._replace(streamed=True)), restarts=terms.restarts)


def _restarts(on_interrupt: object) -> bool:
    if on_interrupt not in ("raise", "restart"):
        raise ConfigError(f"on_interrupt must be 'raise' or 'restart', not {on_interrupt!r}")
    return on_interrupt == "restart"


def _begin(client: StreamMethods, call: WireRequest, terms: RequestOptions) -> Outlet:
    outlet = Outlet(client._engine.shell())
    outlet.submit(terms.task(call, client._fleet.pool(call.model), outlet, 0))
    return outlet


def _begin_batch(
    client: StreamMethods,
    items: Iterable[Any] | AsyncIterable[Any],
    prepare: Callable[[Any], WireRequest],
    model: str,
    progress: OnProgress,
    settings: dict[str, Any],
) -> BatchStreamSink:
    pool = client._fleet.pool(model)
    reporting = client._reporting(pool, model, items, progress)
    return BatchStreamSink(client._engine.shell(), pool, items, prepare, **reporting, **settings).launch()
