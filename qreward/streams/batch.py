"""Many streamed answers at once, as a caller holds them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from qreward.engine.merge import Merge
from qreward.engine.outlet import StreamRestarted
from qreward.errors import QRewardError
from qreward.results import BatchResult, Result
from qreward.streams.held import Held
from qreward.streams.reader import Reader

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

OnStreamError = Callable[[int, QRewardError], object] | None


class BatchStream(Held[Merge]):
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

    __slots__ = ("_on_stream_error",)

    def __init__(self, begin: Callable[[], Merge], on_stream_error: OnStreamError, *, restarts: bool) -> None:
        super().__init__(begin, restarts=restarts)
        self._on_stream_error = on_stream_error

    # reading

    def __aiter__(self) -> AsyncIterator[tuple[int, str]]:
        self._refuse_restarts("results()")
        return Reader(self, self._text)

    def events(self) -> AsyncIterator[tuple[int, str | StreamRestarted | Result[ChatCompletion]]]:
        """Texts, and at the end of each stream its ``Result``; with ``on_interrupt="restart"`` also a ``StreamRestarted`` where all
        earlier texts of that stream are void."""
        return Reader(self, self._event)

    async def results(self) -> BatchResult[ChatCompletion]:
        """All results in the order of the input, when the last stream has ended. What was not read yet is not given out any more.

        Raises:
            BatchInterrupted: the input raised; it holds the results that are done.
            StreamInterrupted: the batch was left early.
        """
        merge = self._open()
        merge.hush()
        if not merge.is_read():
            async for _ in self.events():
                pass
        batch: BatchResult[ChatCompletion] = await self._ended()
        return batch

    def _text(self, event: tuple[int, Any]) -> tuple[int, str] | None:
        if type(event[1]) is str:
            return event
        self._event(event)
        return None

    def _event(self, event: tuple[int, Any]) -> tuple[int, Any]:
        """The event, after the caller was told of the error in it, if there is one."""
        what = event[1]
        if self._on_stream_error is not None and isinstance(what, Result) and what.error is not None:
            self._on_stream_error(event[0], what.error)
        return event

    def __repr__(self) -> str:
        merge = self._source
        return f"<BatchStream {'not begun' if merge is None else 'done' if merge.over() else 'under way'}>"
