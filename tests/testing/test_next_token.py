"""Prompts that ask for one label, the tokens that can come first, and the fake tokenizer."""

from __future__ import annotations

import math

import pytest
from fakes.next_token import TOKENIZER, NextToken, read_prompt, score_labels
from hypothesis import given
from hypothesis import strategies as st

from qreward.testing import SyntheticJudge
from qreward.testing.responders import Asked

# Prompt -> input, kind, question, options, labels; None for a prompt that asks for no label.
PROMPTS: list[tuple[str, tuple[str, str, str, tuple[object, ...], tuple[str, ...]] | None]] = [
    ("It is 4.\n\nQuestion: Tone?\nA: calm: factual\nB: rude\nReply with the letter of one option, and nothing else.",
     ("It is 4.", "choice", "Tone?", ("calm: factual", "rude"), ("A", "B"))),
    ("It is 4.\n\nRate: How clear?\n0: bad\n1: good\nReply with the number of one level, and nothing else.",
     ("It is 4.", "score", "How clear?", ("bad", "good"), ("0", "1"))),
    ("It is 4.\n\nIs this true: It is right.\nReply with yes or no, and nothing else.",
     ("It is 4.", "yes_no", "It is right.", (True, False), ("yes", "no"))),
    ("It is 4.\n\nIs this true: It is right.\nyes: all of it\nReply with yes or no, and nothing else.\nAnswer:",
     ("It is 4.", "yes_no", "It is right.", (True, False), ("yes", "no"))),
    ("It is 4.\n\nIs the following true? It is right.\nyes: all of it\nno: not all\nAnswer with yes or no only.",
     ("It is 4.", "yes_no", "It is right.", (True, False), ("yes", "no"))),
    ("A: hi\nB: hello\n\nQuestion: It is right.\nA: false\nB: true\nAnswer with the letter of one option only.",
     ("A: hi\nB: hello", "yes_no", "It is right.", (True, False), ("B", "A"))),
    ("Text\n\nWhich one,\nby your rules?\n(A) red\n(B) blue\n(C) green",
     ("Text", "choice", "Which one,\nby your rules?", ("red", "blue", "green"), ("A", "B", "C"))),
    ("- A. red\n- B. blue\nAnswer:", ("", "choice", "", ("red", "blue"), ("A", "B"))),
    ("How good is it?", None),
    ("A: hi\nB: hello\n\n" + "\n".join("And then more was said." for _ in range(5)), None),
    ("Question: Tone?\nB: calm\nC: rude", None),
]  # fmt: skip


def test_a_prompt_is_read_whoever_wrote_it() -> None:
    wrong = []
    for prompt, wanted in PROMPTS:
        found = read_prompt(prompt)
        seen = None if found is None else (found.input, found.asked.kind, found.asked.text, found.asked.options, found.labels)
        if seen != wanted:
            wrong.append((prompt, seen, wanted))
    assert not wrong
    messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": PROMPTS[0][0]}]
    found = read_prompt(messages)
    assert found is not None
    assert found.input == "Judge.\n\nIt is 4."


def test_the_tokens_hold_the_judges_distribution_its_label_mass_and_nothing_is_lost() -> None:
    for prompt, _ in PROMPTS[:8]:
        found = read_prompt(prompt)
        assert found is not None
        for mass in (1.0, 0.7, 0.1):
            judge = SyntheticJudge(label_mass=mass)
            token = NextToken.of(found, judge)
            assert math.fsum(number for _, number in token.tokens) == pytest.approx(1)
            assert token.content == max(token.tokens, key=lambda pair: pair[1])[0]
            of_label = [
                math.fsum(number for text, number in token.tokens if text.strip().casefold() == label.casefold()) for label in found.labels
            ]
            wanted = judge.read(found.input, found.asked).probabilities
            assert of_label == pytest.approx([mass * number for number in wanted])


def test_log_probabilities_are_the_first_tokens_or_those_asked_for_by_id() -> None:
    found = read_prompt(PROMPTS[0][0])
    assert found is not None
    token = NextToken.of(found, SyntheticJudge(label_mass=0.9))
    first = token.logprobs(5)["content"][0]
    assert [entry["token"] for entry in first["top_logprobs"]] == [text for text, _ in token.tokens[:5]]
    assert first["token"] == token.content == first["top_logprobs"][0]["token"]
    assert [math.exp(entry["logprob"]) for entry in first["top_logprobs"]] == pytest.approx([number for _, number in token.tokens[:5]])
    assert bytes(first["bytes"]).decode() == first["token"]
    ids = [TOKENIZER.ids(text)[0] for text in ("A", "B", "z")]
    entries = token.logprobs(0, ids)["content"][0]["top_logprobs"]
    assert {entry["token"]: entry["logprob"] for entry in entries}["z"] == -9999.0
    assert {"A", "B", "z"} <= {entry["token"] for entry in entries}
    assert token.logprobs(0)["content"][0]["top_logprobs"] == []


def test_many_labels_have_one_spelling_so_that_20_tokens_can_hold_them() -> None:
    lines = [f"{letter}: option {letter}" for letter in "ABCDEFGHIJKLMNOPQRST"]
    found = read_prompt("\n".join(["It.", "", "Question: Which?", *lines, "Answer."]))
    assert found is not None
    token = NextToken.of(found, SyntheticJudge())
    assert {text for text, _ in token.tokens[:20]} == set("ABCDEFGHIJKLMNOPQRST")


@given(st.text())
def test_the_fake_tokenizer_loses_nothing(text: str) -> None:
    assert TOKENIZER.text(TOKENIZER.ids(text)) == text


def test_each_label_is_one_token() -> None:
    for label in ("yes", " yes", "No", "A", " Z", "0", " 9", "true"):
        assert len(TOKENIZER.ids(label)) == 1, label
    assert len({TOKENIZER.ids(label)[0] for label in ("yes", "Yes", " yes", "no", "A", "a")}) == 6
    assert len(TOKENIZER.ids("yesterday")) == 9


def test_labels_are_scored_by_their_tokens() -> None:
    judge = SyntheticJudge(label_mass=0.5)
    ids = [TOKENIZER.ids(text)[0] for text in ("yes", "no", "A")]
    prompt = "It is 4. truth=0.8\n\nIs this true: It is right.\nReply with yes or no, and nothing else.\nAnswer:"
    assert score_labels(prompt, ids, judge) == pytest.approx([0.4, 0.1, 0.0])
    bare = score_labels("It is 4. truth=0.8", ids[:2], judge)
    read = judge.read("It is 4. truth=0.8", Asked("yes_no", "", (True, False)))
    assert bare == pytest.approx([0.5 * number for number in read.probabilities])
    assert score_labels("It is 4.", ids[:1], judge) == [0.5]
