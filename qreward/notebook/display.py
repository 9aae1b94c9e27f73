"""``show`` and ``show_batch``: read streams to their end, and display the progress at intervals and at the end."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from qreward import options
from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.notebook.render import LINE, clip, facts, frame, number, seconds
from qreward.notebook.state import AnswerPhase, LiveAnswer, LiveBatch
from qreward.progress import is_notebook
from qreward.results import BatchResult
from qreward.streaming.handles import BatchStream, Stream
from qreward.streaming.sync import SyncBatchStream, SyncStream

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

LIVE_TEXT = 20_000
"""Maximum number of characters of a single answer that are shown while it is streamed. The last characters are shown. There is a limit,
because these characters are sent to the page ten times a second."""
CARD_TEXT = 400
"""Maximum number of characters that are shown of each answer of a batch."""
MOST_ERROR = 600
"""Maximum number of characters that are shown of an error message."""
INTERVAL = 0.1
"""Seconds between two updates of the display. People cannot read faster, and a browser has little work."""

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

# texts


def answer_html(answer: LiveAnswer, now: float) -> str:
    text = answer.text if answer.ended is not None else _tail(answer.text, LIVE_TEXT)
    return frame(_card(answer.phase, answer, _answer_facts(answer, now), text, "max-height:40em;overflow:auto"))


def answer_plain(answer: LiveAnswer, now: float) -> str:
    return "\n".join(part for part in (answer.text, summary(answer, now)) if part)


def summary(answer: LiveAnswer, now: float) -> str:
    return _bracketed(answer.phase, *_answer_facts(answer, now), clip(answer.error, MOST_ERROR))


def answers_html(batch: LiveBatch, now: float) -> str:
    cards = "".join(_small_card(index, batch.answers[index]) for index in batch.places)
    grid = f'<div style="display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:8px;margin:6px 0">{cards}</div>'
    more = f"<div>and {number(batch.hidden)} more that {'is' if batch.hidden == 1 else 'are'} not shown</div>" if batch.hidden else ""
    return frame(f"<b>{facts(_batch_facts(batch, now))}</b>", grid, more, _error(batch.error))


def answers_plain(batch: LiveBatch, now: float) -> str:
    return _bracketed(*_batch_facts(batch, now), clip(batch.error, MOST_ERROR))


def _bracketed(*parts: str) -> str:
    return f"[{' · '.join(part for part in parts if part)}]"


def _answer_facts(answer: LiveAnswer, now: float) -> list[str]:
    first = "" if answer.wait is None else f"first token after {seconds(answer.wait)}"
    return [answer.endpoint or "", _elapsed(answer, now), first, *_volume(answer), _restarts(answer.restarts)]


def _batch_facts(batch: LiveBatch, now: float) -> list[str]:
    return [
        f"{number(batch.phases[AnswerPhase.DONE])} done",
        f"{number(batch.live)} under way" if batch.ended is None else "",
        *(f"{number(count)} {phase}" for phase, count in sorted(batch.phases.items()) if phase is not AnswerPhase.DONE),
        _elapsed(batch, now),
        "" if batch.rate is None else f"{number(batch.rate)} tokens/s",
        _restarts(batch.restarts),
    ]


def _small_card(index: int, answer: LiveAnswer) -> str:
    text = _tail(answer.text, CARD_TEXT) if answer.ended is None else clip(answer.text, CARD_TEXT)
    first = "" if answer.wait is None else f"first token at {seconds(answer.wait)}"
    took = "" if answer.latency is None else f"took {seconds(answer.latency)}"
    parts = [answer.endpoint or "", first, took, *_volume(answer), _restarts(answer.restarts)]
    return _card(f"#{index} {answer.phase}", answer, parts, text, "")


def _card(title: str, answer: LiveAnswer, parts: list[str], text: str, limit: str) -> str:
    colour = _COLOURS.get(answer.phase, LINE)
    style = f"border:1px solid {LINE};border-left:4px solid {colour};border-radius:4px;padding:6px 10px;min-width:0"
    body = f'<pre style="{_PRE};{limit}">{escape(text)}</pre>' if text else ""
    if not text and answer.phase is AnswerPhase.DONE:
        body = "<div><i>no text</i></div>"
    restarted = f"it began anew after {answer.restart_reason}" if answer.restart_reason else ""
    head = f'<b>{escape(title)}</b> <span style="opacity:.75;font-size:12px">{facts(parts)}</span>'
    return f'<div style="{style}"><div>{head}</div>{body}{_error(answer.error)}{_error(restarted)}</div>'


def _error(text: str) -> str:
    return f'<div style="margin-top:4px;overflow-wrap:anywhere"><i>{escape(clip(text, MOST_ERROR))}</i></div>' if text else ""


def _volume(answer: LiveAnswer) -> list[str]:
    about = "" if answer.reported_tokens is not None else "about "
    count = f"{about}{number(answer.tokens)} token{'' if answer.tokens == 1 else 's'}"
    return [count if answer.tokens else "", "" if answer.rate is None else f"{number(answer.rate)} tokens/s"]


def _elapsed(state: LiveAnswer | LiveBatch, now: float) -> str:
    return f"{int(now - state.began)} s" if state.ended is None else seconds(state.ended - state.began)


def _restarts(count: int) -> str:
    return "" if not count else "restarted once" if count == 1 else f"restarted {count} times"


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"({len(text) - most:,} characters before) …{text[-most:]}"


# views

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")
View = Callable[[S, float], None]
"""Function that shows a state at a given time. The last call shows the final state, whose ``ended`` is set."""


class Cell(Generic[S]):
    """One output of a notebook cell. It is updated when the content changes. Frontends that cannot show HTML show the plain text."""

    def __init__(self, html: Callable[[S, float], str], plain: Callable[[S, float], str]) -> None:
        self._html, self._plain = html, plain
        self._handle: Any = None
        self._shown: dict[str, str] = {}

    def __call__(self, state: S, now: float) -> None:
        page = {"text/html": self._html(state, now), "text/plain": self._plain(state, now)}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(page, raw=True, display_id=True)
        elif page != self._shown:
            self._handle.update(page, raw=True)
        self._shown = page


class Script:
    """Writes the text of one answer as it arrives, and a summary line at its end."""

    def __init__(self) -> None:
        self._written = self._restarts = 0

    def __call__(self, answer: LiveAnswer, now: float) -> None:
        if answer.restarts != self._restarts:
            _write(f"\n[the answer begins anew after {answer.restart_reason}]\n")
            self._written, self._restarts = 0, answer.restarts
        text = answer.text
        _write(text[self._written :])
        self._written = len(text)
        if answer.ended is not None:
            _write(f"\n{summary(answer, now)}\n")


def print_answer(index: int, answer: LiveAnswer) -> None:
    """Print an answer of a batch. It is printed only after it has ended, because several growing texts cannot be printed at once."""
    _write(f"#{index} {answer.text}\n   {summary(answer, answer.ended or 0.0)}\n")


def print_end(batch: LiveBatch, now: float) -> None:
    if batch.ended is not None:
        _write(f"{answers_plain(batch, now)}\n")


def _write(text: str) -> None:
    if text and sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


# reading and showing


@overload
def show(stream: Stream, *, clock: Callable[[], float] = monotonic) -> Coroutine[Any, Any, ChatCompletion]: ...
@overload
def show(stream: SyncStream, *, clock: Callable[[], float] = monotonic) -> ChatCompletion: ...
def show(stream: Stream | SyncStream, *, clock: Callable[[], float] = monotonic) -> Coroutine[Any, Any, ChatCompletion] | ChatCompletion:
    """Show a streamed answer as it arrives, with its endpoint, time to first token, tokens per second, and outcome.

    The display is updated at most ten times a second, and once at the end. Outside a notebook, the text is printed as it arrives.

    Args:
        stream: the stream, which is read to its end. For a ``Stream``, await the return value. For a ``SyncStream``, the call blocks
            until the stream ends.
        clock: monotonic clock in seconds; for tests in virtual time.

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
    answer = LiveAnswer(clock(), not inner.text, lambda: inner.text)
    view: View[LiveAnswer] = Cell(answer_html, answer_plain) if is_notebook() else Script()
    return _run(follow, inner, answer, view, clock, blocks=inner is not stream)


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

    When an answer has ended, its card is reused for the next answer that begins. Outside a notebook, each answer is printed when it
    has ended.

    Args:
        stream: the stream, which is read to its end. For a ``BatchStream``, await the return value. For a ``SyncBatchStream``, the call
            blocks until the stream ends.
        cards: maximum number of answers that are shown at once; 0 for no limit. At most 400 characters of each answer are shown.
        clock: monotonic clock in seconds; for tests in virtual time.

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
    batch = LiveBatch(clock(), options.count("cards", cards))
    view: View[LiveBatch] = Cell(answers_html, answers_plain)
    if not is_notebook():
        batch.on_end, view = print_answer, print_end
    return _run(follow_batch, inner, batch, view, clock, blocks=inner is not stream)


@contextmanager
def redrawn(draw: Callable[[], None]) -> Iterator[None]:
    """Call ``draw`` on entry, at intervals, and on exit."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal timer
        draw()
        timer = loop.call_later(INTERVAL, tick)

    tick()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        draw()


async def follow(stream: Stream, answer: LiveAnswer, draw: Callable[[], None], clock: Callable[[], float]) -> ChatCompletion:
    with redrawn(draw):
        try:
            async for event in stream.events():
                answer.add(event, clock())
        except BaseException as error:
            answer.end(stream.result, error, clock())
            raise
        answer.end(stream.result, None, clock())
    return await stream.final()


async def follow_batch(
    stream: BatchStream, batch: LiveBatch, draw: Callable[[], None], clock: Callable[[], float]
) -> BatchResult[ChatCompletion]:
    with redrawn(draw):
        try:
            async for index, event in stream.events():
                batch.add(index, event, clock())
        except BaseException as error:
            batch.end(error, clock())
            raise
        batch.end(None, clock())
    return await stream.results()


def _run(
    follow: Callable[[P, S, Callable[[], None], Callable[[], float]], Coroutine[Any, Any, R]],
    stream: P,
    state: S,
    view: View[S],
    clock: Callable[[], float],
    *,
    blocks: bool,
) -> Coroutine[Any, Any, R] | R:
    """Call ``follow`` and return its coroutine. If ``blocks`` is True, run it in the portal's event loop and return its result."""

    def draw() -> None:
        view(state, clock())

    if not blocks:
        return follow(stream, state, draw, clock)
    draw()
    return portal().call(follow, stream, state, draw, clock)
