"""``show`` and ``show_batch``: streams are read, and what has come is drawn now and then, however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from qreward import arguments
from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.integrations.notebook.cards import answer_html, answer_plain, board_html, board_plain
from qreward.integrations.notebook.state import Answer, Board
from qreward.integrations.notebook.views import Cell, Lines, Script, View, in_notebook
from qreward.results import BatchResult
from qreward.streams.batch import BatchStream
from qreward.streams.blocking import SyncBatchStream, SyncStream
from qreward.streams.single import Stream

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

S = TypeVar("S")
P = TypeVar("P")
R = TypeVar("R")

INTERVAL = 0.1
"""Seconds between two drawings: quicker than reading, and no load on a browser."""


@overload
def show(stream: Stream, *, clock: Callable[[], float] = monotonic) -> Coroutine[Any, Any, ChatCompletion]: ...
@overload
def show(stream: SyncStream, *, clock: Callable[[], float] = monotonic) -> ChatCompletion: ...
def show(stream: Stream | SyncStream, *, clock: Callable[[], float] = monotonic) -> Coroutine[Any, Any, ChatCompletion] | ChatCompletion:
    """Show an answer as it grows, with the seconds to its first token, its tokens a second, its endpoint, and how it ended.

    It is drawn at most ten times a second, and once at the end. Outside a notebook the text is printed as it comes.

    Args:
        stream: read to its end. Of a ``Stream`` what is returned is awaited; a ``SyncStream`` is shown until it ends.
        clock: monotonic seconds; for tests in virtual time.

    Returns:
        The whole answer.

    Raises:
        ConfigError: it is no stream of one answer.
        RequestError: and others, as :meth:`Stream.final`, when what has come is shown; ``StreamInterrupted`` if it broke off.

    Example:
        >>> async def cell(client, messages):
        ...     return await show(client.stream_chat_completion(messages, model="judge-7b"))
    """
    inner = stream._stream if isinstance(stream, SyncStream) else stream
    if not isinstance(inner, Stream):
        raise ConfigError(f"show takes what stream_chat_completion returns, not {inner!r}; show_batch takes many streams")
    view: View[Answer] = Cell(answer_html, answer_plain) if in_notebook() else Script()
    drawing = Drawing(Answer(clock(), not inner.text, lambda: inner.text), view, clock)
    return follow(inner, drawing) if inner is stream else _block(follow, inner, drawing)


@overload
def show_batch(
    stream: BatchStream, *, cards: int = 12, clock: Callable[[], float] = monotonic
) -> Coroutine[Any, Any, BatchResult[ChatCompletion]]: ...
@overload
def show_batch(stream: SyncBatchStream, *, cards: int = 12, clock: Callable[[], float] = monotonic) -> BatchResult[ChatCompletion]: ...
def show_batch(
    stream: BatchStream | SyncBatchStream, *, cards: int = 12, clock: Callable[[], float] = monotonic
) -> Coroutine[Any, Any, BatchResult[ChatCompletion]] | BatchResult[ChatCompletion]:
    """Show many answers as they grow, as a grid. See :func:`show`.

    A card whose answer has ended gives its place to the next answer that begins. Outside a notebook each answer is printed when it has
    ended.

    Args:
        stream: read to its end. Of a ``BatchStream`` what is returned is awaited; a ``SyncBatchStream`` is shown until it ends.
        cards: most answers shown at once, 0 for any number; of each, at most 400 characters are shown.
        clock: monotonic seconds; for tests in virtual time.

    Returns:
        All results in the order of the input; what failed is among them.

    Raises:
        ConfigError: an argument is wrong.
        BatchInterrupted: the input raised; it holds the results that are done.

    Example:
        >>> async def cell(client, conversations):
        ...     return await show_batch(client.batch_stream_chat_completion(conversations, model="judge-7b"))
    """
    inner = stream._stream if isinstance(stream, SyncBatchStream) else stream
    if not isinstance(inner, BatchStream):
        raise ConfigError(f"show_batch takes what batch_stream_chat_completion returns, not {inner!r}; show takes a single stream")
    board, lines = Board(clock(), arguments.count("cards", cards)), Lines()
    if in_notebook():
        drawing = Drawing(board, Cell(board_html, board_plain), clock)
    else:
        board.tell = lines.tell
        drawing = Drawing(board, lines, clock)
    return follow_batch(inner, drawing) if inner is stream else _block(follow_batch, inner, drawing)


class Drawing(Generic[S]):
    """A state that is drawn from time to time while it is entered, at the beginning, and at the end.

    What goes wrong with drawing in between is reported by the event loop and harms nothing; at the end it is raised.
    """

    def __init__(self, state: S, view: View[S], clock: Callable[[], float]) -> None:
        self.state = state
        self.clock = clock
        self._view = view
        self._timer: asyncio.TimerHandle | None = None

    def draw(self) -> None:
        """Draw it now."""
        self._view.draw(self.state, self.clock())

    def __enter__(self) -> S:
        self._tick()
        return self.state

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._view.close(self.state, self.clock())

    def _tick(self) -> None:
        self.draw()
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick)


async def follow(stream: Stream, drawing: Drawing[Answer]) -> ChatCompletion:
    """Read one stream to its end while it is drawn."""
    clock = drawing.clock
    with drawing as answer:
        try:
            async for event in stream.events():
                answer.add(event, clock())
        except BaseException as error:
            answer.end(stream.result, error, clock())
            raise
        answer.end(stream.result, None, clock())
    return await stream.final()


async def follow_batch(stream: BatchStream, drawing: Drawing[Board]) -> BatchResult[ChatCompletion]:
    """Read a batch of streams to its end while it is drawn."""
    clock = drawing.clock
    with drawing as board:
        try:
            async for index, event in stream.events():
                board.add(index, event, clock())
        except BaseException as error:
            board.end(error, clock())
            raise
        board.end(None, clock())
    return await stream.results()


def _block(follow: Callable[[P, Drawing[S]], Coroutine[Any, Any, R]], stream: P, drawing: Drawing[S]) -> R:
    """Drawn first in the caller's own thread, in whose cell it then stays."""
    drawing.draw()
    return portal().call(follow, stream, drawing)
