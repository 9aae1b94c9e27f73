"""A scorer as a deployment of Ray Serve: our own queue in each replica, HTTP in the forms of the reward server, and a handle.

Of Ray it knows Serve only; the forms and the queue are ``qreward.server``'s, which a replica imports, and a caller need not have.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from qreward.batching.reward_buffer import BatchAnswer, RewardBuffer, Scored, SingletonAnswer
from qreward.errors import ConfigError
from qreward.integrations.ray.backends import CALL, INSTALL, Recipe, accepted, is_async, require_ray

_REPLICAS: dict[str, Replica] = {}
"""Those in this process, of which there is usually one, by the key of their door."""


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
    """An application for ``serve.run`` that scores in batches.

    Over HTTP it answers as ``qreward serve`` does (``/get_reward``, ``/classify``, ``/score``, ``/health``, ``/metrics``, ...). By
    handle there are ``handle.score.remote(completions, metadata)``, which gives a :class:`~qreward.batching.reward_buffer.Scored` for each
    completion, and ``handle.add_query.remote(query)``.

    Args:
        scorer: as for :class:`~qreward.integrations.ray.ScorerPool`; it is made once in each replica.
        name: of the deployment.
        num_replicas: how many; or ``auto``.
        max_ongoing_requests: requests that a replica is given at once; they are what its batches are made of. By default two full
            sets of batches, or 100 if that is more.
        ray_actor_options: of each replica, such as ``{"num_gpus": 1}``.
        autoscaling_config: as Serve has it; instead of ``num_replicas``.
        init_args: for the class or the factory.
        init_kwargs: likewise.
        factory: ``scorer`` makes the scorer.
        method: name of the method that scores.
        serve_options: any other options of ``serve.deployment``.
        settings: of the queue in each replica, and of what is let in, by the names of :class:`~qreward.server.ServerConfig`:
            ``max_batch_size``, ``max_concurrent_batches``, ``timeout``, ``token``, ... A ``${VAR}`` is read in the replica.

    Raises:
        TypeError: the scorer cannot be called.
        ConfigError: a setting is unknown or wrong.
        ModuleNotFoundError: Ray Serve is not installed.

    Example:
        serve.run(deployment(RewardModel, num_replicas=2, max_batch_size=32), route_prefix="/")
    """
    serve = _serve()
    recipe = Recipe(scorer, tuple(init_args), dict(init_kwargs or {}), factory, method)
    config = _checked(settings)
    ongoing = max(100, 2 * config.max_batch_size * config.max_concurrent_batches)
    options = {"name": name, "max_ongoing_requests": max_ongoing_requests or ongoing}
    asked = {"num_replicas": num_replicas, "ray_actor_options": ray_actor_options, "autoscaling_config": autoscaling_config}
    options |= {key: value for key, value in asked.items() if value is not None} | dict(serve_options or {})
    door = AsgiProxy(uuid4().hex)
    return serve.deployment(**options)(serve.ingress(door)(Replica)).bind(recipe, settings, door.key)


class AsgiProxy:
    """What Serve takes for the app while nothing is made yet: it travels to the replica, and finds the app there.

    Args:
        key: by which it finds it.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """As any ASGI app; it takes the prefix of the route off the path."""
        replica = _REPLICAS[self.key]
        if prefix := scope.get("root_path", ""):
            scope = {**scope, "root_path": "", "path": scope["path"].removeprefix(prefix) or "/"}
        await replica.asgi(scope, receive, partial(replica.tell, send) if scope["type"] == "lifespan" else send)


class Replica:
    """One replica: the scorer, and the reward server's app around it.

    Attributes:
        asgi: the app, as ``qreward serve`` has it. (``app`` is Serve's own.)
    """

    def __init__(self, recipe: Recipe, settings: Mapping[str, Any], key: str) -> None:
        from qreward.server import create_app  # noqa: PLC0415 - an extra

        self._made = recipe.make()
        self.asgi = create_app(_scorer(recipe, self._made), **settings)
        self._buffer: RewardBuffer = self.asgi.state.qreward.buffer
        _REPLICAS[key] = self

    async def score(self, completions: Sequence[str], metadata: Sequence[Mapping[str, Any]] | None = None) -> list[Scored]:
        """An outcome for each completion, in their order; see :meth:`~qreward.batching.reward_buffer.RewardBuffer.score`."""
        return [_portable(one) for one in await self._buffer.score(completions, metadata)]

    async def add_query(self, query: Any) -> SingletonAnswer | BatchAnswer:
        """Score a query; see :meth:`~qreward.batching.reward_buffer.RewardBuffer.add_query`."""
        return await self._buffer.add_query(query)

    async def tell(self, send: Any, message: Mapping[str, Any]) -> None:
        """Pass on what the app says of its life; before its end the scorer may put away what it has."""
        if message["type"] == "lifespan.shutdown.complete":
            close = getattr(self._made, "close", None)
            if callable(close) and inspect.isawaitable(ended := close()):
                await ended
        await send(message)


def _scorer(recipe: Recipe, made: Any) -> Any:
    """What the buffer may call: a plain function of completions and metadata, for there may be more parameters than that."""
    score = recipe.function(made)
    if is_async(score):

        async def awaited(completions: list[str], metadata: list[dict[str, Any]]) -> Any:
            return await score(*accepted(score, (completions, metadata)))

        awaited.__qualname__ = recipe.name
        return awaited

    def called(completions: list[str], metadata: list[dict[str, Any]]) -> Any:
        return score(*accepted(score, (completions, metadata)))

    called.__qualname__ = recipe.name
    return called


def _portable(scored: Scored) -> Scored:
    """Without the exception, which may not travel; its words are in ``error``."""
    return scored if scored.cause is None else Scored(scored.reward, scored.error, scored.meta, scored.feedback)


def _checked(settings: Mapping[str, Any]) -> Any:
    """The settings of a replica, as they are here; what its token is may be known there alone."""
    from qreward.server.config import ServerConfig  # noqa: PLC0415 - so that a pool needs no part of a server

    if wrong := [name for name in ("host", "port") if name in settings]:
        raise ConfigError(f"{wrong[0]} cannot be set here; use serve.start(http_options=...)")
    return ServerConfig(**{key: value for key, value in settings.items() if key != "token"})


def _serve() -> Any:
    require_ray()
    try:
        return importlib.import_module("ray.serve")
    except ImportError as error:
        raise ModuleNotFoundError(f"{error}; a deployment needs Ray Serve: {INSTALL}", name="ray.serve") from error
