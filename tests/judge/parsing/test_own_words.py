"""What of an answer is the judge's own, and the marks that leave it open."""

from __future__ import annotations

import pytest

from qreward.judge.parsing import Unreadable
from qreward.judge.parsing.own import GAP, own_of
from qreward.judge.parsing.thought import without_thought


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('He said "no" and left.', f"He said {GAP} and left."),
        ('He said "the "inner" one" and left.', f"He said {GAP} and left."),
        ('He said "a \\" b" and left.', f"He said {GAP} and left."),
        ('It is 5" wide and 6" long.', 'It is 5" wide and 6" long.'),
        ("It isn't the students' fault.", "It isn't the students' fault."),
        ("It says 'don't do it' twice.", f"It says {GAP} twice."),
        ("\u201eein \u201einnerer\u201c Satz\u201c", GAP),
        ("\u00ab un \u00bb et \u00ab deux \u00bb", f"{GAP} et {GAP}"),
        ("`a` and ``b ` c``", f"{GAP} and {GAP}"),
        ("`` a stray run", "`` a stray run"),
        ("the value `7` is", "the value 7 is"),
        ("a\n> b\n>> c\n\nd", f"a\n{GAP}\n{GAP}\n\nd"),
        ("a\n```\nb\n```\nc", f"a\n\n{GAP}\nc"),
        ("a\n~~~~ text\n~~~\n~~~~\nc", f"a\n\n{GAP}\nc"),
        ("x < y and y > z, List<int>", "x < y and y > z, List<int>"),
        ("<b>a</b><br>b", "a\nb"),
        ("<score>7</score>", "\nscore: 7\n"),
        ("<r>a<r>b</r>c</r>d", f"{GAP}d"),
        ("a <!-- b --> c", f"a {GAP} c"),
        ("{a, b} and {c}", "{a, b} and {c}"),
        ('x {"a": 1} y', f"x {GAP} y"),
    ],
)
def test_what_is_quoted_leaves_a_gap(text: str, words: str) -> None:
    assert own_of(text).words == words


@pytest.mark.parametrize(
    ("text", "of_what"),
    [
        ('He said "no and left.', "quotation marks"),
        ('He said no" and left.', "quotation marks"),
        ('"a"b"', "quotation marks"),
        ('He said no" and left" then.', "quotation marks"),
        ("a\u201d and b\u201d", "quotation marks"),
        ('a\u201d and b"', "quotation marks"),
        ("\u201cnever closed", "quotation marks"),
        ("never opened\u201d", "quotation marks"),
        ("\u00abnever closed", "quotation marks"),
        ("```\nnever closed", "fences"),
        ("may close or open: ```\na\n```", "fences"),
        ("~~~\n```\n", "fences"),
        ("<response>never closed", "tags"),
        ("never opened</response>", "tags"),
        ("<r><r></r>", "tags"),
        ("<score>7", "tags"),
        ("7</score>", "tags"),
        ("<score>7<score>8</score>", "tags"),
        ("<score>7</rating>", "tags"),
        ("<!-- never closed", "tags"),
        ("never opened }", "brace"),
    ],
)
def test_marks_that_do_not_pair_leave_it_open_what_is_quoted(text: str, of_what: str) -> None:
    with pytest.raises(Unreadable, match=of_what):
        own_of(text)


def test_a_json_block_is_the_judges_and_other_blocks_are_not() -> None:
    assert [found.members for found in own_of('```json\n{"a": 1}\n```\n```\n{"a": 2}\n```').objects] == [{"a": 1}]


@pytest.mark.parametrize(
    ("before", "after", "own"),
    [
        ("Here is my evaluation of the response:\n", "", True),
        ("The response is fine\n\n", "", True),
        ("It quotes much. So: ", "", True),
        ("The candidate wrote:\n\n", "", False),
        ("## Candidate output\n", "", False),
        ("As an example ", "", False),
        ("Verdict: ", " as you asked", True),
        ("", " is what it wrote", False),
        ("'", "", False),
        ("The response ", "", False),
    ],
)
def test_an_object_is_the_judges_unless_its_sentence_gives_it_to_another(before: str, after: str, own: bool) -> None:
    assert [found.own for found in own_of(f'{before}{{"score": 7}}{after}').objects] == [own]


def test_lines_that_run_on_after_a_block_quote_are_kept_apart() -> None:
    found = own_of("> a\nb\nc\n\nd")
    assert found.words == f"{GAP}\n{GAP}\n{GAP}\n\nd"
    assert found.doubtful == "b\nc\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("answer", ("", "answer")),
        ("<think>a</think>b<think>c</think>d", ("", "bd")),
        ("<THINK>a</Think>b", ("", "b")),
        ("<think><reasoning></think>b", ("", "b")),
        ("a</think>b", ("a", "b")),
    ],
)
def test_thought_is_taken_off(text: str, parts: tuple[str, str]) -> None:
    assert without_thought(text) == parts


@pytest.mark.parametrize("text", ["<think>a", "a<think>", "<think>a</think>b</think>c", "a</think>b</think>c", "<think>a</thinking>b"])
def test_thought_that_does_not_pair_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        without_thought(text)
