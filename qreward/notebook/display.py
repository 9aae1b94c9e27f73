"""``show`` and ``show_batch``: read streams to their end, and display the progress at intervals and at the end.

The state is rendered as HTML and as plain text, by pure functions of the state and the time. In a notebook, the view is an output cell
that is updated. Outside a notebook, the text is written to standard output as it arrives, with a summary line at the end: a cell that is
moved into a script should still work, and does not need IPython.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from qreward import options
from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.notebook.render import LINE, clip, facts, frame, number, seconds
from qreward.notebook.state import AnswerPhase, Board, LiveAnswer
from qreward.progress import is_notebook
from qreward.results import BatchResult
from qreward.streaming.handles import BatchStream, Stream
from qreward.streaming.sync import SyncBatchStream, SyncStream

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

LIVE_TEXT = 20_000
"""Characters shown of a single answer while it is streamed. Only the last ones are shown, as they are sent to the page ten times
a second."""
CARD_TEXT = 400
"""Characters shown of each answer of a batch."""
MOST_TROUBLE = 600
"""Characters shown of an error message."""

_COLOURS = {
    AnswerPhase.DONE: "#2da44e",
    AnswerPhase.INTERRUPTED: "#e5534b",
    AnswerPhase.FAILED: "#e5534b",
    AnswerPhase.STOPPED: "#bf8700",
}  # on white and black
_PRE = (
    "margin:4px 0 0;padding:0;border:0;background:none;color:inherit;font:inherit;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
)


def answer_html(answer: LiveAnswer, now: float) -> str:
    """One answer as HTML, over the whole width."""
    text = answer.text
    shown = text if answer.ended is not None else _tail(text, LIVE_TEXT)
    return frame(_card(answer.phase, answer, answer_facts(answer, now), shown, "max-height:40em;overflow:auto"))


def answer_facts(answer: LiveAnswer, now: float) -> list[str]:
    """Endpoint, times, tokens and restarts of one answer; empty strings for unknown values."""
    return [
        answer.endpoint or "",
        _elapsed(answer, now),
        "" if answer.wait is None else f"first token after {seconds(answer.wait)}",
        *_volume(answer),
        _restarts(answer.restarts),
    ]


def answer_plain(answer: LiveAnswer, now: float) -> str:
    """One answer as plain text, followed by its summary line."""
    return "\n".join(part for part in (answer.text, last_line(answer, now)) if part)


def last_line(answer: LiveAnswer, now: float) -> str:
    """The summary line of one answer: its phase, facts and error."""
    return f"[{' · '.join(part for part in (answer.phase, *answer_facts(answer, now), clip(answer.trouble, MOST_TROUBLE)) if part)}]"


def board_html(board: Board, now: float) -> str:
    """The answers of a batch as a grid of cards."""
    cards = "".join(_small_card(index, board.answers[index]) for index in board.places)
    grid = f'<div style="display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:8px;margin:6px 0">{cards}</div>'
    more = f"<div>and {number(board.hidden)} more that {'is' if board.hidden == 1 else 'are'} not shown</div>" if board.hidden else ""
    return frame(f"<b>{facts(board_facts(board, now))}</b>", grid, more, _trouble(board.trouble))


def board_facts(board: Board, now: float) -> list[str]:
    """Counts, time, rate and restarts of all answers; empty strings for unknown values."""
    return [
        f"{number(board.ended.get(AnswerPhase.DONE, 0))} done",
        f"{number(board.live)} under way" if board.over is None else "",
        *(f"{number(count)} {phase}" for phase, count in sorted(board.ended.items()) if phase is not AnswerPhase.DONE),
        _elapsed(board, now),
        "" if board.rate is None else f"{number(board.rate)} tokens/s",
        _restarts(board.restarts),
    ]


def board_plain(board: Board, now: float) -> str:
    """The summary line of a batch."""
    return f"[{' · '.join(part for part in (*board_facts(board, now), clip(board.trouble, MOST_TROUBLE)) if part)}]"


def _small_card(index: int, answer: LiveAnswer) -> str:
    text = _tail(answer.text, CARD_TEXT) if answer.ended is None else clip(answer.text, CARD_TEXT)
    parts = [
        answer.endpoint or "",
        "" if answer.wait is None else f"first token at {seconds(answer.wait)}",
        "" if answer.took is None else f"took {seconds(answer.took)}",
        *_volume(answer),
        _restarts(answer.restarts),
    ]
    return _card(f"#{index} {answer.phase}", answer, parts, text, "")


def _card(title: str, answer: LiveAnswer, parts: list[str], text: str, limit: str) -> str:
    look = (
        f"border:1px solid {LINE};border-left:4px solid {_COLOURS.get(answer.phase, LINE)};border-radius:4px;padding:6px 10px;min-width:0"
    )
    said = (
        f'<pre style="{_PRE};{limit}">{escape(text)}</pre>'
        if text
        else "<div><i>no text</i></div>"
        if answer.phase is AnswerPhase.DONE
        else ""
    )
    void = f"it began anew after {answer.void}" if answer.void else ""
    head = f'<b>{escape(title)}</b> <span style="opacity:.75;font-size:12px">{facts(parts)}</span>'
    return f'<div style="{look}"><div>{head}</div>{said}{_trouble(answer.trouble)}{_trouble(void)}</div>'


def _trouble(words: str) -> str:
    return f'<div style="margin-top:4px;overflow-wrap:anywhere"><i>{escape(clip(words, MOST_TROUBLE))}</i></div>' if words else ""


def _volume(answer: LiveAnswer) -> list[str]:
    about = "" if answer.told is not None else "about "
    count = f"{about}{number(answer.tokens)} token{'' if answer.tokens == 1 else 's'}"
    return [count if answer.tokens else "", "" if answer.rate is None else f"{number(answer.rate)} tokens/s"]


def _elapsed(state: LiveAnswer | Board, now: float) -> str:
    over = state.ended if isinstance(state, LiveAnswer) else state.over
    return f"{int(state.elapsed(now))} s" if over is None else seconds(state.elapsed(now))


def _restarts(count: int) -> str:
    return "" if not count else "restarted once" if count == 1 else f"restarted {count} times"


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"({len(text) - most:,} characters before) …{text[-most:]}"


S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class AnswerView(Protocol[S_contra]):
    """An output that shows a state."""

    def draw(self, state: S_contra, now: float) -> None: ...

    def close(self, state: S_contra, now: float) -> None:
        """Show the final state."""


class Cell(Generic[S]):
    """One output of a notebook cell, updated when the content changes.

    Args:
        html: renders a state at a time as HTML.
        plain: renders a state at a time as plain text, for frontends that cannot show HTML.
    """

    def __init__(self, html: Callable[[S, float], str], plain: Callable[[S, float], str]) -> None:
        self._html, self._plain = html, plain
        self._handle: Any = None
        self._shown: dict[str, str] = {}

    def draw(self, state: S, now: float) -> None:
        page = {"text/html": self._html(state, now), "text/plain": self._plain(state, now)}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(page, raw=True, display_id=True)
        elif page != self._shown:
            self._handle.update(page, raw=True)
        self._shown = page

    close = draw


class Script:
    """Writes the text of one answer as it arrives, and a summary line at its end."""

    def __init__(self) -> None:
        self._written = self._restarts = 0

    def draw(self, state: LiveAnswer, now: float) -> None:  # noqa: ARG002
        if state.restarts != self._restarts:
            _write(f"\n[the answer begins anew after {state.void}]\n")
            self._written, self._restarts = 0, state.restarts
        text = state.text
        _write(text[self._written :])
        self._written = len(text)

    def close(self, state: LiveAnswer, now: float) -> None:
        self.draw(state, now)
        _write(f"\n{last_line(state, now)}\n")


class Lines:
    """Writes each answer of a batch when it has ended, and a summary line at the end."""

    def tell(self, index: int, answer: LiveAnswer) -> None:
        """Write an answer that has ended."""
        _write(f"#{index} {answer.text}\n   {last_line(answer, answer.ended or 0.0)}\n")

    def draw(self, state: Board, now: float) -> None:
        """Do nothing: several growing texts cannot be printed at once."""

    def close(self, state: Board, now: float) -> None:
        _write(f"{board_plain(state, now)}\n")


def in_notebook() -> bool:
    """Whether the code runs in a notebook, which can show HTML."""
    return is_notebook()


def _write(text: str) -> None:
    if text and sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


P = TypeVar("P")
R = TypeVar("R")

INTERVAL = 0.1
"""Seconds between two updates of the display: faster than anyone reads, and no load on a browser."""


@overload
def show(stream: Stream, *, clock: Callable[[], float] = monotonic) -> Coroutine[Any, Any, ChatCompletion]: ...
@overload
def show(stream: SyncStream, *, clock: Callable[[], float] = monotonic) -> ChatCompletion: ...
def show(stream: Stream | SyncStream, *, clock: Callable[[], float] = monotonic) -> Coroutine[Any, Any, ChatCompletion] | ChatCompletion:
    """Show a streamed answer as it arrives, with its endpoint, time to first token, tokens per second, and outcome.

    The display is updated at most ten times a second, and once at the end. Outside a notebook the text is printed as it arrives.

    Args:
        stream: the stream, which is read to its end. For a ``Stream``, await the return value. For a ``SyncStream``, the call blocks
            until the stream ends.
        clock: monotonic clock in seconds; for tests in virtual time.

    Returns:
        The complete answer.

    Raises:
        ConfigError: ``stream`` is not a stream of one answer.
        StreamInterrupted: the stream broke off. The text received so far is shown.
        RequestError: the request failed; this and other errors are those of :meth:`Stream.final`.

    Example:
        >>> async def cell(client, messages):
        ...     return await show(client.stream_chat_completion(messages, model="judge-7b"))
    """
    inner = stream._async if isinstance(stream, SyncStream) else stream
    if not isinstance(inner, Stream):
        raise ConfigError(f"show takes what stream_chat_completion returns, not {inner!r}; show_batch takes many streams")
    view: AnswerView[LiveAnswer] = Cell(answer_html, answer_plain) if in_notebook() else Script()
    drawing = Drawing(LiveAnswer(clock(), not inner.text, lambda: inner.text), view, clock)
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
    """Show the answers of a batch as they arrive, as a grid of cards. See :func:`show`.

    When an answer has ended, its card is reused for the next answer that begins. Outside a notebook each answer is printed when it
    has ended.

    Args:
        stream: the stream, which is read to its end. For a ``BatchStream``, await the return value. For a ``SyncBatchStream``, the call
            blocks until the stream ends.
        cards: most answers shown at once; 0 for no limit. At most 400 characters of each answer are shown.
        clock: monotonic clock in seconds; for tests in virtual time.

    Returns:
        All results in the order of the input, including failed ones.

    Raises:
        ConfigError: an argument is invalid.
        BatchInterrupted: the input iterable raised. The error holds the results that are done.

    Example:
        >>> async def cell(client, conversations):
        ...     return await show_batch(client.batch_stream_chat_completion(conversations, model="judge-7b"))
    """
    inner = stream._async if isinstance(stream, SyncBatchStream) else stream
    if not isinstance(inner, BatchStream):
        raise ConfigError(f"show_batch takes what batch_stream_chat_completion returns, not {inner!r}; show takes a single stream")
    board, lines = Board(clock(), options.count("cards", cards)), Lines()
    if in_notebook():
        drawing = Drawing(board, Cell(board_html, board_plain), clock)
    else:
        board.tell = lines.tell
        drawing = Drawing(board, lines, clock)
    return follow_batch(inner, drawing) if inner is stream else _block(follow_batch, inner, drawing)


class Drawing(Generic[S]):
    """A context manager that draws a state on entry, at intervals, and on exit.

    An error of a drawing at an interval is reported by the event loop and ends the updates; an error on entry or exit is raised.
    """

    def __init__(self, state: S, view: AnswerView[S], clock: Callable[[], float]) -> None:
        self.state = state
        self.clock = clock
        self._view = view
        self._timer: asyncio.TimerHandle | None = None

    def draw(self) -> None:
        """Draw the present state."""
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


async def follow(stream: Stream, drawing: Drawing[LiveAnswer]) -> ChatCompletion:
    """Read one stream to its end while its state is drawn."""
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
    """Read a batch stream to its end while its state is drawn."""
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
    """Run ``follow`` on the portal's event loop. The first drawing is in the caller's thread, so that the output belongs to its cell."""
    drawing.draw()
    return portal().call(follow, stream, drawing)
