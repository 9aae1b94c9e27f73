"""Where scorers live and work: Ray's actors, or objects in this process. The only place that calls Ray's core.

What is here may block for a while (Ray pickles, copies into its store), so it is called in worker threads only. It decides nothing.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from qreward.errors import ConfigError
from qreward.integrations.ray.host import AsyncHost, Host, Reply, mild
from qreward.integrations.ray.recipe import Recipe, accepted, is_async
from qreward.integrations.ray.words import INSTALL, Backend, Lost, Terms, cancelled

FAREWELL = 5.0
"""Seconds that a scorer is given to put away what it has."""
DEATHS = ("RayActorError", "NodeDiedError", "WorkerCrashedError", "OutOfMemoryError", "ObjectLostError", "LocalRayletDiedError")
"""Of ``ray.exceptions``: an actor, or what it gave, is gone."""
HOPELESS = ("RuntimeEnvSetupError", "ActorUnschedulableError")
"""An actor cannot be made."""
SHOWN = 240
"""Characters of Ray's own words that are told; it goes on with advice."""
Stop = Callable[[], object]


class Crew(Protocol):
    """A kind of actors."""

    name: str

    def hire(self) -> tuple[Any, Future[Any]]:
        """Begin to make an actor; the future is done when it is ready."""

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:
        """Have a batch scored; the function asks for it to be stopped."""

    def read(self, error: BaseException) -> BaseException:
        """What a future raised, as a caller may see it; ``Lost`` if the actor is gone."""

    def dismiss(self, actor: Any, gently: bool) -> None:
        """End an actor. Does not raise."""


class RayCrew:
    """Actors of Ray.

    Raises:
        ConfigError: this process is not connected to Ray.
        ModuleNotFoundError: Ray is not installed.
    """

    name = "ray"

    def __init__(self, recipe: Recipe, terms: Terms) -> None:
        self._ray = ray = require_ray()
        if not ray.is_initialized():
            raise ConfigError("this process is not connected to Ray; call ray.init() first, or use backend='local'")
        errors = ray.exceptions
        self._deaths: tuple[Any, ...] = tuple(getattr(errors, name) for name in DEATHS + HOPELESS)
        self._hopeless: tuple[Any, ...] = tuple(getattr(errors, name) for name in HOPELESS)
        most = terms.max_concurrent_batches
        kind, more = (Host, ()) if recipe.blocks else (AsyncHost, (most,))
        asked = {"max_concurrency": most if recipe.blocks else most + 1, "max_restarts": 0, "max_task_retries": 0}  # it looks, too
        self._make: Callable[[], Any] = partial(ray.remote(kind).options(**terms.options, **asked).remote, recipe, *more)

    def hire(self) -> tuple[Any, Future[Any]]:
        if not self._ray.is_initialized():  # else it would start a cluster of its own
            raise ConfigError("this process is not connected to Ray any more")
        actor = self._make()
        return actor, actor.ready.remote().future()

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:  # noqa: ARG002
        reference = actor.run.remote(columns)
        return reference.future(), partial(self._cancel, reference)

    def read(self, error: BaseException) -> BaseException:
        if isinstance(error, self._deaths):
            in_making = isinstance(error, self._hopeless) or getattr(error, "actor_init_failed", False)
            return Lost(summary(str(error)), in_making=in_making, excused=getattr(error, "preempted", False))
        if isinstance(error, self._ray.exceptions.TaskCancelledError):
            return cancelled()
        cause = getattr(error, "cause", None)  # of a RayTaskError, such as for results that cannot be pickled
        return cause if isinstance(cause, Exception) else error

    def dismiss(self, actor: Any, gently: bool) -> None:
        with suppress(Exception):
            if gently:
                actor.end.remote().future().result(FAREWELL)
        with suppress(Exception):  # it may be dead, and Ray too
            self._ray.kill(actor)

    def _cancel(self, reference: Any) -> None:
        with suppress(Exception):  # it may be done, or its actor dead
            self._ray.cancel(reference)


class EmbeddedCrew:
    """Scorers in this process: a blocking one runs in the worker thread that sends, one to be awaited in the loop of its caller."""

    name = "local"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def hire(self) -> tuple[Any, Future[Any]]:
        made = self._recipe.make()
        self._recipe.function(made)
        return made, _done(None)

    def send(self, actor: Any, columns: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> tuple[Future[Reply], Stop]:
        score = self._recipe.function(actor)
        call = partial(score, *accepted(score, columns))
        if is_async(score):
            future = asyncio.run_coroutine_threadsafe(_awaited(call), loop)
            return future, future.cancel
        try:
            return _done((True, call())), _nothing
        except BaseException as error:
            return _done((False, mild(error))), _nothing

    def read(self, error: BaseException) -> BaseException:
        return error

    def dismiss(self, actor: Any, gently: bool) -> None:
        close = getattr(actor, "close", None)
        with suppress(Exception):
            if gently and callable(close):
                close()


def choose(recipe: Recipe, terms: Terms) -> Crew:
    """Ray's actors if this process is connected to Ray, or they are asked for; else this process."""
    use_ray = terms.backend == "ray" or (terms.backend == "auto" and is_connected())
    return RayCrew(recipe, terms) if use_ray else EmbeddedCrew(recipe)


def is_connected() -> bool:
    """Whether this process uses Ray already; does not import it."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_installed(backend: Backend) -> None:
    """Raise ``ModuleNotFoundError`` with the remedy if Ray is asked for and is not there; does not import it."""
    if backend == "ray" and "ray" not in sys.modules and importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError(f"backend='ray' needs Ray: {INSTALL}", name="ray")


def require_ray() -> Any:
    """The module. Raises ``ModuleNotFoundError`` with the remedy."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; this needs Ray: {INSTALL}", name=error.name) from error


def summary(text: str) -> str:
    """What Ray says of a death, on one line: of its many lines the last says why.

    Example:
        >>> summary("The actor died.\\n  pid: 7\\nits worker process has died.\\n")
        'its worker process has died.'
    """
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else "it died"


async def _awaited(call: Callable[[], Any]) -> Reply:
    try:
        return True, await call()
    except (Exception, SystemExit) as error:
        return False, mild(error)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _nothing() -> None:
    """A thread cannot be stopped."""
