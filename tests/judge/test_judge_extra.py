"""What an item has besides what is judged, which its result carries; and how verdicts look when they are printed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from judge_tools import MODEL, JudgeBackend, always, client_of, judging, prefers, score

from qreward.errors import ConfigError, DeadlineExceeded, InvalidResponse
from qreward.judge import Comparison, Judge, ScoreVerdict, Verdict, Vote
from qreward.results import Usage


def item(number: int, **fields: Any) -> dict[str, Any]:
    return {"prompt": "q", "response": f"answer {number}", "id": number, **fields}


async def by_response(sent: Any) -> str:
    return "?" if "answer 1" in sent.question else score(7)


def test_other_fields_of_an_item_are_not_sent_and_come_back_with_its_result() -> None:
    backend = JudgeBackend(by_response)
    told: list[Any] = []
    items: list[Any] = [item(0, source={"file": "a.jsonl"}), item(1), ("q", "answer 2"), {"response": "answer 3", "id": 3}]
    batch = judging(backend, lambda judge: judge.batch_score(items, on_result=told.append), reasks=0)
    assert [result.extra for result in batch] == [{"id": 0, "source": {"file": "a.jsonl"}}, {"id": 1}, {}, {"id": 3}]
    assert [type(result.error) for result in batch] == [type(None), InvalidResponse, type(None), ConfigError]
    assert sorted((result.index, dict(result.extra)) for result in told) == [(each.index, dict(each.extra)) for each in batch]
    assert str(batch[3].error).startswith("item 3: the item has no 'prompt'")
    assert "a.jsonl" not in str(backend.sent)
    assert pickle.loads(pickle.dumps(batch[0].extra)) == batch[0].extra


def test_a_field_that_resembles_a_missing_one_fails_its_item_and_others_may_have_any_name() -> None:
    allowed: list[Any] = ["preference", "deference", "prompt_id", 0, None, ("a", "b")]
    items: list[Any] = [{"prompt": "p", "response": "r", name: "x", 1: 2} for name in [*allowed, "referense", "Reference"]]
    items.append({"prompt": "p", "response": None, 0: 1})
    batch = judging(JudgeBackend(always(score(7))), lambda judge: judge.batch_score(items))
    assert [result.ok for result in batch] == [True] * len(allowed) + [False] * 3
    assert all("did you mean 'reference'?" in str(result.error) for result in batch[len(allowed) : -1])
    assert "has no 'response' to judge" in str(batch[-1].error)


def test_they_come_back_from_pairs_from_the_cache_and_at_a_deadline_if_they_were_read(tmp_path: Path) -> None:
    async def given() -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield item(number)

    async def run() -> list[list[Any]]:
        async with (
            client_of(JudgeBackend(always(score(7), seconds=0.0))) as client,
            Judge(client, model=MODEL, cache=tmp_path / "c") as judge,
        ):
            return [[result.extra.get("id") for result in await judge.batch_score(given())] for _ in range(2)]

    assert asyncio.run(run()) == [[0, 1, 2]] * 2
    pairs = [{"prompt": "q", "first": "a", "second": "b", "id": 1, "response": "c"}]
    batch = judging(JudgeBackend(always(prefers("A"))), lambda judge: judge.batch_compare(pairs))
    assert batch[0].extra == {"id": 1, "response": "c"}
    batch = judging(JudgeBackend(always(score(7), seconds=50)), lambda judge: judge.batch_score([item(0), item(1)], deadline=1))
    assert {type(result.error) for result in batch} == {DeadlineExceeded}
    assert [result.extra for result in batch] == [{"id": 0}, {"id": 1}]


LONG = "The answer   is\nright. " * 20


def test_a_verdict_is_printed_in_a_line() -> None:
    vote = Vote(0.75, ScoreVerdict(reason="so", score=7.5), LONG, "judge-7b")
    others = (vote, Vote(0.5, None, "x", "judge-b"))
    both = (Vote(1.0, None, "A", "m"), Vote(1.0, None, "B", "m", swapped=True))
    begins = "The answer is right. The answer is right. The answer is r..."
    shown = [
        (Verdict(0.75, (vote,)), f"<Verdict 0.75 by judge-7b: {begins!r}>"),
        (Verdict(0.75, others, cached=True), f"<Verdict 0.75 from 2 votes (0.75, 0.5) by judge-7b, judge-b cached: {begins!r}>"),
        (Verdict(-1.0, (Vote(-1.0, model="rm-7b"),)), "<Verdict -1 by rm-7b>"),
        (Comparison("tie", 0.5, ()), "<Comparison tie>"),
        (Comparison("first", 1.0, both), "<Comparison first from 2 votes (1, 1) by m: 'A'>"),
    ]
    assert [(repr(each), wanted) for each, wanted in shown if repr(each) != wanted] == []


def test_a_notebook_shows_a_verdict_with_its_votes_escaped_and_bounded() -> None:
    votes = (
        Vote(0.75, ScoreVerdict(reason="<script>alert(1)</script>", score=7.5), "{}", "judge-<b>"),
        Vote(0.5, None, LONG * 100, "judge-b"),
    )
    verdict = Verdict(0.75, votes, {"help<fulness": 0.5}, Usage(total_tokens=1234), cached=True)
    comparison = Comparison("second", 0.0, (Vote(0.0, None, "x", "m", swapped=True),))
    for each in (verdict, comparison):
        ET.fromstring(each._repr_html_())
    page = verdict._repr_html_()
    for words in ("<b>0.75</b>", "2\xa0votes", "1,234\xa0tokens", "cached", "judge-&lt;b&gt;", "&lt;script&gt;", "help&lt;fulness"):
        assert words in page
    assert "<script>" not in page
    assert len(page) < 10_000
    assert "<b>second</b>" in comparison._repr_html_()
    assert "second first" in comparison._repr_html_()
