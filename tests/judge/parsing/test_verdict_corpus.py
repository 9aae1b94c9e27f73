"""Every text of the corpus in ``texts/`` is read as what is written beside it, or refused.

A text file holds cases: ``=== expected | what it is``, and the text below. ``tables.json`` holds shorter texts, and shapes with ``<?>`` for
the score, which are put into wrappers. What is expected is written there; nothing is computed by the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, Unreadable, YesNoVerdict, read

TEXTS = Path(__file__).parent / "texts"
TABLES: dict[str, Any] = {name: table["texts"] for name, table in json.loads((TEXTS / "tables.json").read_text("utf-8")).items()}
REFUSED = "none"
FIELDS: dict[str, tuple[type[BaseModel], str]] = {
    "score": (ScoreVerdict, "score"),
    "yes_no": (YesNoVerdict, "verdict"),
    "preference": (PreferenceVerdict, "preferred"),
}
Cases = Iterable[tuple[str, str]]
"""What is expected, and the text."""


def written(stem: str) -> Iterator[tuple[str, str]]:
    for part in ("\n" + (TEXTS / f"{stem}.txt").read_text(encoding="utf-8")).split("\n=== ")[1:]:
        head, _, text = part.partition("\n")
        yield head.partition(" | ")[0], text


def outcome(kind: str, text: str) -> str:
    model, field = FIELDS[kind]
    try:
        value = getattr(read(text, model, scale=(0.0, 10.0)), field)
    except Unreadable:
        return REFUSED
    return f"{value:g}" if isinstance(value, float) else str(value)


def check(kind: str, cases: Cases) -> None:
    """Fail with the texts that come to something else than what is expected of them."""
    outcomes = [(expected, outcome(kind, text), text) for expected, text in cases]
    assert outcomes
    wrong = [f"{text!r}: expected {expected}, not {found}" for expected, found, text in outcomes if found != expected]
    assert wrong == []


def refused(texts: Iterable[str]) -> Cases:
    return [(REFUSED, text) for text in texts]


def test_each_text_written_by_hand_is_read_as_it_is_marked() -> None:
    for stem, kind in {
        "scores": "score",
        "objects": "score",
        "adversarial": "score",
        "yes_no": "yes_no",
        "preferences": "preference",
    }.items():
        check(kind, written(stem))


def test_a_verdict_in_a_sentence_that_says_more_is_refused() -> None:
    """The heads of ``refused.txt`` are the kind, and what the text may mean."""
    for kind in FIELDS:
        check(kind, refused(text for head, text in written("refused") if head.split()[0] == kind))


def test_a_score_that_is_taken_back_reported_of_the_task_or_beside_a_rival_is_refused() -> None:
    for name in ("retracted", "task_words", "reported", "rivals"):
        check("score", refused(TABLES[name]))


def test_what_follows_a_score_must_say_that_it_is_a_reason() -> None:
    followed = product(("Score: 8. ", "Score: 8\n", "Score: 8\n\n", '{"score": 8}\n\n'), TABLES["followed_by"] + TABLES["not_announced"])
    check("score", refused(map("".join, followed)))


def test_a_clear_score_is_read_whatever_the_working_says_and_none_where_it_may_be_quoted_or_reported() -> None:
    for name in ("plain", "reports", "paired", "unpaired", "reasoning"):
        check("score", TABLES[name])


def test_choices_are_read_and_refused_by_the_same_rules() -> None:
    for kind in ("yes_no", "preference"):
        check(kind, refused(TABLES["refused_choices"][kind]))
        check(kind, TABLES["plain_choices"][kind])


def test_each_word_that_makes_a_verdict_or_takes_one_back_is_known() -> None:
    """Beside each list stands what its text comes to with a word that means nothing."""
    for kind, expected, otherwise, text, words in TABLES["words"]:
        check(kind, [(expected, text.replace("<?>", word)) for word in words] + [(otherwise, text.replace("<?>", "plain"))])


def combined(shapes: list[str], wrappers: list[str], *scores: str) -> Iterator[tuple[str, str]]:
    for shape, wrapper, score in product(shapes, wrappers, scores):
        yield score, wrapper.replace("<?>", shape).replace("<?>", score)


def test_every_shape_of_a_score_is_read_in_whatever_may_stand_around_it() -> None:
    labelled, objects, thought, prose, quoting = (TABLES[name] for name in ("labelled", "objects", "thought", "prose", "quoting"))
    check("score", combined(TABLES["alone"], thought, "0", "7", "8.5", "10"))
    check("score", combined(labelled, [*thought[1:3], thought[6], *prose], "0", "8.5"))
    check("score", combined(objects, [*thought, *prose], "0", "8.5"))
    check("score", combined(labelled + objects, quoting, "2"))


def test_what_is_no_score_or_perhaps_anothers_is_refused_in_whatever_stands_around_it() -> None:
    thought, prose, quoting = TABLES["thought"], TABLES["prose"], TABLES["quoting"]
    no_scores = combined(TABLES["no_numbers"], [*thought[:3], *prose, quoting[0], quoting[7]], "2")
    rivals = combined(TABLES["labelled"] + TABLES["objects"], TABLES["unmarked"], "2")
    check("score", refused(text for _, text in [*no_scores, *rivals]))
