"""What one stream and a batch of them have in common for who holds them: nothing is begun before it is wanted, and leaving ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

from qreward.engine.carrier import Carrier
from qreward.engine.outlet import closed
from qreward.errors import ConfigError

S = TypeVar("S", bound=Carrier)


class Held(Generic[S]):
    """A stream that may not have begun.

    Args:
        begin: sends it, and gives what is read. Called once, in the event loop to which it then belongs.
        restarts: an answer may begin anew amid the stream.
    """

    __slots__ = ("_begin", "_closed", "_restarts", "_source")

    def __init__(self, begin: Callable[[], S], *, restarts: bool) -> None:
        self._begin = begin
        self._restarts = restarts
        self._source: S | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave: what is under way is stopped, and its connections are closed when this returns. May be called again."""
        self._closed = True
        source = self._source
        if source is None:
            return
        if asyncio.get_running_loop() is source.shell.loop:
            source.leave()
            await source.idle()
        else:
            self._drop()

    def __del__(self) -> None:
        self._drop()

    def _open(self) -> S:
        if self._source is None:
            if self._closed:
                raise closed("")
            self._source = self._begin()
        return self._source

    def _take(self) -> Coroutine[Any, Any, Any]:
        return (self._source or self._open()).take()

    async def _ended(self) -> Any:
        """Its end; who gives up waiting for it leaves."""
        try:
            return await self._open().ends()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        source = self._source
        if source is not None and not source.over():
            source.shell.later(source.leave)

    def _refuse_restarts(self, instead: str) -> None:
        if self._restarts:
            raise ConfigError(
                f'with on_interrupt="restart" the text may start over; iterate events(), which reports each restart, or await {instead}'
            )
