"""How far judges agree, and what moves their scores besides quality."""

from __future__ import annotations

import asyncio
import json
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, broken, client_of, score
from scale import seeds

from qreward.errors import ConfigError
from qreward.judge import Comparison, Judge, RewardModelScorer, Vote, agreement
from qreward.judge.agreement import Judged, krippendorff_alpha, position_bias, report_of, spearman

# The example of the krippendorff package (0.9, docstring of ``alpha``), with its result for the interval metric.
PUBLISHED = [
    [None, None, None, None, None, 3, 4, 1, 2, 1, 1, 3, 3, None, 3],
    [1, None, 2, 1, 3, 3, 4, 3, None, None, None, None, None, None, None],
    [None, None, 2, 1, 3, 4, 4, None, 2, 1, 1, 3, 3, None, 4],
]


def test_alpha_is_that_of_the_published_example_and_of_its_definition_and_none_where_nothing_can_disagree() -> None:
    assert krippendorff_alpha(PUBLISHED) == pytest.approx(0.810845, abs=1e-6)
    for seed in seeds(20):
        rng = Random(seed)
        ratings = [[rng.choice([None, rng.random(), 0.5]) for _ in range(12)] for _ in range(rng.randrange(2, 5))]
        columns = [[each for each in column if each is not None] for column in zip(*ratings, strict=True)]
        columns = [column for column in columns if len(column) > 1]
        every = [each for column in columns for each in column]
        if len(set(every)) < 2:
            continue
        observed = sum(2 * (a - b) ** 2 / (len(column) - 1) for column in columns for a, b in combinations(column, 2)) / len(every)
        expected = sum(2 * (a - b) ** 2 for a, b in combinations(every, 2)) / (len(every) * (len(every) - 1))
        assert krippendorff_alpha(ratings) == pytest.approx(1 - observed / expected), seed
    table: list[list[list[float | None]]] = [[[1, 2, 3]], [[1, None], [None, 2]], [[1, 1], [1, 1]], [[], []]]
    assert [krippendorff_alpha(ratings) for ratings in table] == [None] * 4
    assert krippendorff_alpha([[1, 2], [1, 2]]) == 1


def test_spearman_knows_order_alone_and_shares_ranks() -> None:
    assert spearman([1, 2, 3], [10, 11, 1000]) == pytest.approx(1)
    assert spearman([1, 1, 2, 3], [5, 5, 6, 6]) == pytest.approx(0.9428, abs=1e-3)
    assert [spearman(*each) for each in (([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [4, 4, 4]))] == [None] * 3


def compared(*votes: tuple[float, bool], model: str = "m") -> Comparison:
    return Comparison("tie", 0.5, tuple(Vote(number, model=model, swapped=swapped) for number, swapped in votes))


def test_position_bias_counts_votes_that_saw_both_orders() -> None:
    consistent, fickle = compared((1.0, False), (1.0, True)), compared((1.0, False), (0.0, True))
    tied, alone = compared((0.5, False), (0.5, True)), compared((1.0, False))
    decided = Vote(0.6, distribution={"first": 0.6, "second": 0.4, "tie": 0.0})
    turned = Vote(0.45, swapped=True, distribution={"first": 0.45, "second": 0.55, "tie": 0.0})
    table: list[tuple[list[Comparison], tuple[float | None, float | None]]] = [
        ([], (None, None)),
        ([alone], (None, None)),
        ([tied], (0.0, None)),
        ([consistent], (0.0, 0.5)),
        ([fickle], (1.0, 1.0)),
        ([compared((0.0, False), (1.0, True))], (1.0, 0.0)),
        ([consistent, fickle, alone, tied], (1 / 3, 0.75)),
        ([compared((1.0, False), (1.0, False), (1.0, True))], (0.0, 0.5)),
        ([Comparison("tie", 0.5, (decided, turned))], (1.0, 1.0)),
    ]
    assert [(given, found) for given, wanted in table if (found := position_bias(given)) != wanted] == []


def test_the_report_compares_what_both_judges_scored() -> None:
    judged = {
        "a": Judged([0.1, 0.5, 0.9, None], [None], unreadable=1, failed=1),
        "b": Judged([0.2, 0.6, 1.0, 0.0], [compared((1.0, False), (1.0, True))]),
    }
    report = report_of(judged, [30, 20, 10, 5])
    a, b = report.judges
    assert (a.items, a.unreadable, a.failed, a.mean, a.length_bias) == (5, 0.2, 0.2, pytest.approx(0.5), pytest.approx(-1))
    assert (b.unreadable, b.failed, b.order_changes, b.first_place) == (0, 0, 0, 0.5)
    (pair,) = report.pairs
    assert (pair.first, pair.second, pair.correlation, pair.difference) == ("a", "b", pytest.approx(1), pytest.approx(-0.1))
    assert pair.alpha == report.alpha == krippendorff_alpha([[0.1, 0.5, 0.9], [0.2, 0.6, 1.0]])
    assert (pair.same_preference, report.preference_alpha) == (None, None)
    lines = str(report).splitlines()
    assert lines[1].split() == ["a", "5", "0.200", "0.200", "0.500", "-1.000", "-", "-"]
    assert lines[-1].endswith(" of scores, - of preferences")
    assert json.loads(json.dumps(report.as_dict()))["pairs"][0]["first"] == "a"


def test_scores_on_different_scales_have_no_alpha_and_no_difference() -> None:
    unit, ten, failed = Judged([0.1, 0.5, 0.9], []), Judged([1.0, 5.0, 9.0], []), Judged([None, None, None], [])
    report = report_of({"unit": unit, "ten": ten, "same": unit, "failed": failed}, [1, 2, 3])
    found = {(pair.first, pair.second): (pair.alpha, pair.difference, pair.correlation) for pair in report.pairs}
    assert (report.alpha, found["unit", "ten"]) == (None, (None, None, pytest.approx(1)))
    assert found["unit", "same"] == (1.0, 0.0, pytest.approx(1))
    assert report_of({"one": ten, "other": ten, "failed": failed}, [1, 2, 3]).alpha == 1.0


async def likes_length(sent: Sent) -> Any:
    """Scores by the length of the response, always prefers what is shown first, and cannot be read about every fourth response."""
    await asyncio.sleep(0.1)
    if "Answer A" in sent.text:
        return json.dumps({"preferred": "A"})
    response = sent.question.split("Candidate answer:\n```\n")[1].split("\n```")[0]
    return "no idea" if len(response) % 4 == 0 else score(min(len(response), 10))


async def in_reverse(sent: Sent) -> Any:
    said = await likes_length(sent)
    return said if "preferred" in said or said == "no idea" else score(10 - json.loads(said)["score"])


ITEMS = [{"prompt": "q", "response": "x" * length} for length in range(1, 9)]
PAIRS = [{"prompt": "q", "first": "a", "second": "b"}, {"prompt": "q", "first": "c", "second": "d"}]


async def test_judges_are_asked_about_items_and_pairs_and_compared_in_0_to_1_whatever_their_range(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(map(json.dumps, [*ITEMS[:4], *PAIRS, *ITEMS[4:]])))
    async with client_of(JudgeBackend(likes_length)) as one, client_of(JudgeBackend(in_reverse)) as other:
        judges = {
            "long": Judge(one, model="judge-7b", range=(-1, 1), reasks=0),
            "short": Judge(other, model="judge-7b", range=None, reasks=0),
        }
        report = await agreement(judges, path)
        assert report == await agreement(judges, [*PAIRS, *ITEMS])
    long, short = report.judges
    assert (long.items, long.unreadable, long.failed, short.unreadable) == (10, 0.2, 0.0, 0.2)
    assert (long.length_bias, short.length_bias) == (pytest.approx(1), pytest.approx(-1))
    assert (long.order_changes, long.first_place) == (1.0, 1.0)
    assert long.mean == pytest.approx(sum(length for length in range(1, 9) if length % 4) / 60)
    (pair,) = report.pairs
    assert (pair.correlation, pair.same_preference) == (pytest.approx(-1), 1.0)
    assert pair.difference == pytest.approx((long.mean or 0) - (short.mean or 0))

    async def fails(_: Sent) -> Any:
        return broken(400)

    async with client_of(JudgeBackend(fails)) as client:
        report = await agreement([Judge(client, model="judge-7b"), Judge(client, model="judge-7b")], ITEMS)
    found = [(each.name, each.unreadable, each.failed, each.mean) for each in report.judges]
    assert found == [("<Judge judge-7b>", 0.0, 1.0, None), ("<Judge judge-7b> (2)", 0.0, 1.0, None)]
    assert report.alpha is None


async def test_what_cannot_be_compared_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    backend = JudgeBackend(likes_length)
    async with client_of(backend) as client:
        judge = Judge(client, model="judge-7b")
        path = tmp_path / "items.jsonl"
        path.write_text(json.dumps(ITEMS[0]) + '\n{"prompt": "q", "answer": "a"}')
        table: list[tuple[Any, Any, dict[str, Any], str]] = [
            ([], ITEMS, {}, "judges is empty"),
            (judge, ITEMS, {}, "judges must be a list"),
            ([client.list_routes()], ITEMS, {}, "batch_score"),
            ([judge], [], {}, "items is empty"),
            ([judge], path, {}, f"{path}, line 2: must have either 'response', or 'first' and 'second'"),
            ([judge], [{**ITEMS[0], **PAIRS[0]}], {}, "items[0]: must have either 'response', or"),
            ([RewardModelScorer(client, "rm")], PAIRS, {}, "'<RewardModelScorer rm>' cannot compare responses"),
            ([judge], ITEMS, {"keep_results": False}, "keep_results"),
        ]
        wrong = []
        for judges, items, options, words in table:
            with pytest.raises(ConfigError) as caught:
                await agreement(judges, items, **options)
            if words not in str(caught.value):
                wrong.append((words, str(caught.value)))
    assert (wrong, backend.sent) == ([], [])
