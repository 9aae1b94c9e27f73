"""Prompts: strict, expanded once, and hard to break out of."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_tools import MODEL, JudgeBackend, always, judging, score

from qreward import QRewardClient
from qreward.errors import BadRequest, ConfigError
from qreward.judge import Judge
from qreward.judge.prompts import Template, built_in, fenced, in_words

ITEM = {"prompt": "What is 6 x 7?", "response": "42", "reference": "forty-two"}
PIECES = ["`", "```", "\n", "a", "{", "}", "{response}", "{reference}", "Candidate answer:", "Question:", " "]
Word = Enum("Word", {"USER": "user"}, type=str)
WORDS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def messages(fields: dict[str, Any] = ITEM, **settings: Any) -> list[dict[str, Any]]:
    """The messages that an item becomes."""
    backend = JudgeBackend(always(score(5)))
    judging(backend, lambda judge: judge.score(**fields), **settings)
    return backend.sent[-1].messages


@given(WORDS, WORDS)
def test_a_value_stands_in_the_prompt_as_it_is_whatever_it_holds(one: str, other: str) -> None:
    rendered = Template("<{response}|{reference}|{response}> {{response}}", "prompt").render({"response": one, "reference": other})
    assert rendered == f"<{one}|{other}|{one}> {{response}}"


@given(st.text(max_size=40))
def test_a_text_with_its_braces_doubled_is_itself(text: str) -> None:
    template = Template(text.replace("{", "{{").replace("}", "}}"), "prompt")
    assert (template.render({}), template.names) == (text, frozenset())


def test_what_is_not_a_plain_name_is_refused_when_the_judge_is_made() -> None:
    names = ("{response.__class__}", "{response[0]}", "{response!r}", "{response:>10}", "{}", "{0}", "{ response }")
    for text in (*names, "{response", "response}", '{"score": 7}', "{{response}", "{response}}"):
        with pytest.raises(ConfigError, match="line 2"):
            Judge(QRewardClient(["http://a/v1"]), model=MODEL, prompt=f"{{response}}\n{text}")


def test_the_fields_of_an_item_are_filled_in_once_and_prompt_and_reference_need_not_be_used() -> None:
    cases = [
        ({"response": "{reference}", "rubric": "be kind"}, "{rubric}: {prompt} -> {response}", "be kind: What is 6 x 7? -> {reference}"),
        ({}, "Is this polite? {response}", "Is this polite? 42"),
    ]
    for fields, prompt, content in cases:
        assert messages({**ITEM, **fields}, prompt=prompt, response_format="none") == [{"role": "user", "content": content}]


def test_an_unused_field_and_a_missing_one_are_refused_by_name_before_anything_is_sent() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({**ITEM, "rubrik": "be kind"}, {"prompt": "{prompt} {response}"}, r"'rubrik'.* uses 'prompt', 'response'"),
        (ITEM, {"prompt": "{response} by {rubric}"}, r"{rubric}.*'prompt', 'reference', 'response'"),
        ({"prompt": "p", "response": "r"}, {"prompt": "{response} {reference}"}, "'reference'"),
        ({**ITEM, "rubric": "x"}, {}, "the field 'rubric' is not used: the prompt uses 'prompt', 'reference', 'response'"),
    ]
    for fields, settings, words in cases:
        backend = JudgeBackend(always(score(5)))
        with pytest.raises(ConfigError, match=words):
            judging(backend, methodcaller("score", **fields), **settings)
        assert backend.sent == []


def test_how_to_answer_is_said_at_the_end_or_where_the_template_wants_it() -> None:
    end = messages(ITEM, prompt="{response}")[0]["content"]
    assert end.startswith("42\n\nAnswer with one JSON object")
    inside = messages(ITEM, prompt="{answer_form}\nNow: {response}")[0]["content"]
    assert inside.startswith("Answer with one JSON object")
    assert inside.endswith("Now: 42")


def test_a_system_message_and_each_of_a_list_of_messages_is_a_template() -> None:
    sent = messages({**ITEM, "role": "chemist"}, system="You are a {role}.", prompt="{response}")
    assert sent[0] == {"role": "system", "content": "You are a chemist."}
    prompt = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "Q: {prompt}", "name": "asker"},
        {"role": "assistant", "content": "{{ok}}"},
        {"role": "user", "content": "A: {response}"},
    ]
    sent = messages(ITEM, prompt=prompt, response_format="none")
    assert sent[1] == {"role": "user", "content": "Q: What is 6 x 7?", "name": "asker"}
    assert sent[2]["content"] == "{ok}"
    assert sent[3]["content"] == "A: 42"


def test_a_function_gets_the_fields_as_they_are_and_makes_the_messages() -> None:
    def build(fields: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{sorted(fields)} {fields['weights']}"}]

    sent = messages({**ITEM, "weights": [1, 2]}, prompt=build, response_format="none")
    assert sent[0]["content"] == "['prompt', 'reference', 'response', 'weights'] [1, 2]"


def test_a_conversation_is_shown_readably() -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is "}, "this?"]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
        {"role": "assistant", "content": None, "function_call": {"name": "old"}},
    ]
    shown = in_words(conversation, "prompt")
    assert shown.startswith("System: Be brief.\n\nUser: What is this?\n\nAssistant: No.\n\nAssistant: [calls ")
    assert '"old"' in shown
    assert '"look"' in shown
    assert shown in messages({**ITEM, "prompt": conversation})[0]["content"]
    assert in_words([{"role": Word.USER, "content": Word.USER}], "prompt") == "User: user"


def test_other_values_are_shown_as_json_and_what_cannot_be_is_refused() -> None:
    assert in_words(["né", 1, None], "rubric") == '["né", 1, null]'
    assert in_words(7, "n") == "7"
    for value in (object(), [float("nan")]):
        with pytest.raises(BadRequest, match="'rubric'"):
            in_words(value, "rubric")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "f"}}


def test_images_sounds_and_files_reach_the_judge_as_parts_at_their_places() -> None:
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is "}, IMAGE, SOUND, {"type": "text", "text": "?"}]}]
    item = {"prompt": asked, "response": [{"role": "assistant", "content": [FILE]}]}
    (sent,) = messages(item, response_format="none", prompt="See {prompt}\nAnswer: {response}", system=None)
    assert sent["content"] == [
        {"type": "text", "text": "See User: What is "}, IMAGE, SOUND, {"type": "text", "text": "?\nAnswer: Assistant: "}, FILE,
    ]  # fmt: skip
    (sent,) = messages({"prompt": [{"type": "text", "text": "Look: "}, IMAGE], "response": "a cat"})
    first, image, rest, *_ = sent["content"]
    assert (first["text"].endswith("```\nLook: "), image, rest["text"].startswith("\n```")) == (True, IMAGE, True)
    (sent,) = messages({"prompt": asked[0], "response": "a cat"})  # one message is a conversation too
    assert IMAGE in sent["content"]


def test_a_part_that_cannot_be_passed_on_is_the_error_of_its_item() -> None:
    pixels = {"type": "image", "image": object()}
    for part in (pixels, {"type": "image"}, {"type": "tool_result", "content": "4"}, {"type": "image_url", "image_url": object()}, 7):
        with pytest.raises(BadRequest, match="'prompt'"):
            messages({**ITEM, "prompt": [{"role": "user", "content": [{"type": "text", "text": "Look"}, part]}]})


def test_a_reference_that_is_blank_or_nan_is_none() -> None:
    item = {"prompt": "2 + 2?", "response": "4"}
    for absent in ("", " \n", None, float("nan"), Decimal("nan")):
        assert messages({**item, "reference": absent}) == messages(item)
        with pytest.raises(ConfigError, match="no 'reference'"):
            messages({**item, "reference": absent}, prompt="{response} {reference}")
    with pytest.raises(ConfigError, match="no 'response'"):
        messages({**item, "response": float("nan")})
    assert "Candidate answer:\n```\n\n```" in messages({**item, "response": ""})[0]["content"]  # a blank response is a response


# the judge's own prompt


@given(WORDS)
def test_no_text_can_close_the_fence_that_it_stands_in(text: str) -> None:
    block = fenced(text)
    fence = block.split("\n", 1)[0]
    assert set(fence) == {"`"}
    assert fence not in text
    assert block == f"{fence}\n{text}\n{fence}"


@given(WORDS, WORDS, WORDS)
def test_what_is_asked_comes_after_all_that_is_judged_and_is_not_changed_by_it(prompt: str, response: str, reference: str) -> None:
    content = built_in({"prompt": prompt, "response": response, "reference": reference})[0]["content"]
    last = content[content.rindex(f"Candidate answer:\n{fenced(response)}") + len(f"Candidate answer:\n{fenced(response)}") :]
    plain = built_in({"prompt": "p", "response": "r", "reference": "f"})[0]["content"]
    assert last == plain[plain.index("\n\nQuestion:") :]
    both = built_in({"prompt": prompt, "first": response, "second": reference}, pairs=True)[0]["content"]
    assert f"Answer A:\n{fenced(response)}\n\nAnswer B:\n{fenced(reference)}" in both


def test_the_items_of_a_group_begin_alike_so_that_servers_can_reuse_it() -> None:
    one, other = (built_in({**ITEM, "response": text})[0]["content"] for text in ("42", "````41"))
    begin = one.index("Candidate answer:")
    assert one[:begin] == other[:begin]
    assert "reference" not in messages({"prompt": "p", "response": "r"})[0]["content"].lower()
