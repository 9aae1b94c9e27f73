"""The response is found in what a tokenizer gives back of prompt and response, and ends before its special tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.integrations.trainers.texts import response_in, without_end

PROMPT = "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("query", "prompt", "response"),
    [
        (f"{PROMPT}It is 42.<|im_end|>", PROMPT, "It is 42.<|im_end|>"),
        (f"<s>{PROMPT}It is 42.", PROMPT, "It is 42."),
        (f"<s> <|begin_of_text|>{PROMPT}It is 42.", PROMPT, "It is 42."),
        ("User: what ?  Assistant: It is 42.", "User: what?\nAssistant:", " It is 42."),
        (f"{PROMPT[30:]}It is 42.", PROMPT, "It is 42."),
        (f"\ufffd{PROMPT[30:]}It is 42.", PROMPT, "It is 42."),
        (PROMPT, PROMPT, ""),
        ("It is 42.", "", "It is 42."),
        ("hi there", "hi", " there"),
    ],
    ids=["as it was", "bos", "two specials", "other blanks", "cut from the left", "cut in a character", "empty", "no prompt", "short"],
)
def test_a_response_is_what_follows_the_prompt(query: str, prompt: str, response: str) -> None:
    assert response_in(query, prompt) == response


@pytest.mark.parametrize("query", ["something else altogether", "t and no more", f"I was asked: {PROMPT}It is 42."])
def test_a_prompt_that_is_not_there_is_not_guessed(query: str) -> None:
    assert response_in(query, "A prompt that ends in t") is None


def test_a_response_that_repeats_its_prompt_is_whole() -> None:
    assert response_in(f"{PROMPT}{PROMPT}It is 42.", PROMPT) == f"{PROMPT}It is 42."


@given(prompt=st.text(), response=st.text())
def test_a_prompt_that_is_given_back_as_it_was_is_always_cut_off_exactly(prompt: str, response: str) -> None:
    assert response_in(prompt + response, prompt) == response


@given(
    prompt=st.text(st.sampled_from("ab \n<|>"), min_size=40, max_size=80),
    response=st.text(st.sampled_from("xy \n")),
    cut=st.integers(0, 20),
)
def test_a_prompt_cut_from_the_left_is_cut_off_as_far_as_it_is_there(prompt: str, response: str, cut: int) -> None:
    query = prompt[cut:] + response
    found = response_in(query, prompt)
    assert found is None or found.split() == response.split()
    if len("".join(prompt[cut:].split())) >= 16:
        assert found is not None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("It is 42.<|im_end|>", "It is 42."),
        ("It is 42.<|im_end|>\n<|endoftext|>\n", "It is 42."),
        ("It is 42.</s>", "It is 42."),
        ("It is 42.<\uff5cend\u2581of\u2581sentence\uff5c>", "It is 42."),
        ("It is 42.<end_of_turn><eos>", "It is 42."),
        ("It is 42.[PAD][PAD]", "It is 42."),
        ("Use <|im_end|> at the end of a turn.", "Use <|im_end|> at the end of a turn."),
        ("x <b>bold</b>", "x <b>bold</b>"),
        ("a | b <|", "a | b <|"),
        ("It is 42. \n", "It is 42. \n"),
        ("<|im_end|>", ""),
    ],
)
def test_special_tokens_are_taken_from_the_end_only(text: str, left: str) -> None:
    assert without_end(text) == left


def test_a_long_text_is_cut_in_linear_time() -> None:
    many = "<|" * 100_000
    assert without_end(many) == many
    assert response_in("ab" * 50_000 + "c", "b" + "ab" * 50_000) == "c"
