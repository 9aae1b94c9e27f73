"""Many streamed answers at once, as a caller holds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from qreward.engine.merge import Merge
from qreward.engine.outlet import StreamRestarted, closed
from qreward.errors import ConfigError, QRewardError
from qreward.results import BatchResult, Result
from qreward.streams.reader import Reader

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

OnStreamError = Callable[[int, QRewardError], object] | None


class BatchStream:
    """Chat completions that come token by token, all at once: what ``QRewardClient.batch_stream_chat_completion`` returns.

    ``async for index, token in stream`` gives the texts of all streams in the order in which they arrive; ``index`` is the place of
    a conversation in the input. What is said of :class:`Stream` on beginning, leaving, and slow readers holds here for all of them.

    Example:
        >>> async def show(client, conversations):
        ...     stream = client.batch_stream_chat_completion(conversations, model="judge-7b")
        ...     async for index, token in stream:
        ...         print(index, token)
        ...     return (await stream.results()).errors
    """

    __slots__ = ("_begin", "_closed", "_merge", "_on_stream_error", "_restarts", "_run")

    def __init__(self, begin: Callable[[], Merge], on_stream_error: OnStreamError, *, restarts: bool) -> None:
        self._begin = begin
        self._on_stream_error = on_stream_error
        self._restarts = restarts
        self._merge: Merge | None = None
        self._run: asyncio.Task[BatchResult[Any]] | None = None
        self._closed = False

    # reading

    def __aiter__(self) -> AsyncIterator[tuple[int, str]]:
        if self._restarts:
            raise ConfigError('with on_interrupt="restart" an answer may begin anew: read events(), which tells when, or await results()')
        return Reader(self, lambda event: event if isinstance(event[1], str) else None)

    def events(self) -> AsyncIterator[tuple[int, str | StreamRestarted | Result[ChatCompletion]]]:
        """Texts, and at the end of each stream its ``Result``; with ``on_interrupt="restart"`` also a ``StreamRestarted`` where all
        earlier texts of that stream are void."""
        return Reader(self, lambda event: event)

    async def results(self) -> BatchResult[ChatCompletion]:
        """All results in the order of the input, when the last stream has ended. What was not read yet is not given out any more.

        Raises:
            BatchInterrupted: the input raised; it holds the results that are done.
            StreamInterrupted: the batch was left early.
        """
        merge = self._open()
        merge.hush()
        if not merge.is_read():
            async for _ in Reader(self, lambda event: event):
                pass
        assert self._run is not None
        try:
            await asyncio.wait([self._run])
        except BaseException:
            self._drop()
            raise
        if self._run.cancelled():
            raise closed("")
        return self._run.result()

    # coming and going

    async def __aenter__(self) -> BatchStream:
        self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave: what is under way is stopped, the input is closed. May be called again."""
        self._closed = True
        merge, run = self._merge, self._run
        if merge is None or run is None:
            return
        if asyncio.get_running_loop() is not merge.shell.loop:
            self._drop()
            return
        run.cancel()
        await asyncio.wait([run])
        await merge.idle()

    def __del__(self) -> None:
        self._drop()

    def _open(self) -> Merge:
        if self._merge is None:
            if self._closed:
                raise closed("")
            merge = self._merge = self._begin()
            self._run = merge.shell.loop.create_task(merge.run())
            self._run.add_done_callback(merge.over)
        return self._merge

    async def _take(self) -> Any:
        event = await (self._merge or self._open()).take()
        if event is not None and self._on_stream_error is not None and isinstance(event[1], Result) and event[1].error is not None:
            self._on_stream_error(event[0], event[1].error)
        return event

    def _drop(self) -> None:
        run, merge = self._run, self._merge
        if run is not None and merge is not None and not run.done():
            merge.shell.later(run.cancel)

    def __repr__(self) -> str:
        run = self._run
        return f"<BatchStream {'not begun' if run is None else 'done' if run.done() else 'under way'}>"
