"""What of an answer is the judge's own, and the marks that do not pair."""

from __future__ import annotations

import pytest

from qreward.judge.parsing import Unreadable
from qreward.judge.parsing.text import GAP, OBJECT, own_words, sentences, without_reasoning

WORDS = (
    ('He said "no" and left.', f"He said {GAP} and left."),
    ('He said "the "inner" one" and left.', f"He said {GAP}inner{GAP} and left."),
    ("It isn't the reader's fault.", "It isn't the reader's fault."),
    ("It isn't the students' fault.", f"It isn't the students'{GAP} fault."),
    ("It says 'don't do it' twice.", f"It says {GAP} twice."),
    ("Der Satz \u201eso\u201c endet.", f"Der Satz {GAP} endet."),
    ("\u00ab un \u00bb et \u00ab deux \u00bb", f"{GAP} et {GAP}"),
    ("`a` and ``b ` c``", f"{GAP} and {GAP}"),
    ("a\n> b\n>> c\n\nd", f"a\n{GAP}\n\nd"),
    ("a\n```\nb\n```\nc", f"a\n\n{GAP}\nc"),
    ("a\n~~~~ text\n~~~\n~~~~\nc", f"a\n\n{GAP}\nc"),
    ("x < y and y > z, List<int>", "x < y and y > z, List<int>"),
    ("<b>a</b><br>b", "a\nb"),
    ("<score>7</score>", "\nscore: 7\n"),
    ("<r>a</r>d", f"{GAP}d"),
    ("a <!-- b --> c", f"a {GAP} c"),
    ("a --> b", f"a -->{GAP} b"),
    ("{a, b} and {c}", "{a, b} and {c}"),
    ('x {"a": 1} y', "x {} y"),
    ('x {"score": 1} y', f"x {OBJECT} y"),
    ('```json\n{"score": 1}\n```\n```\n{"score": 2}\n```', f"\n{OBJECT}\n\n\n{GAP}"),
    (f"a {OBJECT} b", f"a {GAP} b"),
)

UNPAIRED = (
    'He said "no and left.',
    'He said no" and left.',
    '"a"b"',
    "a\u201d and b\u201d",
    "\u201cnever closed",
    "never opened\u201d",
    "\u00abnever closed",
    "It says 'no and left.",
    "`` a stray run",
    "```\nnever closed",
    "may close or open: ```\na",
    "~~~\n```\n",
    "<response>never closed",
    "never opened</response>",
    "<r>a<r>b</r>c</r>d",
    "<score>7",
    "7</score>",
    "<score>7<score>8</score>",
    "<score>7</rating>",
    "<!-- never closed",
    "> a\nb",
    '{"score": 7, "reason": "never closed',
    '{"score": <number>}',
    "{score: high}",
)


def own(text: str) -> str:
    return own_words(text, lambda members: members.get("score"))[0]


def test_what_is_quoted_leaves_a_gap() -> None:
    found = [(text, own(text), words) for text, words in WORDS]
    assert [wrong for wrong in found if wrong[1] != wrong[2]] == []


def test_marks_that_do_not_pair_are_refused() -> None:
    read = []
    for text in UNPAIRED:
        try:
            read.append((text, own(text)))
        except Unreadable:
            continue
    assert read == []


OWN_AFTER = (
    ("Here is my evaluation of the response:\n", True),
    ("The response is fine\n\n", True),
    ("It quotes much. So far so good.\n", True),
    ("It names 3 reasons:\n- one\n- two\n\n", True),
    ('The candidate wrote "no".\n', True),
    ("The candidate wrote:\n```\nno\n```\n", False),
    ("The candidate answered: 5.\n\n", True),
    ("The candidate answered: 5.\n", False),
    ("The candidate wrote:\n\n", False),
    ("The candidate wrote:\n\nno\n\n", False),
    ("The candidate wrote\n\n", False),
    ("## Candidate output\n", False),
    ("**The response**\n\n", False),
    ("The response has issues:\n", False),
    ('It says "no". ', True),
    ("It goes on... ", None),
    ("It wants a line, e.g. ", None),
    ("It says, ", None),
)


def test_a_sentence_is_the_judges_unless_what_stands_before_it_reports_anothers() -> None:
    found = []
    for before, expected in OWN_AFTER:
        *_, last = sentences(own(f"{before}This is it."))
        if expected is not (last.own if last.text == "This is it." else None):
            found.append((before, last))
    assert found == []


def test_a_sentence_between_two_quotations_is_not_the_judges() -> None:
    assert [sentence.own for sentence in sentences(own('One. "a"\nTwo.\nThree.\n"b"\nFour.'))] == [True, True, False, False, False, True]


def test_thought_is_taken_off() -> None:
    cases = [
        ("answer", ("", "answer")),
        ("<think>a</think>b<think>c</think>d", ("", "bd")),
        ("<THINK>a</Think>b", ("", "b")),
        ("<think><reasoning></think>b", ("", "b")),
        ("a</think>b", ("a", "b")),
    ]
    assert [(text, without_reasoning(text)) for text, _ in cases] == cases


def test_thought_that_does_not_pair_is_refused() -> None:
    for text in ("<think>a", "a<think>", "<think>a</think>b</think>c", "a</think>b</think>c", "<think>a</thinking>b"):
        with pytest.raises(Unreadable):
            without_reasoning(text)
