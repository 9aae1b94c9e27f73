"""The response is found in what a tokenizer gives back of prompt and response, and ends before its special tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qreward.integrations.trainers.texts import response_in, without_end

PROMPT = "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n"
OTHER = "A prompt that ends in t"


def test_a_response_is_what_follows_the_prompt_which_is_not_guessed() -> None:
    table = {
        "as it was": (f"{PROMPT}It is 42.<|im_end|>", PROMPT, "It is 42.<|im_end|>"),
        "bos": (f"<s>{PROMPT}It is 42.", PROMPT, "It is 42."),
        "two specials": (f"<s> <|begin_of_text|>{PROMPT}It is 42.", PROMPT, "It is 42."),
        "other blanks": ("User: what ?  Assistant: It is 42.", "User: what?\nAssistant:", " It is 42."),
        "cut from the left": (f"{PROMPT[30:]}It is 42.", PROMPT, "It is 42."),
        "cut in a character": (f"\ufffd{PROMPT[30:]}It is 42.", PROMPT, "It is 42."),
        "empty": (PROMPT, PROMPT, ""),
        "no prompt": ("It is 42.", "", "It is 42."),
        "a blank prompt": ("It is 42.", " ", "It is 42."),
        "the prompt again": (f"{PROMPT}{PROMPT}It is 42.", PROMPT, f"{PROMPT}It is 42."),
        "something else": ("something else altogether", OTHER, None),
        "its end": ("t and no more", OTHER, None),
        "in the middle": (f"I was asked: {PROMPT}It is 42.", OTHER, None),
    }
    assert {case: response_in(query, prompt) for case, (query, prompt, _) in table.items()} == {
        case: response for case, (_, _, response) in table.items()
    }


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


def test_special_tokens_are_taken_from_the_end_only() -> None:
    table = {
        "It is 42.<|im_end|>": "It is 42.",
        "It is 42.<|im_end|>\n<|endoftext|>\n": "It is 42.",
        "It is 42.</s>": "It is 42.",
        "It is 42.<\uff5cend\u2581of\u2581sentence\uff5c>": "It is 42.",
        "It is 42.<end_of_turn><eos>": "It is 42.",
        "It is 42.[PAD][PAD]": "It is 42.",
        "Use <|im_end|> at the end of a turn.": "Use <|im_end|> at the end of a turn.",
        "x <b>bold</b>": "x <b>bold</b>",
        "a | b <|": "a | b <|",
        "It is 42. \n": "It is 42. \n",
        "<|im_end|>": "",
    }
    assert {text: without_end(text) for text in table} == table


def test_a_long_text_is_cut_in_linear_time() -> None:
    many = "<|" * 100_000
    assert without_end(many) == many
    assert response_in("ab" * 50_000 + "c", "b" + "ab" * 50_000) == "c"
