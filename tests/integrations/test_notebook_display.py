"""What cards say and hide: everything is escaped and bounded, whatever a judge or a server writes."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from shared_tools import each, words

from qreward import ConnectionFailed, RateLimited, Result, StreamInterrupted, StreamRestarted
from qreward.integrations.notebook import CARD_TEXT, LIVE_TEXT, LiveAnswer, LiveBatch

KNOWN = {"div", "span", "b", "i", "pre"}


class Tags(HTMLParser):
    """Notes tags and texts; each tag must be closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        assert not [name for name, _ in attrs if name not in ("style", "class", "title")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def answer(*pieces: str, error: BaseException | None = None, ended: bool = True, endpoint: str = "gpu-0") -> LiveAnswer:
    made = LiveAnswer(0.0)
    for number, piece in enumerate(pieces):
        made.add(piece, 1.0 + number)
    if ended:
        failed = error if isinstance(error, RateLimited | StreamInterrupted) else None
        made.end(Result(0, None, failed, endpoint, 0.5, 0.0), error, 10.0)
    return made


def batch(count: int, most: int, text: str = "yes") -> LiveBatch:
    made = LiveBatch(0.0, most)
    for index in range(count):
        made.add((index, text), 1.0)
    return made


@given(st.lists(st.text(max_size=40), max_size=4), st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_no_text_of_a_judge_or_a_server_becomes_markup(pieces: list[str], said: str, endpoint: str) -> None:
    page = answer(*pieces, error=RateLimited(said), endpoint=endpoint).html(20.0)
    found = Tags(page)
    assert set(found.tags) <= KNOWN
    text = "".join(pieces).replace("\r\n", "\n").replace("\r", "\n")
    assert not text.strip() or text in "".join(found.texts).replace("\r\n", "\n").replace("\r", "\n")


def test_markup_and_formulas_of_a_judge_are_shown_as_they_are_written() -> None:
    page = answer("<script>alert(1)</script></pre>", " & it costs $5 or $6").html(20.0)
    assert "<script" not in page
    assert page.count("</pre>") == 1
    assert "mathjax_ignore" in page
    assert words(page).endswith("<script>alert(1)</script></pre> & it costs $5 or $6")


@each(
    "error, phase",
    [
        (None, "done"),
        (StreamInterrupted("broken"), "interrupted"),
        (RateLimited("no room"), "failed"),
        (RuntimeError("a bug"), "failed"),
        (asyncio.CancelledError(), "stopped"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_a_card_shows_how_an_answer_ended_with_the_text_so_far(error: BaseException | None, phase: str) -> None:
    ended = answer("half", error=error)
    assert words(ended.html(20.0)).startswith(f"{phase} gpu-0 · 10.0 s")
    assert "half" in ended.html(20.0)
    said = str(error or "")
    assert (f"{type(error).__name__}: {said}" in words(ended.html(20.0))) == bool(said)
    assert ended.plain(20.0).startswith(f"half\n[{phase} · ")


def test_the_time_goes_on_until_the_end_and_then_stands_still() -> None:
    under_way, ended = answer("a", ended=False), answer("a")
    assert under_way.html(5.0) != under_way.html(7.0)
    assert under_way.html(5.1) == under_way.html(5.9)
    assert ended.html(11.0) == ended.html(99.0)
    assert words(answer().html(20.0)) == "done gpu-0 · 10.0 s no text"


def test_an_answer_that_began_anew_waits_again_without_its_text() -> None:
    again = answer("void", ended=False)
    again.add(StreamRestarted("void", ConnectionFailed("it <b>broke</b>")), 3.0)
    assert words(again.html(4.0)) == "waiting 4 s · restarted once it began anew after ConnectionFailed: it <b>broke</b>"
    again.add(StreamRestarted("", None), 5.0)
    assert words(again.html(6.0)) == "waiting 6 s · restarted 2 times"


def test_long_texts_are_cut_at_the_side_that_matters_less() -> None:
    text = "".join(f"<{number}> " for number in range(20_000))
    under_way, ended = answer(text, ended=False), answer(text)
    assert len(under_way.html(2.0)) < 4 * LIVE_TEXT
    assert f"({len(text) - LIVE_TEXT:,} characters before)" in words(under_way.html(2.0))
    assert words(under_way.html(2.0)).endswith("<19998> <19999>")
    assert text.strip() in words(ended.html(2.0))
    exactly = "x" * LIVE_TEXT
    assert words(answer(exactly, ended=False).html(2.0)).endswith(f" {exactly}")
    page = answer(error=RateLimited("no " * 10_000)).html(20.0)
    assert len(page) < 3000
    assert "more characters)" in page

    growing = batch(1, 3, "first " + "x" * 5000 + " last")
    assert words(growing.html(2.0)).endswith(" last")
    growing.add((0, Result(0, None, None, "gpu-0", 0.5, 0.0)), 3.0)
    growing.end(None, None, 3.0)
    assert "first x" in words(growing.html(3.0))
    assert " last" not in words(growing.html(3.0))
    assert len(growing.html(3.0)) < CARD_TEXT + 2000


def test_ten_thousand_answers_are_drawn_as_few_cards_and_one_count() -> None:
    many = batch(10_000, 12)
    page = many.html(2.0)
    assert Tags(page).tags.count("pre") == 12
    assert len(page) < 15_000
    assert words(page).startswith("0 done · 10,000 under way · 2 s · 10,000 tokens/s")
    assert words(page).endswith("and 9,988 more that are not shown")
    assert Tags(batch(50, 0).html(2.0)).tags.count("pre") == 50, "no limit"
    assert batch(3, 2).plain(2.5) == "[0 done · 3 under way · 2 s · 3 tokens/s]"


def test_what_has_ended_without_a_card_or_gave_its_card_away_is_let_go_of() -> None:
    ended: Result[Any] = Result(0, None, None, "gpu-0", 0.5, 0.0)
    many = batch(1000, 3)
    for index in range(3, 1000):
        many.add((index, ended), 2.0)
    assert set(many.answers) == {0, 1, 2}
    assert words(many.html(2.0)).startswith("997 done · 3 under way")
    assert words(many.html(2.0)).endswith("and 997 more that are not shown")
    many = LiveBatch(0.0, 3)
    for index in range(100):
        many.add((index, "yes"), 1.0)
        many.add((index, ended), 1.0)
    assert len(many.answers) == 3
    assert words(many.html(2.0)).startswith("100 done")
