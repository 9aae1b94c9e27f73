"""What a prompt begins with: named groups, and blocks of its text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from random import Random
from sys import getsizeof
from types import MappingProxyType
from typing import Any

from engine_tools import MODEL, FakeWire, chat, client_of, now
from hypothesis import given
from hypothesis import strategies as st

from qreward import PrefixAffinity
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.decisions import DecisionInput
from qreward.engine.prefix_finder import BLOCK, ENDS, EXACT, MOST_GROUPS, SAMPLES, PrefixFinder, common_length


def call_of(*contents: Any, model: str = "m", group: object = None, **params: Any) -> WireRequest:
    return WireRequest(CHAT, model, [{"role": "user", "content": content} for content in contents], params, None, group)


def common(one: WireRequest, other: WireRequest) -> int:
    """Characters that the prefixes of two requests share."""
    first, second = PrefixFinder()(one), PrefixFinder()(other)
    assert first is not None
    assert second is not None
    shared = [length for key, length in zip(first.keys, first.lengths, strict=True) if key in second.keys]
    return int(max(shared, default=0))


@given(st.integers(0, 40_000), st.text(max_size=300), st.text(max_size=300))
def test_prompts_share_the_blocks_up_to_the_first_difference_and_no_others(size: int, one: str, other: str) -> None:
    head = "rubric " * (size // 7)
    pair = call_of(head + "a" + one + "x" * BLOCK), call_of(head + "b" + other + "x" * BLOCK)
    assert common(*pair) == max((end for end in ENDS if end <= len(head)), default=0)


models = st.sampled_from("mn")
parts = st.tuples(st.sampled_from(["rubric ", "manual "]), st.integers(0, 900), st.text(max_size=3), st.integers(0, 900), models)


@given(st.lists(parts, max_size=12))
def test_the_prefix_of_a_prompt_does_not_depend_on_the_prompts_before_it(prompts: list[tuple[str, int, str, int, str]]) -> None:
    used = PrefixFinder()
    for head, repeated, middle, rest, model in prompts:
        call = call_of(head * repeated + middle + "x" * rest, model=model)
        assert used(call) == PrefixFinder()(call)


def test_block_ends_are_at_most_an_eighth_of_the_position_apart_beyond_the_first_blocks() -> None:
    gaps = [(begin, end - begin) for begin, end in pairwise(ENDS)]
    assert ENDS[0] == BLOCK
    assert all(0 < gap <= max(BLOCK, begin / 8) for begin, gap in gaps), gaps
    assert len([end for end in ENDS if end <= 48_000]) < 50


def test_the_text_of_all_messages_counts_and_other_models_and_cache_keys_share_nothing() -> None:
    rubric, question = "r" * 3000, "q" * 3000
    base = call_of(rubric, question)
    for name, other, shared in (
        ("the same", call_of(rubric, question), 5632),
        ("another last message", call_of(rubric, "p" * 3000), 2816),
        ("another model", call_of(rubric, question, model="n"), 0),
        ("another cache key", call_of(rubric, question, prompt_cache_key="k"), 0),
        ("a cache salt", call_of(rubric, question, cache_salt="s"), 0),
        ("another parameter", call_of(rubric, question, temperature=1), 5632),
        ("parts", call_of(rubric, [{"type": "text", "text": question}]), 2816),
    ):
        assert common(base, other) == shared, name
    assert common(call_of(rubric, prompt_cache_key="k"), call_of(rubric, prompt_cache_key="l")) == 0
    assert common(call_of(rubric, cache_salt="k"), call_of(rubric, cache_salt="l")) == 0
    assert common(call_of(rubric, cache_salt="k"), call_of(rubric, cache_salt="k")) == 2816


def test_a_named_group_is_the_whole_prefix_and_a_tuple_is_nested_groups() -> None:
    prefix_of = PrefixFinder()
    found = [prefix_of(call_of("text " * 200, group=group)) for group in ("q1", ("rubric", "q1"), ("rubric", "q2"), [7])]
    assert all(prefix is not None and prefix.named and prefix.total == 1000 for prefix in found)
    single, first, second, number = [prefix.keys for prefix in found if prefix is not None]
    assert len(single) == len(number) == 1
    assert first[0] == second[0]
    assert len({single, number, first[1:], second[1:]}) == 4
    assert PrefixFinder()(call_of("short", group="q1")) is not None


def test_the_length_of_a_named_group_is_what_its_prompts_have_in_common_so_far() -> None:
    prefix_of, rubric = PrefixFinder(), "rubric " * 100
    inner = len(rubric) + len("question 1 ") + 300 + len("answer ")
    for question, answer, lengths in (
        (1, "a", (inner + 1, inner + 1)),
        (1, "b", (inner, inner)),
        (2, "c", (len(rubric) + len("question "), inner + 1)),
        (1, "d", (len(rubric) + len("question "), inner)),
    ):
        prefix = prefix_of(call_of(f"{rubric}question {question} {'q' * 300}answer {answer}", group=("r", question)))
        assert prefix is not None
        assert prefix.lengths == lengths, (question, answer)


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_the_common_length_of_two_texts_is_that_of_their_common_beginning(head: str, one: str, other: str) -> None:
    first, second = head + one, head + other
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert first[: length + 1] != second[: length + 1] or first == second


def test_short_prompts_and_inputs_that_are_no_prompts_have_no_prefix() -> None:
    reward = WireRequest(CHAT, "m", [("prompt", "response" * 100)], {}, None)
    for call in (call_of("short"), WireRequest(CHAT, "m", [], {}, None), reward):
        assert PrefixFinder()(call) is None
    message = MappingProxyType({"role": "user", "content": "text " * 100})
    for inputs in ("text " * 100, [message]):
        assert PrefixFinder()(WireRequest(CHAT, "m", inputs, {}, None)) is not None


def test_only_named_groups_count_where_that_is_asked_for_and_a_decision_has_the_prefix_of_its_input() -> None:
    prefix_of, text = PrefixFinder(), "text " * 200
    assert prefix_of(call_of(text), True) is None
    assert prefix_of(call_of(text, group="q1"), True) == prefix_of(call_of(text, group="q1")) is not None
    messages = [{"role": "user", "content": text}]
    for inputs in (text, messages):
        decision = WireRequest(CHAT, "m", DecisionInput(inputs, ()), {}, None)
        assert PrefixFinder()(decision) == PrefixFinder()(WireRequest(CHAT, "m", inputs, {}, None)) is not None


def test_the_names_that_are_remembered_are_bounded() -> None:
    prefix_of = PrefixFinder()
    for number in range(MOST_GROUPS + 50):
        prefix_of(call_of("text", group=("all", number)))
    assert len(prefix_of._common) == MOST_GROUPS


async def test_a_batch_is_read_ahead_and_its_groups_stay_each_with_one_endpoint() -> None:
    ahead: list[int] = []

    def items(count: int) -> Iterator[Any]:
        for number in range(count):
            ahead.append(number + 1 - len(wire.sent))
            yield chat(f"{number % 6} " * 900 + str(number))

    async def awaited(count: int) -> AsyncIterator[Any]:
        for item in items(count):
            yield item

    for source, affinity in ((items, None), (items, PrefixAffinity(look_ahead=300)), (awaited, PrefixAffinity(look_ahead=300))):
        wire, began = FakeWire(), now()
        ahead.clear()
        async with client_of(wire, {"a": 4, "b": 4}, prefix_affinity=affinity) as client:
            batch = await client.batch_chat_completion(source(600), MODEL)
        assert (batch.stats.ok, now() - began) == (600, 75), "no endpoint was idle"
        groups = [prompt[0] for name, prompt, _ in wire.sent if name == "a"]
        switches = sum(one != other for one, other in pairwise(groups))
        assert switches > 100 if affinity is None else switches < 30, source
        assert max(ahead) < 50 if affinity is None else 250 < max(ahead) <= 310, source


def image(content: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "which one?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + content}}]


def test_an_image_counts_as_a_sample_and_its_prompt_is_not_kept_alive() -> None:
    rng = Random(1)
    first, second = ("".join(rng.choices("abcdefgh", k=50_000)) * 40 for _ in range(2))
    prefix_of, rubric = PrefixFinder(), "r" * 3000
    same, other = prefix_of(call_of(rubric, image(first), "x" * 600)), prefix_of(call_of(rubric, image(second), "x" * 600))
    assert same is not None
    assert other is not None
    assert same == PrefixFinder()(call_of(rubric, image(first), "x" * 600))
    assert same.total < 5000, "an image has few tokens, whatever the size of its file"
    assert common(call_of(rubric, image(first), "x" * 600), call_of(rubric, image(second), "x" * 600)) == 2816
    named = PrefixFinder()
    for number in range(MOST_GROUPS):
        named(call_of(f"{number}" + "y" * 100_000, group=number))
    kept = sum(getsizeof(each._head) + getsizeof(each._rest) for each in named._common.values())
    assert kept < MOST_GROUPS * 5000, "of a long prompt, its beginning and a sample are kept"


def test_beyond_the_first_characters_the_common_length_of_a_group_is_estimated_from_a_sample() -> None:
    step = (20_000 + 9000 - EXACT) // SAMPLES
    for size in (0, EXACT - 1, EXACT, EXACT + 100, 5000, 20_000):
        prefix_of, lengths = PrefixFinder(), []
        for text in ("a" * size + "b" * 9000, "a" * size + "b" * 9000, "a" * size + "c" * 9000, "a" * size + "b" * 9000, "a" * size):
            prefix = prefix_of(call_of(text, group="g"))
            assert prefix is not None
            lengths.append(prefix.lengths[0])
        assert lengths[:2] == [size + 9000] * 2
        assert lengths[4] == size
        assert size <= lengths[2] == lengths[3] <= (size if size <= EXACT else size + step), size
