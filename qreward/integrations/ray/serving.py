"""A scorer as a deployment of Ray Serve."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from qreward.batching.reward_buffer import BatchAnswer, RewardBuffer, ScoreResult, SingletonAnswer
from qreward.errors import ConfigError
from qreward.integrations.ray.pool import CALL, INSTALL, ScorerSpec, close_scorer, require_ray
from qreward.server import ServerConfig, create_app

_REPLICAS: dict[str, Replica] = {}
"""Key of an :class:`AsgiProxy` -> the replica that it calls. A process usually has one replica."""


def deployment(
    scorer: Any,
    *,
    name: str = "reward",
    num_replicas: int | str | None = None,
    max_ongoing_requests: int | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
    autoscaling_config: Any = None,
    init_args: Sequence[Any] = (),
    init_kwargs: Mapping[str, Any] | None = None,
    factory: bool = False,
    method: str = CALL,
    serve_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return an application for ``serve.run`` that scores in batches.

    Over HTTP, the application has the routes of ``qreward serve``. Through a handle, ``handle.score.remote(completions, metadata)`` returns
    one ``ScoreResult`` for each completion, and ``handle.add_query.remote(query)`` scores the completions of one query.

    Args:
        scorer, init_args, init_kwargs, factory, method: as for :class:`~qreward.integrations.ray.ScorerPool`, once in each replica.
        name, num_replicas, ray_actor_options, autoscaling_config, serve_options: as in ``serve.deployment``.
        max_ongoing_requests: maximum number of requests that a replica receives at once, and forms batches of.
        settings: as in :class:`~qreward.server.ServerConfig`. A ``${VAR}`` is resolved in the replica.

    Raises:
        TypeError: the scorer cannot be called.
        ConfigError: a setting is unknown or wrong.
        ModuleNotFoundError: Ray Serve is not installed.

    Example:
        serve.run(deployment(RewardModel, num_replicas=2, max_batch_size=32), route_prefix="/")
    """
    require_ray()
    try:
        serve = importlib.import_module("ray.serve")
    except ImportError as error:
        raise ModuleNotFoundError(f"{error}; a deployment needs Ray Serve: {INSTALL}", name="ray.serve") from error
    spec = ScorerSpec(scorer, tuple(init_args), dict(init_kwargs or {}), factory, method)
    if wrong := [name for name in ("host", "port") if name in settings]:
        raise ConfigError(f"{wrong[0]} cannot be set here; use serve.start(http_options=...)")
    config = ServerConfig(**{key: value for key, value in settings.items() if key != "token"})  # a token may be known only in the replica
    ongoing = max(100, 2 * config.max_batch_size * config.max_concurrent_batches)
    options = {"name": name, "max_ongoing_requests": max_ongoing_requests or ongoing}
    given = {"num_replicas": num_replicas, "ray_actor_options": ray_actor_options, "autoscaling_config": autoscaling_config}
    options |= {key: value for key, value in given.items() if value is not None} | dict(serve_options or {})
    proxy = AsgiProxy(uuid4().hex)
    return serve.deployment(**options)(serve.ingress(proxy)(Replica)).bind(spec, settings, proxy.key)


class AsgiProxy:
    """An ASGI app for Serve, which wants one before the replica exists. It is pickled, and calls the app of its replica there."""

    def __init__(self, key: str) -> None:
        self.key = key

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        replica = _REPLICAS[self.key]
        await replica.asgi(scope, receive, partial(replica.forward_lifespan, send) if scope["type"] == "lifespan" else send)


class Replica:
    def __init__(self, spec: ScorerSpec, settings: Mapping[str, Any], key: str) -> None:
        self._made = spec.make()
        self.asgi = create_app(spec.function(self._made), **settings)
        self._buffer: RewardBuffer = self.asgi.buffer
        _REPLICAS[key] = self

    async def score(self, completions: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None = None) -> list[ScoreResult]:
        scored = await self._buffer.score(completions, metadata)  # an exception may not be picklable; its text is in ``error``
        return [one if one.cause is None else ScoreResult(one.reward, one.error, one.meta, one.feedback) for one in scored]

    async def add_query(self, query: Any) -> SingletonAnswer | BatchAnswer:
        return await self._buffer.add_query(query)

    async def forward_lifespan(self, send: Any, message: Mapping[str, Any]) -> None:
        """Forward a lifespan message of the app to Serve. Before the message that completes the shutdown, call the scorer's ``close``."""
        if message["type"] == "lifespan.shutdown.complete" and (closing := close_scorer(self._made)) is not None:
            await closing
        await send(message)
