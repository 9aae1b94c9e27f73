"""Properties of reading: any order of results maps right, and any body is a value, ``Malformed`` or ``EmbeddedError``."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from reward_tools import call, codec

from qreward.codecs.base import EmbeddedError, Malformed
from qreward.codecs.rewards.base import ItemAnswer, ListAnswer, Operation
from qreward.codecs.rewards.kinds import CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE
from qreward.errors import InvalidResponse

Case = tuple[str, Operation, dict[str, Any]]

CASES: list[Case] = [
    ("openai", SCORE, {"route": "embeddings"}),
    *[("openai", operation, {}) for operation in (RERANK, EMBED, COMPLETE, MODERATE)],
    *[("vllm", SCORE, {"route": route, "template": "{prompt}{response}"}) for route in ("classify", "pooling", "score", "embeddings")],
    ("vllm", CLASSIFY, {}),
    ("sglang", SCORE, {}),
    ("sglang", SCORE, {"label": "good", "labels": ("bad", "good")}),
    ("sglang", CLASSIFY, {}),
    ("sglang", RERANK, {}),
    *[("tei", operation, {}) for operation in (SCORE, CLASSIFY, RERANK, EMBED)],
    ("tei", SCORE, {"label": -1}),
    ("openrlhf", SCORE, {}),
    ("openrlhf", SCORE, {"label": 0}),
    ("nim", SCORE, {}),
    ("nim", SCORE, {"label": 1}),
]

NAMES = [
    "data", "results", "choices", "rewards", "scores", "extra_logs", "usage", "error", "object", "message", "type", "index",
    "probs", "label", "score", "relevance_score", "embedding", "meta_info", "finish_reason", "prompt_tokens", "total_tokens",
    "text", "content", "flagged",
]  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**400, -(2**63), 2**64]),
    st.floats(),
    st.sampled_from(["", "x", "a:1", "reward:2", "a:1,b:nan", "AAAAPw==", "error", "abort", "\ud800", "9" * 50]),
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)
PLAUSIBLE = st.fixed_dictionaries({
    "index": st.sampled_from([0, 1, None, 2, True]),
    "probs": st.lists(LEAVES, max_size=3),
    "embedding": st.lists(LEAVES, max_size=3) | LEAVES,
    "score": LEAVES,
    "relevance_score": LEAVES,
    "label": LEAVES,
    "data": st.lists(LEAVES | st.lists(LEAVES, max_size=2), max_size=2),
    "message": DOCUMENTS,
    "text": LEAVES,
    "flagged": LEAVES,
    "meta_info": DOCUMENTS,
})  # fmt: skip
ROWS = st.lists(PLAUSIBLE | st.lists(PLAUSIBLE, max_size=2) | LEAVES, max_size=2)
BODIES = st.one_of(
    DOCUMENTS,
    ROWS,
    st.fixed_dictionaries({"data": ROWS, "results": ROWS, "choices": ROWS, "rewards": st.lists(LEAVES, max_size=2), "usage": DOCUMENTS}),
)


def outcome(case: Case, count: int, body: bytes) -> ListAnswer | None:
    kind, operation, settings = case
    items: list[Any] = [("q", "a"), ("q", "b")] if settings.get("route") == "score" or kind == "nim" else ["a", "b"]
    asked = call(operation, items[:count], query="q")
    try:
        answer = codec(kind, asked, **settings).decode(body, asked)
    except (Malformed, EmbeddedError):
        return None
    assert len(answer.items) == count
    return answer


@given(st.sampled_from(CASES), st.integers(1, 2), BODIES)
def test_any_document_is_a_value_for_each_item_or_no_answer(case: Case, count: int, document: Any) -> None:
    answer = outcome(case, count, json.dumps(document).encode())
    if answer is None:
        return
    shares = answer.shares()
    assert len(shares) == count
    assert any(isinstance(share, ItemAnswer) for share in shares)
    for share in shares:
        assert isinstance(share, ItemAnswer | InvalidResponse)
        if isinstance(share, ItemAnswer):
            assert isinstance(share.text(), str)
            assert share.value is not None
            if case[1] not in (COMPLETE, MODERATE):  # whose values are the server's own rows
                json.dumps(share.value, allow_nan=False)  # raises if any number in it is not finite


@given(body=BODIES)
def test_an_answer_cut_off_anywhere_is_no_answer(body: Any) -> None:
    whole = json.dumps(body).encode()
    if whole[:1] in b"[{":
        assert [case for case in CASES if outcome(case, 1, whole[:-1]) is not None] == []


SCORES = st.lists(st.floats(-100, 100), min_size=1, max_size=12)


@given(SCORES, st.randoms(use_true_random=False))
def test_any_order_of_indexed_results_maps_each_score_to_its_item(scores: list[float], dice: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"index": index, "probs": [score], "score": score, "embedding": [score], "relevance_score": score, "data": [score]}
        for index, score in enumerate(scores)
    ]
    dice.shuffle(rows)
    texts = [f"t{index}" for index in range(len(scores))]
    for route in ("classify", "pooling", "score", "embeddings"):
        asked = call(SCORE, [("q", text) for text in texts])
        settings = {"route": route, "template": "{prompt}{response}"}
        assert codec("vllm", asked, **settings).decode(json.dumps({"data": rows}).encode(), asked).items == scores
    ranked = call(RERANK, texts, query="q")
    for kind, document in (("vllm", {"results": rows}), ("sglang", rows), ("tei", rows)):
        assert codec(kind, ranked).decode(json.dumps(document).encode(), ranked).items == scores
    embedded = call(EMBED, texts)
    assert codec("openai", embedded).decode(json.dumps({"data": rows}).encode(), embedded).items == [[score] for score in scores]
    asked, plain = call(SCORE, texts), [{"probs": [score]} for score in scores]
    assert codec("vllm", asked).decode(json.dumps({"data": plain}).encode(), asked).items == scores, "by position without an index"
