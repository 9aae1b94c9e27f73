"""The traps of reward servers, one test each: bodies that mean something else, numbers that are no rewards, orders that mislead."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reward_tools import answered, call, codec, decoded, failed, written
from shared_tools import each

from qreward.codecs.base import Ignored, Malformed, WireRequest
from qreward.codecs.rewards.base import ItemAnswer
from qreward.codecs.rewards.kinds import CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE, attributes_of
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.errors import BadRequest, InvalidResponse
from qreward.results import Usage
from qreward.settings.policies import RewardModel
from qreward.testing import FakeEndpoint, Scoring
from qreward.testing.bodies import probabilities_of, score_of

ONE, TWO = call(SCORE, ["a"]), call(SCORE, ["a", "b"])


def probs(*rows: list[Any], **members: Any) -> dict[str, Any]:
    return {"data": [{"index": index, "label": None, "probs": row, "num_classes": len(row)} for index, row in enumerate(rows)], **members}


def test_vllm_is_asked_for_raw_scores_by_the_parameter_its_version_knows() -> None:
    for name in ("use_activation", "activation", "softmax"):
        settings = RewardModel(activation_field=name)  # type: ignore[arg-type]
        old = FakeEndpoint("old", kind="vllm", scoring=Scoring(activation_field=name))  # type: ignore[arg-type]
        assert written("vllm", TWO, activation_field=name) == {"model": "server-name", "input": ["a", "b"], name: False}
        assert answered(old, ONE, settings).items == [pytest.approx(score_of("a"))]
    unaware = FakeEndpoint("old", kind="vllm", scoring=Scoring(activation_field="activation"))
    assert answered(unaware, ONE).items == [pytest.approx(probabilities_of([score_of("a")])[0])], "the fake ignores what it does not know"


def test_what_the_caller_says_goes_over_the_settings() -> None:
    assert written("vllm", call(SCORE, ["a"], use_activation=True))["use_activation"] is True
    assert written("tei", call(SCORE, ["a"], raw_scores=False))["raw_scores"] is False


@each("kind, name", [("vllm", "input"), ("tei", "inputs"), ("openrlhf", "labels"), ("sglang", "text")])
def test_a_parameter_does_not_replace_the_items(kind: str, name: str) -> None:
    with pytest.raises(BadRequest, match=f"'{name}' holds the items"):
        written(kind, call(SCORE, ["a"], **{name: ["b"]}))


def test_the_reward_of_vllm_is_the_last_of_its_probs() -> None:
    assert decoded("vllm", TWO, probs([0.1, 0.9], [0.7, 0.3])) == [0.9, 0.3]
    assert decoded("vllm", TWO, probs([0.1, 0.9], [0.7, 0.3]), label=0) == [0.1, 0.7]


def test_sglang_is_asked_by_its_native_route_as_the_softmax_of_one_class_is_always_one() -> None:
    assert codec("sglang", ONE).path == "/classify"
    assert codec("sglang", ONE).native
    assert written("sglang", TWO) == {"model": "server-name", "text": ["a", "b"]}
    assert decoded("sglang", TWO, [{"embedding": [-3.5]}, {"embedding": [2]}]) == [-3.5, 2.0]
    failure = failed(FakeEndpoint("gpu-0", kind="sglang"), call(CLASSIFY, ["a", "b"]))
    assert "always returns 1.0; call score() instead" in str(failure.error)


def test_a_vector_of_many_numbers_is_an_embedding_and_no_reward() -> None:
    with pytest.raises(Malformed, match=r"4 numbers; select the reward with RewardModel\(label=...\)"):
        decoded("sglang", ONE, [{"embedding": [0.1, 0.2, 0.3, 0.4]}])
    assert decoded("sglang", ONE, [{"embedding": [0.1, 0.2, 0.3, 0.4]}], label=-1) == [0.4]
    failure = failed(FakeEndpoint("gpu-0", kind="vllm"), ONE, RewardModel(route="embeddings"))
    assert "16 numbers" in str(failure.error)


def test_two_texts_for_tei_are_two_lists_as_a_list_of_two_is_one_pair() -> None:
    assert written("tei", TWO)["inputs"] == [["a"], ["b"]]
    assert written("tei", ONE)["inputs"] == [["a"]]
    assert written("tei", call(SCORE, [("q", "a"), ("q", "b")])) == {
        "model": "server-name",
        "inputs": [["q", "a"], ["q", "b"]],
        "raw_scores": True,
        "truncate": False,
    }
    assert written("tei", call(SCORE, [("q", "a")]))["inputs"] == [["q", "a"]]


def test_tei_scores_no_beginnings_of_texts_unless_the_caller_says_so() -> None:
    short = FakeEndpoint("gpu-0", kind="tei", scoring=Scoring(max_tokens=50))
    for operation, items in ((SCORE, ["x" * 400]), (SCORE, [("q", "x" * 400)]), (CLASSIFY, ["x" * 400]), (RERANK, ["x" * 400])):
        assert "must have less than 50 tokens" in str(failed(short, call(operation, items, query="q")).error), operation.name
        assert len(answered(short, call(operation, items, query="q", truncate=True)).items) == 1


def test_the_labels_of_tei_are_sorted_by_score_so_a_class_goes_by_its_name() -> None:
    rows = [
        [{"score": 0.9, "label": "bad"}, {"score": 0.1, "label": "good"}],
        [{"score": 0.8, "label": "good"}, {"score": 0.2, "label": "bad"}],
    ]
    assert decoded("tei", TWO, rows, label="good") == [0.1, 0.8]
    assert decoded("tei", TWO, rows, label=1, labels=("bad", "good")) == [0.1, 0.8]
    assert [decoded("tei", ONE, rows[:1], label=label, labels=("bad", "good")) for label in (-2, -1, 0)] == [[0.9], [0.1], [0.9]]
    unnamed = [[{"score": 0.9, "label": "LABEL_1"}, {"score": 0.1, "label": "LABEL_0"}]]
    assert [decoded("tei", ONE, unnamed, label=label) for label in (0, 1)] == [[0.1], [0.9]]
    unclear: list[tuple[dict[str, Any], str]] = [
        ({}, "select the reward"),
        ({"label": -1}, "sorted by score, so a position means nothing"),
        ({"label": 0}, "select the reward"),
        ({"label": "fair"}, "select the reward"),
        ({"label": 2, "labels": ("bad", "good")}, "select the reward"),
        ({"label": -3, "labels": ("bad", "good")}, "sorted by score"),
    ]
    for settings, words in unclear:
        with pytest.raises(Malformed, match=words):
            decoded("tei", TWO, rows, **settings)


def test_the_only_name_that_vllm_tells_is_that_of_the_most_probable_class() -> None:
    asked, found = call(CLASSIFY, ["a"]), {"data": [{"index": 0, "label": "good", "probs": [0.75, 0.25]}]}
    assert decoded("vllm", asked, found) == [{"good": 0.75, "LABEL_1": 0.25}]
    assert decoded("vllm", asked, found, labels=("fine", "bad")) == [{"fine": 0.75, "bad": 0.25}]
    assert decoded("vllm", asked, probs([0.75, 0.25])) == [{"LABEL_0": 0.75, "LABEL_1": 0.25}]
    with pytest.raises(Malformed, match="two of its classes have one name"):
        decoded("vllm", asked, {"data": [{"index": 0, "label": "LABEL_1", "probs": [0.75, 0.25]}]})


def test_labels_in_another_order_than_that_of_the_model_are_an_error() -> None:
    found = {"data": [{"index": 0, "label": "good", "probs": [0.1, 0.9]}]}
    for kind, operation, settings in (("vllm", CLASSIFY, {}), ("sglang", CLASSIFY, {}), ("vllm", SCORE, {"label": "good"})):
        asked = call(operation, ["a"])
        with pytest.raises(Malformed, match="calls its most probable class 'good', and labels calls it 'bad'; give labels in the order"):
            decoded(kind, asked, found, labels=("good", "bad"), **settings)
        assert len(decoded(kind, asked, found, labels=("bad", "good"), **settings)) == 1
        even = {"data": [{"index": 0, "label": "good", "probs": [0.5, 0.5]}]}
        assert len(decoded(kind, asked, even, labels=("bad", "good"), **settings)) == 1, "either is the most probable one"


def test_the_usage_of_sglang_is_told_for_each_item_or_for_none() -> None:
    rows = [{"embedding": [1.0], "meta_info": {"prompt_tokens": count}} for count in (3, 4)]
    answer = codec("sglang", TWO).decode(json.dumps(rows).encode(), TWO)
    assert (answer.usage, [item.usage for item in answer.shares()]) == (Usage(7, None, 7), [Usage(3, None, 3), Usage(4, None, 4)])  # type: ignore[union-attr]
    for less in ({"embedding": [1.0]}, {"embedding": [1.0], "meta_info": {"completion_tokens": 1}}):
        answer = codec("sglang", TWO).decode(json.dumps([rows[0], less]).encode(), TWO)
        assert (answer.usage, [item.usage for item in answer.shares()]) == (None, [None, None])  # type: ignore[union-attr]


def test_a_ranking_needs_a_query_ranks_all_and_has_the_members_of_its_server() -> None:
    wrong: tuple[dict[str, Any], ...] = ({}, {"query": 7}, {"query": "q", "top_n": 1})
    for params in wrong:
        with pytest.raises(BadRequest, match=r"query|top_n"):
            written("vllm", call(RERANK, ["a", "b"], **params))
    asked = call(RERANK, ["a", "b"], query="q")
    assert written("vllm", asked) == {"model": "server-name", "documents": ["a", "b"], "query": "q"}
    assert written("tei", asked) == {"model": "server-name", "texts": ["a", "b"], "query": "q", "truncate": False}
    assert (codec("vllm", asked).path, codec("sglang", asked).path) == ("/rerank", "/v1/rerank")
    with pytest.raises(Malformed, match="its scores cannot be matched to documents"):
        decoded("tei", asked, [{"score": 0.9}, {"score": 0.1}])


def test_a_list_of_token_ids_is_one_item() -> None:
    assert written("openai", call(EMBED, [[1, 2, 3]])) == {"model": "server-name", "input": [[1, 2, 3]]}
    assert written("openai", call(EMBED, [[1, 2], [3]]))["input"] == [[1, 2], [3]]
    assert written("vllm", call(COMPLETE, [[1, 2]]))["prompt"] == [[1, 2]]


def test_a_text_of_a_subclass_of_str_such_as_that_of_numpy_is_a_text() -> None:
    text = type("Text", (str,), {"__str__": lambda _: "another"})("a")
    for kind, operation, member in (("sglang", SCORE, "text"), ("vllm", RERANK, "documents"), ("vllm", EMBED, "input")):
        assert written(kind, call(operation, [text, "b"], query="q"))[member] == ["a", "b"]
    for operation in (COMPLETE, MODERATE):
        assert type(call(operation, [text]).inputs[0]) is str


def test_one_prompt_is_sent_as_a_text_because_some_servers_take_no_lists() -> None:
    sent = [written(kind, call(COMPLETE, prompts))["prompt"] for kind in ("openai", "vllm", "sglang") for prompts in (["a"], ["a", "b"])]
    assert sent == ["a", ["a", "b"]] * 3


def test_the_choices_of_a_completion_are_numbered_through_all_prompts() -> None:
    asked = call(COMPLETE, ["a", "b"], n=2)
    choices = [{"index": index, "text": text} for index, text in ((3, "b1"), (0, "a0"), (2, "b0"), (1, "a1"))]
    first, second = decoded("openai", asked, {"choices": choices})
    assert [choice["text"] for choice in first] == ["a0", "a1"]
    assert [(choice["text"], choice["index"]) for choice in second] == [("b0", 0), ("b1", 1)]
    with pytest.raises(Malformed, match="3 results for 4 items"):
        decoded("openai", asked, {"choices": choices[:3]})


def test_a_server_of_completions_that_ignores_n_would_ignore_it_again() -> None:
    found = {}
    for count, n in ((0, 2), (2, 2), (4, 2), (5, 2), (1, 1), (2, 1), (1, None)):
        asked, choices = call(COMPLETE, ["a", "b"], n=n), [{"text": "t"}] * count
        try:
            decoded("openai", asked, {"choices": choices})
        except Malformed as error:
            found[count, n] = isinstance(error, Ignored)
    assert found == {(0, 2): False, (2, 2): True, (5, 2): False, (1, 1): False, (1, None): False}


def test_a_completion_that_is_not_whole_or_without_text_fails_its_prompt_and_has_no_share_of_the_output() -> None:
    asked = call(COMPLETE, ["a", "b"])
    whole = {"index": 0, "text": "yes", "finish_reason": "stop"}
    bad: tuple[dict[str, Any], ...] = ({"text": "ye", "finish_reason": "abort"}, {"text": None}, {})
    for other in bad:
        usage = {"prompt_tokens": 2, "completion_tokens": 10, "total_tokens": 12}
        body = json.dumps({"choices": [whole, {"index": 1, **other}], "usage": usage}).encode()
        first, failed_item = codec("openai", asked).decode(body, asked).shares()
        assert isinstance(first, ItemAnswer)
        assert isinstance(failed_item, InvalidResponse)
        assert (first.text(), first.usage) == ("yes", Usage(1, 10, 11)), other


def test_a_moderation_says_whether_it_is_flagged() -> None:
    results = {"results": [{"flagged": True}, {"categories": {}}, {"flagged": "no"}]}
    assert decoded("openai", call(MODERATE, ["a", "b", "c"]), results) == [{"flagged": True}, InvalidResponse, InvalidResponse]


def test_a_list_of_parts_is_one_moderation() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    asked = call(MODERATE, [parts])
    assert written("openai", asked)["input"] == parts
    assert not codec("openai", asked).mergeable(asked.inputs[0])
    assert codec("openai", asked).mergeable("text")


def test_the_attributes_of_nim_are_read_from_its_text_and_a_text_that_is_no_list_of_numbers_is_no_reward() -> None:
    texts: dict[str, dict[str, float]] = {
        "helpfulness:1.25,correctness:0.43": {"helpfulness": 1.25, "correctness": 0.43},
        "reward:-7.1": {"reward": -7.1},
        " reward : 1e-3 ": {"reward": 0.001},
    }
    assert {text: attributes_of(text) for text in texts} == texts
    for text in ("", "good", "reward:", "reward:nan", "reward:inf", "reward:1,reward:2", "I think: helpful", ":1", "a:1,,b:2", "a:1 b:2"):
        with pytest.raises(InvalidRow):
            attributes_of(text)


def test_of_several_attributes_only_one_called_reward_is_taken_by_default() -> None:
    def choice(content: Any, **more: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, **more}]}

    asked = call(SCORE, [("q", "a")])
    assert decoded("nim", asked, choice("reward:2,length:9")) == [2.0]
    assert decoded("nim", asked, choice("helpfulness:1.5", finish_reason="length")) == [1.5]
    with pytest.raises(Malformed, match="not whole"):
        decoded("nim", asked, choice("helpfulness:1.5", finish_reason="abort"))
    assert decoded("nim", asked, choice("a:1,b:2"), label="b") == [2.0]
    with pytest.raises(Malformed, match="helpfulness, correctness; select the reward with"):
        decoded("nim", asked, choice("helpfulness:1.25,correctness:0.43"))


def test_openrlhf_is_sent_query_prompts_and_labels_of_one_length() -> None:
    asked = WireRequest(SCORE, "m", list(map(SCORE.item, [("q", "a"), {"prompt": "p", "response": "b", "label": "42"}, "ready"])), {}, None)
    assert written("openrlhf", asked) == {
        "model": "server-name",
        "query": ["qa", "pb", "ready"],
        "prompts": ["q", "p", ""],
        "labels": ["", "42", ""],
    }


def test_openrlhf_is_read_by_rewards_scores_and_logs() -> None:
    document = {"rewards": [1.0, 2.0], "scores": [0.1, 0.2], "extra_logs": {"dummy_scores": [7, 8], "odd": [1], "text": ["x", "y"]}}
    assert decoded("openrlhf", TWO, document) == [1.0, 2.0]
    assert decoded("openrlhf", TWO, document, label="score") == [0.1, 0.2]
    assert decoded("openrlhf", TWO, document, label="dummy_scores") == [7.0, 8.0]
    with pytest.raises(Malformed, match="must be one of them"):
        decoded("openrlhf", TWO, document, label="odd")


def test_the_last_row_counts_of_a_pooled_model_of_tokens_or_steps() -> None:
    rows = [{"index": 1, "data": [[0.2], [0.4]]}, {"index": 0, "data": [1.5]}]
    assert decoded("vllm", TWO, {"data": rows}, route="pooling") == [1.5, 0.4]
    for vector in ([0.1, 0.2], [[0.1], [0.1, 0.2]]):
        with pytest.raises(Malformed, match=r"2 numbers; select the reward with RewardModel\(label=...\)"):
            decoded("vllm", ONE, {"data": [{"index": 0, "data": vector}]}, route="pooling")
        assert decoded("vllm", ONE, {"data": [{"index": 0, "data": vector}]}, route="pooling", label=1) == [0.2]
    fake = FakeEndpoint("gpu-0", kind="vllm")
    asked = call(SCORE, ["a", "b"], task="token_classify")
    assert answered(fake, asked, RewardModel(route="pooling")).items == [pytest.approx(score_of(text)) for text in "ab"]


NO_SCORES: list[Any] = [None, "1.0", True, False, [], [1.0], {}, "NaN", "null"]


@each("raw", NO_SCORES)
def test_a_score_that_is_no_finite_number_is_an_error_of_its_item_and_never_a_zero(raw: Any) -> None:
    rows = {
        "vllm": probs([1.0], [raw]),
        "sglang": [{"embedding": [1.0]}, {"embedding": [raw]}],
        "tei": [[{"score": 1.0, "label": "x"}], [{"score": raw, "label": "x"}]],
        "openrlhf": {"rewards": [1.0, raw]},
    }
    for kind, document in rows.items():
        assert decoded(kind, TWO, document) == [1.0, InvalidResponse]
    with pytest.raises(Malformed, match="not a finite number"):
        decoded("tei", ONE, [[{"score": raw, "label": "x"}]])


def test_a_missing_score_or_a_number_that_json_has_no_word_for_is_an_error_of_its_item() -> None:
    for literal in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" + b"0" * 400):
        assert decoded("openrlhf", TWO, b'{"rewards":[' + literal + b", 1.5]}") == [InvalidResponse, 1.5], literal
    assert decoded("vllm", TWO, {"data": [{"index": 0, "probs": [1.0]}, {"index": 1}]}) == [1.0, InvalidResponse]
    assert decoded("vllm", TWO, probs([1.0], [])) == [1.0, InvalidResponse]


def test_an_item_that_the_server_aborted_is_an_error_of_that_item() -> None:
    aborted = {"embedding": [0.0], "meta_info": {"finish_reason": {"type": "abort", "message": "x"}}}
    assert decoded("sglang", TWO, [{"embedding": [1.0]}, aborted]) == [1.0, InvalidResponse]
    assert decoded("sglang", TWO, [{"embedding": [1.0]}, {"object": "error", "message": "x", "embedding": [0.0]}]) == [1.0, InvalidResponse]


@each("count", [0, 1, 3])
@each("kind", ["vllm", "sglang", "tei", "openrlhf"])
def test_an_answer_of_another_length_is_malformed_and_never_cut_to_fit(kind: str, count: int) -> None:
    document: Any = {
        "vllm": probs(*[[1.0]] * count),
        "sglang": [{"embedding": [1.0]}] * count,
        "tei": [[{"score": 1.0, "label": "x"}]] * count,
        "openrlhf": {"rewards": [1.0] * count},
    }[kind]
    with pytest.raises(Malformed, match=f"{count} re(sults|wards) for 2 items"):
        decoded(kind, TWO, document)


@each("indexes", [[0, 0], [1, 2], [0, None], [-1, 0], ["0", "1"], [True, False], [0.0, 1.0]])
def test_results_with_indexes_that_fit_no_item_are_malformed(indexes: list[Any]) -> None:
    with pytest.raises(Malformed, match="the indexes of the results do not match the items"):
        decoded("vllm", TWO, {"data": [{"index": index, "probs": [1.0]} for index in indexes]})


def test_what_a_server_says_in_words_is_not_repeated_in_the_error_of_an_item() -> None:
    secret = "sk-hush-7f3a"
    body = b'[[{"score": 1, "label": "x"}], [{"score": "%s", "label": "x"}]]' % secret.encode()
    error = codec("tei", TWO).decode(body, TWO).items[1]
    assert isinstance(error, InvalidResponse)
    assert secret not in str(error)
    rows = [[{"score": 1, "label": secret}, {"score": 2, "label": "y"}]]
    with pytest.raises(Malformed) as caught:
        decoded("tei", ONE, rows)
    assert secret not in str(caught.value)
