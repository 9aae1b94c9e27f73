"""Live display of streams in a notebook: ``show`` for one answer, ``show_batch`` for many."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Any, overload

from qreward import options
from qreward.engine.portal import portal
from qreward.engine.streams import StreamRestarted
from qreward.errors import ConfigError, StreamInterrupted
from qreward.progress import is_notebook
from qreward.render import LINE, Cell, clip, facts, frame, number, seconds
from qreward.results import BatchResult, Result
from qreward.streaming import BatchStream, Stream, SyncBatchStream, SyncStream

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

__all__ = ["show", "show_batch"]

LIVE_TEXT = 20_000
"""Maximum number of characters of a single answer that are shown while it is streamed. The last characters are shown. There is a limit,
because these characters are sent to the page ten times a second."""
CARD_TEXT = 400
"""Maximum number of characters that are shown of each answer of a batch."""
MOST_ERROR = 600
"""Maximum number of characters that are shown of an error message."""
INTERVAL = 0.1
"""Seconds between two updates of the display. People cannot read faster, and a browser has little work."""

_COLOURS = {"done": "#2da44e", "interrupted": "#e5534b", "failed": "#e5534b", "stopped": "#bf8700"}  # on white and black
_PRE = (
    "margin:4px 0 0;padding:0;border:0;background:none;color:inherit;font:inherit;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
)

# what is shown


def _phase_of(error: BaseException | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return "stopped"
    return "interrupted" if isinstance(error, StreamInterrupted) else "failed"


def _error_text(error: BaseException | None) -> str:
    return "" if error is None or _phase_of(error) == "stopped" else f"{type(error).__name__}: {error}"


@dataclass(slots=True)
class LiveAnswer:
    """One streamed answer. Times are in seconds on the caller's clock, and None if unknown.

    ``phase`` is waiting, streaming, done, interrupted, failed or stopped. ``timed`` is False if part of the stream was read before, and
    ``read`` returns the text of a stream that keeps it.
    """

    began: float
    timed: bool = True
    read: Callable[[], str] | None = None
    phase: str = "waiting"
    pieces: list[str] = field(default_factory=list)
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    result: Result[Any] | None = None
    restarts: int = 0
    restart_reason: str = ""
    error: str = ""

    def add(self, event: str | StreamRestarted, now: float) -> None:
        if isinstance(event, StreamRestarted):
            self.phase, self.first, self.last = "waiting", None, None
            self.restarts += 1
            self.restart_reason = _error_text(event.error)
            self.pieces.clear()
            return
        self.phase, self.last = "streaming", now
        self.first = now if self.first is None else self.first
        self.pieces.append(event)

    def end(self, result: Result[Any] | None, error: BaseException | None, now: float) -> None:
        """Record the end. The text received so far is kept."""
        self.phase, self.error, self.ended, self.result = _phase_of(error), _error_text(error), now, result

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.read is None else self.read()

    def facts(self, now: float) -> list[str]:
        """Return endpoint, time, time to the first token, tokens and their rate. Before the server reports tokens, pieces are counted."""
        pieces, usage = len(self.pieces), self.result.usage if self.result is not None else None
        reported = usage.completion_tokens if usage is not None else None
        tokens, about = (pieces, "about ") if reported is None else (reported, "")
        first, rate = "", ""
        if self.timed and self.first is not None and self.last is not None:
            first = f"first token after {seconds(self.first - self.began)}"
            if self.last > self.first:  # the tokens of the first piece do not count
                rate = f"{number(tokens * (pieces - 1) / pieces / (self.last - self.first))} tokens/s"
        count = f"{about}{number(tokens)} token{'' if tokens == 1 else 's'}" if tokens else ""
        endpoint = (self.result.endpoint if self.result is not None else None) or ""
        return [endpoint, _elapsed(self, now), first, count, rate, _restarts(self.restarts)]

    def html(self, now: float) -> str:
        text = self.text if self.ended is not None else _tail(self.text, LIVE_TEXT)
        return frame(self.card(self.phase, now, text, "max-height:40em;overflow:auto"))

    def card(self, title: str, now: float, text: str, limit: str = "") -> str:
        colour = _COLOURS.get(self.phase, LINE)
        style = f"border:1px solid {LINE};border-left:4px solid {colour};border-radius:4px;padding:6px 10px;min-width:0"
        body = f'<pre style="{_PRE};{limit}">{escape(text)}</pre>' if text else ""
        if not text and self.phase == "done":
            body = "<div><i>no text</i></div>"
        restarted = f"it began anew after {self.restart_reason}" if self.restart_reason else ""
        head = f'<b>{escape(title)}</b> <span style="opacity:.75;font-size:12px">{facts(self.facts(now))}</span>'
        return f'<div style="{style}"><div>{head}</div>{body}{_error(self.error)}{_error(restarted)}</div>'

    def plain(self, now: float) -> str:
        summary = _bracketed(self.phase, *self.facts(now), clip(self.error, MOST_ERROR))
        return f"{self.text}\n{summary}" if self.text else summary


@dataclass(slots=True)
class LiveBatch:
    """The streamed answers of a batch. At most ``most`` of them have a place in the display; an answer that begins takes that of one that
    has ended. Answers without a place are dropped when they end."""

    began: float
    most: int
    places: list[int] = field(default_factory=list)
    answers: dict[int, LiveAnswer] = field(default_factory=dict)
    phases: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    pieces: int = 0
    last: float | None = None
    ended: float | None = None
    error: str = ""

    def add(self, indexed: tuple[int, str | StreamRestarted | Result[Any]], now: float) -> None:
        index, event = indexed
        answer = self.answers.setdefault(index, LiveAnswer(self.began))
        if index not in self.places:
            free = next((place for place, other in enumerate(self.places) if self.answers[other].ended is not None), None)
            if not self.most or len(self.places) < self.most:
                self.places.append(index)
            elif free is not None:
                del self.answers[self.places[free]]
                self.places[free] = index
        if isinstance(event, Result):
            answer.end(event, event.error, now)
            self.phases[answer.phase] += 1
            if index not in self.places:
                del self.answers[index]
            return
        answer.add(event, now)
        if isinstance(event, str):
            self.pieces, self.last = self.pieces + 1, now
        else:
            self.restarts += 1

    def end(self, _: Result[Any] | None, error: BaseException | None, now: float) -> None:
        """Record the end of the batch, and sort the places by index. Answers that are still being streamed count as stopped."""
        self.ended, self.error = now, _error_text(error)
        self.places.sort()
        for answer in self.answers.values():
            if answer.ended is None:
                answer.end(None, asyncio.CancelledError(), now)
                self.phases["stopped"] += 1

    def facts(self, now: float) -> list[str]:
        live = sum(answer.ended is None for answer in self.answers.values())
        rate = self.pieces / (self.last - self.began) if self.last is not None and self.last > self.began else None
        return [
            f"{number(self.phases['done'])} done",
            f"{number(live)} under way" if self.ended is None else "",
            *(f"{number(count)} {phase}" for phase, count in sorted(self.phases.items()) if phase != "done"),
            _elapsed(self, now),
            "" if rate is None else f"{number(rate)} tokens/s",
            _restarts(self.restarts),
        ]

    def html(self, now: float) -> str:
        cards = ""
        for index in self.places:
            answer = self.answers[index]
            text = _tail(answer.text, CARD_TEXT) if answer.ended is None else clip(answer.text, CARD_TEXT)
            cards += answer.card(f"#{index} {answer.phase}", now, text)
        grid = f'<div style="display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:8px;margin:6px 0">{cards}</div>'
        ended_without_place = self.phases.total() - sum(self.answers[index].ended is not None for index in self.places)
        hidden = ended_without_place + len(self.answers.keys() - self.places)
        more = f"<div>and {number(hidden)} more that {'is' if hidden == 1 else 'are'} not shown</div>" if hidden else ""
        return frame(f"<b>{facts(self.facts(now))}</b>", grid, more, _error(self.error))

    def plain(self, now: float) -> str:
        return _bracketed(*self.facts(now), clip(self.error, MOST_ERROR))


def _elapsed(state: LiveAnswer | LiveBatch, now: float) -> str:
    return f"{int(now - state.began)} s" if state.ended is None else seconds(state.ended - state.began)


def _restarts(count: int) -> str:
    return "" if not count else "restarted once" if count == 1 else f"restarted {count} times"


def _bracketed(*parts: str) -> str:
    return f"[{' · '.join(part for part in parts if part)}]"


def _error(text: str) -> str:
    return f'<div style="margin-top:4px;overflow-wrap:anywhere"><i>{escape(clip(text, MOST_ERROR))}</i></div>' if text else ""


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"({len(text) - most:,} characters before) …{text[-most:]}"


# reading and showing


@overload
def show(stream: Stream) -> Coroutine[Any, Any, ChatCompletion]: ...
@overload
def show(stream: SyncStream) -> ChatCompletion: ...
def show(stream: Stream | SyncStream) -> Coroutine[Any, Any, ChatCompletion] | ChatCompletion:
    """Show a streamed answer as it arrives, with its endpoint, time to first token, tokens per second, and outcome.

    The display is updated at most ten times a second, and once at the end. Outside a notebook, the text is printed at the end.

    Args:
        stream: the stream, which is read to its end. For a ``Stream``, await the return value. For a ``SyncStream``, the call blocks
            until the stream ends.

    Returns:
        The complete answer.

    Raises:
        ConfigError: ``stream`` is not a stream of one answer.
        StreamInterrupted: the stream broke off. The text received so far is shown.
        RequestError, Rejected: as in :meth:`Stream.final`.

    Example:
        >>> async def cell(client, messages):
        ...     return await show(client.stream_chat_completion(messages, model="judge-7b"))
    """
    inner = stream._async if isinstance(stream, SyncStream) else stream
    if not isinstance(inner, Stream):
        raise ConfigError(f"show takes what stream_chat_completion returns, not {inner!r}; show_batch takes many streams")
    answer = LiveAnswer(monotonic(), not inner.text, lambda: inner.text)
    return _run(inner, answer, blocks=inner is not stream)  # type: ignore[no-any-return]


@overload
def show_batch(stream: BatchStream, *, cards: int = 12) -> Coroutine[Any, Any, BatchResult[ChatCompletion]]: ...
@overload
def show_batch(stream: SyncBatchStream, *, cards: int = 12) -> BatchResult[ChatCompletion]: ...
def show_batch(
    stream: BatchStream | SyncBatchStream, *, cards: int = 12
) -> Coroutine[Any, Any, BatchResult[ChatCompletion]] | BatchResult[ChatCompletion]:
    """Show the answers of a batch as they arrive, as a grid of cards. Outside a notebook, only the counts are printed, at the end.

    Args:
        stream: the stream, which is read to its end, as in :func:`show`.
        cards: maximum number of answers that are shown at once; 0 for no limit. At most 400 characters of each answer are shown.

    Returns:
        All results in the order of the input, including the results of failed items.

    Raises:
        ConfigError: an argument is invalid.
        BatchInterrupted: the input iterable raised an exception. The ``BatchInterrupted`` holds the results that are done.

    Example:
        >>> async def cell(client, conversations):
        ...     return await show_batch(client.batch_stream_chat_completion(conversations, model="judge-7b"))
    """
    inner = stream._async if isinstance(stream, SyncBatchStream) else stream
    if not isinstance(inner, BatchStream):
        raise ConfigError(f"show_batch takes what batch_stream_chat_completion returns, not {inner!r}; show takes a single stream")
    batch = LiveBatch(monotonic(), options.count("cards", cards))
    return _run(inner, batch, blocks=inner is not stream)  # type: ignore[no-any-return]


def _run(stream: Stream | BatchStream, state: Any, *, blocks: bool) -> Any:
    """Return the coroutine that reads and shows a stream. If ``blocks`` is True, run it in the portal's loop and return its result."""
    cell = Cell() if is_notebook() else None

    def draw() -> None:
        now = monotonic()
        if cell is not None:
            cell.show(state.html(now), state.plain(now))
        elif state.ended is not None and sys.stdout is not None:
            sys.stdout.write(f"{state.plain(now)}\n")

    if not blocks:
        return _follow(stream, state, draw)
    draw()
    return portal().call(_follow, stream, state, draw)


async def _follow(stream: Stream | BatchStream, state: Any, draw: Callable[[], None]) -> Any:
    loop, timer = asyncio.get_running_loop(), None

    def tick() -> None:
        nonlocal timer
        draw()
        timer = loop.call_later(INTERVAL, tick)

    tick()
    error: BaseException | None = None
    try:
        async for event in stream.events():
            state.add(event, monotonic())
    except BaseException as problem:
        error = problem
        raise
    finally:
        state.end(stream.result if isinstance(stream, Stream) else None, error, monotonic())
        if timer is not None:
            timer.cancel()
        draw()
    return await (stream.final() if isinstance(stream, Stream) else stream.results())
