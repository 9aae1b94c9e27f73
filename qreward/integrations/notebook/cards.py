"""Streamed answers as HTML and as plain text. Pure: a state and the time in, text out; the same state gives the same text."""

from __future__ import annotations

from html import escape

from qreward.html.elements import LINE, clip, facts, frame, number, seconds
from qreward.integrations.notebook.state import Answer, Board, Phase

LIVE_TEXT = 20_000
"""Characters shown of an answer while it grows, the last ones: the whole of it is sent to the page ten times a second."""
CARD_TEXT = 400
"""Characters shown of one answer among many."""
MOST_TROUBLE = 600
"""Characters of an error's message."""

_COLOURS = {Phase.DONE: "#2da44e", Phase.INTERRUPTED: "#e5534b", Phase.FAILED: "#e5534b", Phase.STOPPED: "#bf8700"}  # on white and black
_PRE = (
    "margin:4px 0 0;padding:0;border:0;background:none;color:inherit;font:inherit;"
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
)


def answer_html(answer: Answer, now: float) -> str:
    """One answer, which has the whole width."""
    text = answer.text
    shown = text if answer.ended is not None else _tail(text, LIVE_TEXT)
    return frame(_card(answer.phase, answer, answer_facts(answer, now), shown, "max-height:40em;overflow:auto"))


def answer_facts(answer: Answer, now: float) -> list[str]:
    """What there is to say of one answer besides its text."""
    return [
        answer.endpoint or "",
        _elapsed(answer, now),
        "" if answer.wait is None else f"first token after {seconds(answer.wait)}",
        *_volume(answer),
        _restarts(answer.restarts),
    ]


def answer_plain(answer: Answer, now: float) -> str:
    """The same without HTML."""
    return "\n".join(part for part in (answer.text, last_line(answer, now)) if part)


def last_line(answer: Answer, now: float) -> str:
    """How it ended, in one line."""
    return f"[{' · '.join(part for part in (answer.phase, *answer_facts(answer, now), clip(answer.trouble, MOST_TROUBLE)) if part)}]"


def board_html(board: Board, now: float) -> str:
    """Many answers, as a grid of cards."""
    cards = "".join(_small_card(index, board.answers[index]) for index in board.places)
    grid = f'<div style="display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:8px;margin:6px 0">{cards}</div>'
    more = f"<div>and {number(board.hidden)} more that {'is' if board.hidden == 1 else 'are'} not shown</div>" if board.hidden else ""
    return frame(f"<b>{facts(board_facts(board, now))}</b>", grid, more, _trouble(board.trouble))


def board_facts(board: Board, now: float) -> list[str]:
    """What there is to say of all answers together."""
    return [
        f"{number(board.ended.get(Phase.DONE, 0))} done",
        f"{number(board.live)} under way" if board.over is None else "",
        *(f"{number(count)} {phase}" for phase, count in sorted(board.ended.items()) if phase is not Phase.DONE),
        _elapsed(board, now),
        "" if board.rate is None else f"{number(board.rate)} tokens/s",
        _restarts(board.restarts),
    ]


def board_plain(board: Board, now: float) -> str:
    """The same in one line."""
    return f"[{' · '.join(part for part in (*board_facts(board, now), clip(board.trouble, MOST_TROUBLE)) if part)}]"


def _small_card(index: int, answer: Answer) -> str:
    text = _tail(answer.text, CARD_TEXT) if answer.ended is None else clip(answer.text, CARD_TEXT)
    parts = [
        answer.endpoint or "",
        "" if answer.wait is None else f"first token at {seconds(answer.wait)}",
        "" if answer.took is None else f"took {seconds(answer.took)}",
        *_volume(answer),
        _restarts(answer.restarts),
    ]
    return _card(f"#{index} {answer.phase}", answer, parts, text, "")


def _card(title: str, answer: Answer, parts: list[str], text: str, limit: str) -> str:
    look = (
        f"border:1px solid {LINE};border-left:4px solid {_COLOURS.get(answer.phase, LINE)};border-radius:4px;padding:6px 10px;min-width:0"
    )
    said = (
        f'<pre style="{_PRE};{limit}">{escape(text)}</pre>' if text else "<div><i>no text</i></div>" if answer.phase is Phase.DONE else ""
    )
    void = f"it began anew after {answer.void}" if answer.void else ""
    head = f'<b>{escape(title)}</b> <span style="opacity:.75;font-size:12px">{facts(parts)}</span>'
    return f'<div style="{look}"><div>{head}</div>{said}{_trouble(answer.trouble)}{_trouble(void)}</div>'


def _trouble(words: str) -> str:
    return f'<div style="margin-top:4px;overflow-wrap:anywhere"><i>{escape(clip(words, MOST_TROUBLE))}</i></div>' if words else ""


def _volume(answer: Answer) -> list[str]:
    about = "" if answer.told is not None else "about "
    count = f"{about}{number(answer.tokens)} token{'' if answer.tokens == 1 else 's'}"
    return [count if answer.tokens else "", "" if answer.rate is None else f"{number(answer.rate)} tokens/s"]


def _elapsed(state: Answer | Board, now: float) -> str:
    over = state.ended if isinstance(state, Answer) else state.over
    return f"{int(state.elapsed(now))} s" if over is None else seconds(state.elapsed(now))


def _restarts(count: int) -> str:
    return "" if not count else "restarted once" if count == 1 else f"restarted {count} times"


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"({len(text) - most:,} characters before) …{text[-most:]}"
