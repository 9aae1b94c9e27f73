"""Backends of a pool: Ray actors, or scorers in this process."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import pickle
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from qreward.batching.settings import check_seconds, check_whole
from qreward.callables import FunctionKind, kind_of, lists_taken, name_of
from qreward.errors import ConfigError, ConnectionFailed, RequestError
from qreward.transport.local import DEATHS, in_thread, not_exiting

CALL = "__call__"


@dataclass(frozen=True)
class ScorerSpec:
    """The arguments of :class:`~qreward.integrations.ray.ScorerPool` that say how to make a scorer."""

    scorer: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    factory: bool = False
    method: str = CALL

    def __post_init__(self) -> None:
        if not self._is_made and (self.args or self.kwargs):
            raise TypeError("init_args and init_kwargs are for a class, or for a factory (factory=True); the scorer is neither")
        if not self.factory:
            self._checked(self._declared())
        elif not callable(self.scorer):
            raise TypeError(f"a factory must be a function that makes the scorer, not a {type(self.scorer).__name__}")

    @property
    def name(self) -> str:
        return name_of(self.scorer) if self.method == CALL else f"{name_of(self.scorer)}.{self.method}"

    def make(self) -> Any:
        return self.scorer(*self.args, **self.kwargs) if self._is_made else self.scorer

    def function(self, made: Any) -> Callable[..., Any]:
        return self._checked(made if self.method == CALL else getattr(made, self.method, None))

    @property
    def _is_made(self) -> bool:
        return self.factory or isinstance(self.scorer, type)

    def _declared(self) -> Any:
        """Return the scoring function if it is known before the scorer is instantiated; otherwise None."""
        scorer = self.scorer
        if isinstance(scorer, type):  # calling the class itself would instantiate it
            return getattr(scorer, self.method) if any(self.method in vars(each) for each in scorer.__mro__) else None
        return scorer if self.method == CALL else getattr(scorer, self.method, None)

    def _checked(self, function: Any) -> Callable[..., Any]:
        kind = kind_of(function)
        if kind is None:
            raise TypeError(f"{self.name} cannot be called; a scorer takes lists and returns a list (see `method` for an object's method)")
        if kind in (FunctionKind.STREAMED, FunctionKind.GENERATOR):
            raise TypeError(f"{self.name} must return its results, not yield them")
        return function  # type: ignore[no-any-return]


def is_async(function: Any) -> bool:
    return kind_of(function) is FunctionKind.AWAITED


def accepted(function: Callable[..., Any], columns: Sequence[Any]) -> Sequence[Any]:
    """Return the columns that a scorer takes. A scorer that takes only completions does not receive the metadata of the completions."""
    return columns[: lists_taken(function, len(columns)) or 1]


def close_scorer(made: Any) -> Awaitable[Any] | None:
    """Call the scorer's method ``close``, if it has one. Return the method's result if the result must be awaited, else None."""
    close = getattr(made, "close", None)
    ended = close() if callable(close) else None
    return ended if inspect.isawaitable(ended) else None


Reply = tuple[bool, Any]
"""``(True, results)``, or ``(False, exception)`` if the scorer raised an exception."""


class ScorerActor:
    def __init__(self, spec: ScorerSpec, concurrency: int) -> None:
        self._made = spec.make()
        self._score = spec.function(self._made)
        self._threads = None if is_async(self._score) else ThreadPoolExecutor(concurrency, thread_name_prefix="scorer")

    async def ready(self) -> None:
        """Do nothing. Ray runs this method only after the constructor has returned, so a reply means that the actor is ready."""

    async def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch. A thread cannot be stopped, so a batch in a thread runs to its end even if it is cancelled."""
        call = partial(self._score, *accepted(self._score, columns))
        if self._threads is not None:
            in_context = partial(copy_context().run, attempt, call)  # Ray keeps the identity of the task in context variables
            thread = asyncio.get_running_loop().run_in_executor(self._threads, in_context)
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                await asyncio.wait([thread])
                raise
        try:
            return ok_reply(await call())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return error_reply(error)

    async def end(self) -> None:
        if (closing := close_scorer(self._made)) is not None:
            await closing


def attempt(call: partial[Any]) -> Reply:
    """Run a blocking scorer and return its reply. All exceptions are caught, so that even ``SystemExit`` does not end the actor."""
    try:
        return ok_reply(call())
    except BaseException as error:
        return error_reply(error)


def ok_reply(results: Any) -> Reply:
    """Return a reply with results. Exceptions among the results are made picklable."""
    if isinstance(results, list | tuple) and any(isinstance(one, BaseException) for one in results):
        return True, [portable(one) if isinstance(one, BaseException) else one for one in results]
    return True, results


def error_reply(error: BaseException) -> Reply:
    """Return a reply with an exception. The traceback is added to the exception as a note, because tracebacks are not pickled."""
    shown = portable(error)
    shown.add_note("In the actor:\n" + "".join(traceback.format_exception(error)).rstrip())
    return False, shown


def portable(error: BaseException) -> BaseException:
    """Return the exception, or a ``RuntimeError`` with the text of the exception if it cannot be pickled and unpickled."""
    error = not_exiting(error, "scorer")
    try:
        again = pickle.loads(importlib.import_module("ray.cloudpickle").dumps(error))  # noqa: S301
        same = type(again) is type(error) and str(again) == str(error)
    except Exception:
        same = False
    return error if same else RuntimeError(f"{type(error).__name__}: {error}")


Backend = Literal["auto", "ray", "local"]
INSTALL = "pip install 'qreward[ray]'"


class ActorDied(ConnectionFailed, ConnectionError):
    """An item has no score, because actors died while they scored the item, or because no actor is left."""


class ActorLost(Exception):
    """The actor of a batch is gone, so the batch has no result. The pool sends the batch again, because its items may not be at fault."""

    def __init__(self, message: str, *, never_started: bool = False, excused: bool = False) -> None:
        super().__init__(message)
        self.never_started = never_started
        self.excused = excused


@dataclass(frozen=True)
class PoolConfig:
    actors: int = 1
    max_concurrent_batches: int = 1
    backend: Backend = "auto"
    batch_timeout: float | None = None
    start_timeout: float | None = 600.0
    max_restarts: int = 20
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("actors", self.actors)
        check_whole("max_concurrent_batches", self.max_concurrent_batches)
        check_whole("max_restarts", self.max_restarts, least=0)
        check_seconds("batch_timeout", self.batch_timeout)
        check_seconds("start_timeout", self.start_timeout)
        if self.backend not in get_args(Backend):
            raise ConfigError(f"backend must be one of {', '.join(map(repr, get_args(Backend)))}, not {self.backend!r}")


CLOSE_TIMEOUT = 5.0
"""Maximum number of seconds for a scorer's ``close``."""
NEVER_STARTED = ("RuntimeEnvSetupError", "ActorUnschedulableError")
"""Exceptions of ``ray.exceptions`` that mean that an actor cannot be started."""
SHOWN = 240
"""Maximum number of characters of Ray's message in an error. The rest of the message is long advice."""
Sent = tuple[asyncio.Future[Reply], Callable[[], object]]
"""A future of the reply to a batch, and a function that requests the cancellation of the batch."""


class RayBackend:
    """Runs scorers in Ray actors. The methods run in the event loop of the pool, and calls of Ray may block this loop."""

    name = "ray"

    def __init__(self, spec: ScorerSpec, config: PoolConfig) -> None:
        self._ray = ray = require_ray()
        if not ray.is_initialized():
            raise ConfigError("this process is not connected to Ray; call ray.init() first, or use backend='local'")
        errors = ray.exceptions
        self._deaths: tuple[Any, ...] = tuple(getattr(errors, name) for name in DEATHS + NEVER_STARTED)
        self._never_started: tuple[Any, ...] = tuple(getattr(errors, name) for name in NEVER_STARTED)
        most = config.max_concurrent_batches
        # An actor may run one call more than batches, so that ``ready`` and ``end`` do not wait for a batch. Ray does not restart actors
        # here, because Ray restarts without a delay, and does not restart an actor whose class raised. The supervisor restarts actors.
        own = {"max_concurrency": most + 1, "max_restarts": 0, "max_task_retries": 0}
        self._make: Callable[[], Any] = partial(ray.remote(ScorerActor).options(**config.options, **own).remote, spec, most)

    async def start(self) -> Any:
        if not self._ray.is_initialized():  # without this check, Ray would start a new cluster
            raise ConfigError("this process is not connected to Ray any more")
        actor = self._make()
        try:
            await _result_of(actor.ready.remote().future())
        except BaseException:
            self.kill(actor)
            raise
        return actor

    def send(self, actor: Any, columns: tuple[Any, ...], _caller: asyncio.AbstractEventLoop) -> Sent:
        reference = actor.run.remote(columns)
        return _result_of(reference.future()), partial(self._cancel, reference)

    def read(self, error: BaseException) -> BaseException:
        """Convert an exception of Ray to the exception that the caller receives. If the actor is gone, return ``ActorLost``."""
        if isinstance(error, self._deaths):
            never_started = isinstance(error, self._never_started) or getattr(error, "actor_init_failed", False)
            return ActorLost(_last_line(str(error)), never_started=never_started, excused=getattr(error, "preempted", False))
        if isinstance(error, self._ray.exceptions.TaskCancelledError):
            return _cancelled()
        cause = getattr(error, "cause", None)  # a RayTaskError has a cause, for example if results cannot be pickled
        return cause if isinstance(cause, Exception) else error

    async def close(self, actor: Any, _caller: asyncio.AbstractEventLoop) -> None:
        await _result_of(actor.end.remote().future())

    def kill(self, actor: Any) -> None:
        with suppress(Exception):  # the actor may be dead, or Ray may have ended
            self._ray.kill(actor)

    def _cancel(self, reference: Any) -> None:
        with suppress(Exception):  # the batch may be done, or its actor dead
            self._ray.cancel(reference)


class LocalBackend:
    name = "local"

    def __init__(self, spec: ScorerSpec) -> None:
        self._spec = spec

    async def start(self) -> Any:
        made = await _result_of(in_thread(self._spec.make, "scorer"))
        self._spec.function(made)
        return made

    def send(self, made: Any, columns: tuple[Any, ...], caller: asyncio.AbstractEventLoop) -> Sent:
        score = self._spec.function(made)
        call = partial(score, *accepted(score, columns))
        if is_async(score):
            future = asyncio.run_coroutine_threadsafe(_awaited(call), caller)
            return _result_of(future), future.cancel
        return _result_of(in_thread(lambda: (True, call()), "scorer")), lambda: None  # a thread cannot be stopped

    def read(self, error: BaseException) -> BaseException:
        return error

    async def close(self, made: Any, caller: asyncio.AbstractEventLoop) -> None:
        async def closed(closing: Awaitable[Any]) -> None:
            await closing

        if (closing := await _result_of(in_thread(partial(close_scorer, made), "scorer"))) is not None:
            await _result_of(asyncio.run_coroutine_threadsafe(closed(closing), caller))

    def kill(self, made: Any) -> None:
        """Do nothing, because the scorer is freed when no thread uses it."""


ActorBackend = RayBackend | LocalBackend


def choose(spec: ScorerSpec, config: PoolConfig) -> ActorBackend:
    use_ray = config.backend == "ray" or (config.backend == "auto" and is_connected())
    return RayBackend(spec, config) if use_ray else LocalBackend(spec)


def is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def check_installed(backend: Backend) -> None:
    """Raise ``ModuleNotFoundError`` if ``backend`` is ``ray`` and Ray is not installed. This function does not import Ray."""
    if backend == "ray" and "ray" not in sys.modules and importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError(f"backend='ray' needs Ray: {INSTALL}", name="ray")


def require_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; this needs Ray: {INSTALL}", name=error.name) from error


def _cancelled() -> RequestError:
    return RequestError("the batch was cancelled in its actor; its items may be submitted again")


def _last_line(text: str) -> str:
    """Return the last line of Ray's message about a death, because it names the cause."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else "it died"


async def _awaited(call: Callable[[], Any]) -> Reply:
    try:
        return True, await call()
    except (Exception, SystemExit) as error:
        return False, not_exiting(error, "scorer")


def _result_of(source: Future[Any]) -> asyncio.Future[Any]:
    """Return a future of this event loop that gets the outcome of ``source``. ``source`` may also end after the loop was closed."""
    loop = asyncio.get_running_loop()
    target = loop.create_future()

    def report() -> None:
        if target.done():
            return
        if source.cancelled():
            target.set_exception(_cancelled())
        elif (error := source.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    def done(_: Any) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(report)

    source.add_done_callback(done)
    target.add_done_callback(lambda _: target.cancelled() or target.exception())  # avoids a warning if nobody awaits the future
    return target
