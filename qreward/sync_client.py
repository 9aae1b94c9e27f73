"""``SyncQRewardClient``, the blocking client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from qreward.chat_namespace import ChatNamespace, SyncCompletions
from qreward.client import QRewardClient
from qreward.engine.portal import BlockingTwin, blocking, forwarded, portal, same
from qreward.errors import ClientClosed
from qreward.options import ClientSettings, Watching, show_options
from qreward.runtime import Runtime
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Endpoint
from qreward.streaming import SyncBatchStream, SyncStream


class SyncQRewardClient(BlockingTwin[QRewardClient]):
    """A blocking client that distributes requests over many endpoints.

    The arguments, results and errors are the same as for :class:`QRewardClient`. The requests run in one background thread, which all
    blocking clients of the process share. A client may be used from many threads at once, and where an event loop runs, which is blocked
    during the call. The requests see the caller's context variables.

    Ctrl-C cancels the request. For a batch, a note on the ``KeyboardInterrupt`` contains the number of finished items. Their results were
    passed to ``on_result``. ``on_result`` and the input of a batch run in the background thread, so they should be fast. They must not
    call a blocking client: such a call raises ``RuntimeError``.

    Example:
        >>> from qreward import Endpoint, SyncQRewardClient
        >>> with SyncQRewardClient([Endpoint("http://gpu-0:8000/v1", models=["judge-*"])]) as client:
        ...     [route.pattern for route in client.list_routes()]
        ['judge-*']
    """

    def __init__(self, endpoints: Iterable[Endpoint | Mapping[str, Any] | str] | None = None, **settings: Unpack[ClientSettings]) -> None:
        self._async = QRewardClient(endpoints, **settings)

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
        self._async = client
        return self

    chat_completion = blocking(QRewardClient.chat_completion)
    batch_chat_completion = blocking(QRewardClient.batch_chat_completion)
    stream_chat_completion = forwarded(QRewardClient.stream_chat_completion, SyncStream)
    batch_stream_chat_completion = forwarded(QRewardClient.batch_stream_chat_completion, SyncBatchStream)
    score = blocking(QRewardClient.score)
    batch_score = blocking(QRewardClient.batch_score)
    classify = blocking(QRewardClient.classify)
    batch_classify = blocking(QRewardClient.batch_classify)
    rerank = blocking(QRewardClient.rerank)
    decide = blocking(QRewardClient.decide)
    batch_decide = blocking(QRewardClient.batch_decide)
    embeddings = blocking(QRewardClient.embeddings)
    batch_embeddings = blocking(QRewardClient.batch_embeddings)
    text_completion = blocking(QRewardClient.text_completion)
    batch_text_completion = blocking(QRewardClient.batch_text_completion)
    moderation = blocking(QRewardClient.moderation)
    batch_moderation = blocking(QRewardClient.batch_moderation)
    run = blocking(QRewardClient.run)

    register_model_route = forwarded(QRewardClient.register_model_route, same)
    list_routes = forwarded(QRewardClient.list_routes, same)
    add_endpoint = forwarded(QRewardClient.add_endpoint, same)
    remove_endpoint = forwarded(QRewardClient.remove_endpoint, same)
    reload = forwarded(QRewardClient.reload, same)
    mark_unhealthy = forwarded(QRewardClient.mark_unhealthy, same)
    mark_healthy = forwarded(QRewardClient.mark_healthy, same)
    live = forwarded(QRewardClient.live, same)
    pause = forwarded(QRewardClient.pause, same)
    resume = forwarded(QRewardClient.resume, same)
    stats = forwarded(QRewardClient.stats, same)
    explain = forwarded(QRewardClient.explain, same)
    snapshot = forwarded(QRewardClient.snapshot, same)
    trace = forwarded(QRewardClient.trace, same)

    @property
    def chat(self) -> ChatNamespace[SyncCompletions]:
        """``chat.completions.create(...)`` as in the openai SDK, for code written for the SDK's client."""
        return ChatNamespace(SyncCompletions(self._async.chat.completions))

    @property
    def config(self) -> ClientConfig:
        """The current configuration, including changes made since the client was created."""
        return self._async.config

    @property
    def _runtime(self) -> Runtime:
        return self._async._runtime

    def close(self) -> None:
        """Close all connections and fail unfinished requests of all threads with ``ClientClosed``. The client cannot be used afterwards."""
        with contextlib.suppress(ClientClosed):  # the process ends, and the portal has closed the connections
            portal().call(self._async.aclose)

    if not TYPE_CHECKING:  # type checkers must report ``async with`` as an error

        def __aenter__(self) -> None:
            raise TypeError("SyncQRewardClient blocks: use `with`, or QRewardClient with `async with`")

        __aexit__ = __aenter__

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncQRewardClient._over, (self._async,)


show_options(SyncQRewardClient)
