"""The transport of endpoints that are functions in this process, or methods of Ray actors."""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import TransportError
from qreward.codecs.chat import CHAT
from qreward.codecs.rewards.kinds import LocalScore
from qreward.engine.background import SHARED
from qreward.errors import BadRequest, ClientClosed, ConnectionFailed, QueueFull, RateLimited, RequestTimeout
from qreward.settings.local import LocalFunction
from qreward.settings.policies import Endpoint
from qreward.transport.base import Body, ByteStream, HttpTransport, closed

DEATHS = ("RayActorError", "NodeDiedError", "WorkerCrashedError", "OutOfMemoryError", "ObjectLostError", "LocalRayletDiedError")
"""Exceptions of ``ray.exceptions`` that mean that an actor is gone, or that a result of an actor is gone."""
_LOST = (BrokenExecutor, ConnectionError, ConnectionFailed, ClientClosed)
_STATUSES: dict[type[Exception], int] = {BadRequest: 400, RateLimited: 429, QueueFull: 429, NotImplementedError: 501}
"""Exceptions of a function -> the status of the response. Any other exception is a 500."""


class LocalTransport(HttpTransport):
    def __init__(self, endpoint: Endpoint, local: LocalFunction) -> None:
        self._local = local
        self._most = endpoint.limits.max_concurrency
        self._columns = local.columns()
        self._takes = local.keywords()
        self._closed = False
        self.cap = endpoint.max_response_bytes

    async def begin(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> ByteStream:  # noqa: ARG002
        if self._closed:
            raise closed()
        if method == "GET":  # a probe: a function is always ready
            return WholeResponse(200, b"{}")
        me = asyncio.current_task()
        before = 0 if me is None else me.cancelling()
        try:
            answer = await self._answer(path, jsonio.read(body) if isinstance(body, bytes) else {})
            try:
                return WholeResponse(200, jsonio.dumps(answer))
            except BadRequest as error:
                raise TypeError(f"the function returned what is no text, completion or number: {error}") from None
        except asyncio.CancelledError:
            if me is None or me.cancelling() > before:
                raise
            return _refusal(500, "the function raised CancelledError, although nobody cancelled the call")
        except Exception as error:
            return _outcome_of(error)

    async def aclose(self) -> None:
        self._closed = True

    async def _answer(self, path: str, request: dict[str, Any]) -> Any:
        model = request.pop("model", "")
        if path == CHAT.path:
            value = await self._call((request.pop("messages"),), {"model": model, **request})
            if not isinstance(value, str):
                return value
            message = {"role": "assistant", "content": value}
            return {"model": model, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        if path != LocalScore.path:
            raise NotImplementedError(f"a function in this process answers chat completions and scores, but not {path}")
        items, params = request["items"], {"model": model, **request["params"]}
        if self._local.max_batch_size is not None:
            rows = await self._call(self._arguments(items), params)
            return {"data": rows if isinstance(rows, list) else [rows]}
        return {"data": [await self._call(tuple(column[0] for column in self._arguments([item])), params) for item in items]}

    def _arguments(self, items: list[Any]) -> tuple[list[Any], ...]:
        if self._columns < 2:
            return (items,)
        if not all(isinstance(item, dict) for item in items):
            raise BadRequest("the function takes a prompt and a response; send (prompt, response)")
        return tuple([item.get(name) for item in items] for name in ("prompt", "response", "label")[: self._columns])

    async def _call(self, arguments: tuple[Any, ...], params: Mapping[str, Any]) -> Any:
        local = self._local
        if local.remote:
            return _plain(await _remote(local.function, arguments))
        call = partial(local.function, *arguments, **{name: value for name, value in params.items() if self._takes(name)})
        if not local.blocks:
            return _plain(await call())
        if not local.slots.take(self._most):  # an attempt was given up, but a thread cannot be stopped
            raise QueueFull("calls that were given up still run; the function takes no further call until one of them returns")
        run, executor = partial(_called, call), local.executor
        try:
            future = in_thread(partial(copy_context().run, run)) if executor is None else executor.submit(run)
        except BaseException:  # the executor is broken, or was shut down
            local.slots.release()
            raise
        future.add_done_callback(local.slots.release)
        value = await asyncio.wrap_future(future)
        return _plain(await value) if inspect.isawaitable(value) else value  # such as a lambda that calls an async function


def in_thread(call: Callable[[], Any], what: str = "function") -> Future[Any]:
    """Run a function in a worker thread, which cannot be stopped. The future cannot be cancelled. ``what`` names the function in errors."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # otherwise a cancelled future would count as done while the function still runs

    def job() -> Callable[[], None]:
        try:
            return partial(future.set_result, call())
        except BaseException as error:
            return partial(future.set_exception, not_exiting(error, what))

    if not SHARED.run(job):
        future.set_exception(QueueFull("all worker threads are busy, perhaps with calls that hang; submit fewer at once"))
    return future


class WholeResponse(ByteStream):
    __slots__ = ("_left",)

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.headers, self._left = status, {}, body

    async def read(self) -> bytes:
        data, self._left = self._left, b""
        return data

    async def aclose(self) -> None:
        self._left = b""


async def _remote(method: Any, arguments: tuple[Any, ...]) -> Any:
    reference = method.remote(*arguments)
    try:
        return await asyncio.wrap_future(reference.future())
    except asyncio.CancelledError:
        with suppress(Exception):  # the call may be done, or its actor dead
            sys.modules["ray"].cancel(reference)
        raise


def _called(call: Callable[[], Any]) -> Any:
    value = call()  # converted in the same thread, because a tensor waits for its GPU when it is read
    return value if inspect.isawaitable(value) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return {"error": _described(value)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    convert = getattr(value, "tolist", None) or getattr(value, "model_dump", None)
    return value if convert is None else convert()


def _outcome_of(error: Exception) -> ByteStream:
    cause = getattr(error, "cause", None)  # Ray's exception for an exception of the actor's own code
    error = cause if isinstance(cause, Exception) else error
    if isinstance(error, _LOST) or is_death(error):
        raise TransportError(f"its process or connection is gone ({_described(error)})") from None
    if isinstance(error, RequestTimeout):
        raise TransportError(str(error), timeout=True) from None
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)
    return _refusal(status, _described(error) if status == 500 else str(error))


def is_death(error: BaseException) -> bool:
    """Return True if an exception of Ray means that an actor is gone."""
    return any(kind.__name__ in DEATHS for kind in type(error).__mro__)


def _refusal(status: int, message: str) -> ByteStream:
    return WholeResponse(status, jsonio.dumps({"error": {"message": message}}))


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def not_exiting(error: BaseException, what: str) -> Exception:
    """Return the exception, or a ``RuntimeError`` if the exception would end the caller's iteration, event loop or program."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the {what} raised {type(error).__name__}: {error}")
