"""Server-sent events: what the standard says, whatever the pieces in which the bytes come."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE
from shared_tools import each

from qreward.codecs.chat_stream import MOST_BYTES, Event, EventTooLong, Parser

Found = tuple[list[Event], bool]


def parsed(pieces: Iterable[bytes], most: int = MOST_BYTES) -> Found:
    """All events, and whether one was too long."""
    parser = Parser(most)
    events: list[Event] = []
    try:
        for piece in pieces:
            events.extend(parser.feed(piece))
        events.extend(parser.finish())
    except EventTooLong:
        return events, True
    return events, False


def events_of(*pieces: bytes) -> list[tuple[bytes, str]]:
    events, too_long = parsed(pieces)
    assert not too_long
    return [(event.data, event.name) for event in events]


CASES: dict[str, tuple[bytes, list[tuple[bytes, str]]]] = {
    "nothing": (b"", []),
    "one event": (b'data: {"a": 1}\n\n', [(b'{"a": 1}', "")]),
    "several events": (b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n", [(b"1", ""), (b"2", ""), (b"[DONE]", "")]),
    "no blank after the colon": (b"data:1\n\n", [(b"1", "")]),
    "only one blank belongs to the field": (b"data:   1 \n\n", [(b"  1 ", "")]),
    "crlf": (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [(b"1", ""), (b"2", "")]),
    "cr": (b"data: 1\r\rdata: 2\r\r", [(b"1", ""), (b"2", "")]),
    "line ends mixed": (b"data: 1\r\n\ndata: 2\n\r\ndata: 3\r\rdata: 4\n\n", [(b"1", ""), (b"2", ""), (b"3", ""), (b"4", "")]),
    "two kinds of line end in a row": (b"data: 1\r\r\ndata: 2\n\n", [(b"1", ""), (b"2", "")]),
    "no blank line at the end": (b"data: 1\n\ndata: 2\n", [(b"1", ""), (b"2", "")]),
    "no line end at the end": (b"data: 1\n\ndata: 2", [(b"1", ""), (b"2", "")]),
    "several lines": (b"data: a\ndata: b\ndata:\ndata: c\n\n", [(b"a\nb\n\nc", "")]),
    "named": (b"event: error\ndata: no\n\ndata: yes\n\n", [(b"no", "error"), (b"yes", "")]),
    "name after the data": (b"data: no\nevent: error\n\n", [(b"no", "error")]),
    "an error as llama.cpp tells it": (b"data: 1\n\nerror: no\n\n", [(b"1", ""), (b"no", "error")]),
    "name without data": (b"event: error\n\ndata: 1\n\n", [(b"1", "")]),
    "comments": (b": OPENROUTER PROCESSING\n\n: ping\ndata: 1\n: inside\n\n:\n\n", [(b"1", "")]),
    "fields nobody knows": (b"colour: red\ndata: 1\nData: 2\n data: 3\n\n", [(b"1", "")]),
    "a line without colon": (b"data\n\ndata\ndata\n\n", [(b"", ""), (b"\n", "")]),
    "blank lines": (b"\n\n\n\ndata: 1\n\n\n\n\ndata: 2\n\n\n", [(b"1", ""), (b"2", "")]),
    "byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", [(b"1", "")]),
    "byte order mark elsewhere": (b"data: 0\n\n\xef\xbb\xbfdata: 1\n\n", [(b"0", "")]),
    "part of a byte order mark": (b"\xef\xbb", []),
    "characters of several bytes": ("data: día 日本 🎈\n\n".encode(), [("día 日本 🎈".encode(), "")]),
    "what is no utf-8": (b"data: \xff\xfe\nevent: \xff\n\n", [(b"\xff\xfe", "\ufffd")]),
    "other line separators of unicode": ("data: a\u2028b\x0bc\x85d\n\n".encode(), [("a\u2028b\x0bc\x85d".encode(), "")]),
}


@each("name", CASES)
def test_a_stream_gives_its_events_whole_byte_by_byte_and_cut_at_any_one_place(name: str) -> None:
    stream, expected = CASES[name]
    assert events_of(stream) == expected
    assert events_of(*(bytes([byte]) for byte in stream)) == expected
    for place in range(len(stream)):
        assert events_of(stream[:place], stream[place:]) == expected, f"cut at {place}"


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    for end, enough in ((b"\n\n", 2), (b"\r\n\r\n", 3), (b"\r\r", 2)):  # a carriage return ends a line, whatever comes next
        parser = Parser()
        assert [*parser.feed(b"data: 1" + end)] == [Event(b"1")]
        assert [*parser.feed(b"data: 2" + end[: enough - 1])] == []
        assert [*parser.feed(end[enough - 1 : enough])] == [Event(b"2")]


TOO_LONG = {
    "one line": [b"data: " + b"x" * 60],
    "without an end": [b"data: ", *[b"x"] * 60],
    "many lines": [b"data: 0123456789\n" * 4],
    "many lines, one by one": [b"data: 0123456789\n"] * 4,
    "fields nobody knows": [b"colour: red\n"] * 6,
    "comment": [b":" + b"x" * 60],
    "comment without an end": [b": ", *[b"x"] * 60],
}


@each("name", TOO_LONG)
def test_an_event_beyond_the_limit_is_an_error_after_the_events_before_it_and_nothing_follows(name: str) -> None:
    pieces = [b"data: good\n\n", *TOO_LONG[name], b"\n\ndata: late\n\n"]
    assert parsed(pieces, 50) == ([Event(b"good")], True)
    assert parsed([b"".join(pieces)], 50) == ([Event(b"good")], True)
    parser = Parser(50)
    with pytest.raises(EventTooLong, match="longer than 50 bytes"):
        [*parser.feed(TOO_LONG["one line"][0])]
    for late in (b"data: late\n\n", b"event: x\ndata: late\n\n"):
        with pytest.raises(EventTooLong):
            [*parser.feed(late)]
    assert [*parser.finish()] == []


def test_events_as_long_as_the_limit_pass_and_comments_and_other_events_do_not_count() -> None:
    stream = b"data: " + b"x" * 44 + b"\n\n"
    for end in (b"\n", b"\r\n", b"\r"):
        events, too_long = parsed([(b": comment of fifty bytes, or nearly so" + end) * 9 + stream.replace(b"\n", end)] * 3, 50)
        assert (len(events), too_long) == (3, False)
        assert parsed([stream.replace(b"x\n", b"xx\n").replace(b"\n", end)], 50) == ([], True)


def test_a_long_line_in_many_pieces_costs_no_more_than_it_must() -> None:
    """Joining what is there at every piece would copy 30 GB here."""
    pieces = [b"data: ", *[b"x"] * (MOST_BYTES // 4), b"\n\n"]
    assert [len(event.data) for event in parsed(pieces)[0]] == [MOST_BYTES // 4]


# A second reading of the standard, with no care for speed: the whole stream at once, by regular expressions.
_LINE_END = re.compile(rb"\r\n|\n|\r")


def by_the_book(stream: bytes, most: int) -> Found:
    events: list[Event] = []
    data: list[bytes] = []
    name, size = "", 0
    for line in [*_LINE_END.split(stream.removeprefix(b"\xef\xbb\xbf")), b""]:
        if not line:
            events += [Event(b"\n".join(data), name)] if data else []
            data, name, size = [], "", 0
            continue
        size += 0 if line.startswith(b":") else len(line)
        if size > most or len(line) > most:
            return events, True
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field in (b"data", b"error"):
            data.append(value)
            name = "error" if field == b"error" else name
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return events, False


_FIELDS = [b"data: ", b"data:", b"data", b"event: error", b"event: x", b"error: y", b"id: 4", b"retry: 9"]
_TOKENS = [*_FIELDS, b": ping", b":", b"x", b"\xe2\x82\xac", b"\xef\xbb\xbf"]
_ENDS = [b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r", b'data: {"a":1}\n\n', b"data: [DONE]\r\n\r\n"]
_LIKE_SSE = st.lists(st.sampled_from(_TOKENS + _ENDS) | st.binary(max_size=3), max_size=40).map(b"".join)


_PLACES = st.lists(st.integers(0, 400), max_size=12)


@given(stream=_LIKE_SSE | st.binary(max_size=60), cuts=_PLACES, most=st.sampled_from([8, 20, MOST_BYTES]))
@settings(max_examples=200 * SCALE, deadline=None)
def test_any_bytes_cut_at_any_places_give_what_the_standard_says(stream: bytes, cuts: list[int], most: int) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    expected = by_the_book(stream, most)
    assert parsed(pieces, most) == expected
    assert parsed([stream], most) == expected
