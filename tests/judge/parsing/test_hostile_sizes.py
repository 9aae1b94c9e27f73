"""Large and hostile answers: work grows with their length and no faster, and no character is visited twice in search of an object."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from types import FrameType

import pytest

from qreward.judge.parsing import LONGEST, Form, PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, form_of, read
from qreward.judge.parsing import text as answer_text
from qreward.judge.parsing.forms import JSON
from qreward.judge.parsing.text import object_at

PIECES = (
    *(
        "{",
        "}",
        "[",
        '"',
        "'",
        "`",
        "*",
        "<",
        "7",
        "\\",
        "\n",
        " ",
        "\u201c",
        "\u2018a ",
        ' "a',
        " 'a b",
        "[[",
        "[[7]] ",
        "[[7]]\n",
        "$a",
        "| ",
    ),
    *("<think>", "</think>", "<response>", "<a></a>", "<b ", "<!-- ", "<score>", "```\n", "> \n", "> a\nb\n", "\\boxed{"),
    *('{"a":', "{/*", "{//\n", '{"\\', "{a:1,", "{'", '{"score": ', '{"score": 7}', "[{", '{"a": {"a": [', "{ "),
    *("Score: ", "Score: 7\n", "Score: 7 ", "7/10 ", "the ", "my,", "I give it ", "score for a ", "The candidate wrote: ", "no, "),
    "A is overall ",
)


FORMS = (JSON, *map(form_of, ("[[5]]", "<score>7</score>", "Score: 7", "\\boxed{7}")))


def _read(text: str, forms: Sequence[Form] = FORMS) -> str:
    outcomes = []
    for model, form in product((ScoreVerdict, YesNoVerdict, PreferenceVerdict), forms):
        try:
            outcomes.append(repr(read(text, model, scale=(0, 10) if model is ScoreVerdict else None, form=form)))
        except Unreadable as refusal:
            outcomes.append(refusal.reason)
    return " ".join(outcomes)


def test_a_megabyte_of_anything_is_refused_except_as_thought() -> None:
    assert [piece for piece in PIECES if "score=" in _read((piece * (1_000_000 // len(piece) + 1))[:1_000_000])] == []
    thought = "Perhaps {7} or 'so. " * 50_000
    assert read(f"<think>{thought}</think>Score: 7", ScoreVerdict, scale=(0, 10)).score == 7
    nested = '{"score": 7, "x": ' + "[" * 40 + "]" * 40 + "}"
    for text in ('{"a":' * 50_000, '{"a":' * 40 + "1" + "}" * 40, '{"score": ' + "[" * 50_000, nested):
        with pytest.raises(Unreadable):
            read(text, ScoreVerdict, scale=(0, 10))


def test_an_answer_longer_than_any_verdict_is_refused_and_a_shorter_one_is_not() -> None:
    filler = "It is so.\n" * (LONGEST // 10 - 2)
    assert read(f"{filler}\nScore: 7", ScoreVerdict, scale=(0, 10)).score == 7
    with pytest.raises(Unreadable, match="too long"):
        read(f"{filler}{filler}\nScore: 7", ScoreVerdict, scale=(0, 10))
    forms = {"object": ('{"score": 7, "reason": "', "It is so", '"}', 0), "thought": ("", "It is so", ".", len("</think>Score: 7"))}
    for name, (begin, words, end, more) in forms.items():
        longest = begin + (words * LONGEST)[: LONGEST - len(begin) - len(end)] + end
        after = "</think>Score: 7" if more else ""
        assert read(longest + after, ScoreVerdict, scale=(0, 10)).score == 7, name
        with pytest.raises(Unreadable):
            read(longest[: len(begin)] + "x" + longest[len(begin) :] + after, ScoreVerdict, scale=(0, 10))


def steps(work: Callable[[], object]) -> int:
    """Calls of Python and C functions that some work makes."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_twice_the_answer_is_at_most_twice_the_steps() -> None:
    slow = []
    for piece in PIECES:
        once = piece * 4 * (250 // len(piece))  # an even number, as every second mark may close a quotation
        twice = once * 2
        _read(once)
        few, many = steps(lambda text=once: _read(text)), steps(lambda text=twice: _read(text))  # type: ignore[misc]
        if many > 2.2 * few + 300:
            slow.append((piece, few, many))
    assert slow == []


def test_no_character_is_looked_at_by_two_attempts_at_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[int, int]] = []

    def watched(answer: str, start: int) -> tuple[dict[str, object], int]:
        spans.append((start, len(answer)))  # a failure may have looked at all of the text, and must be the last attempt
        found, end = object_at(answer, start)
        spans[-1] = (start, end)
        return found, end

    monkeypatch.setattr(answer_text, "object_at", watched)
    for piece in (piece for piece in PIECES if "{" in piece):
        spans.clear()
        with contextlib.suppress(Unreadable):
            answer_text.own_words(piece * 2_000, lambda members: members)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans)), piece
