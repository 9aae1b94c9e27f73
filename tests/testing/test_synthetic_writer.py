"""The responder ``synthetic``: verdicts in the form that a prompt describes, and comparisons of responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint
from fakes.faulty_judge import FaultyJudge
from fakes.synthetic_writer import REFUSAL, write_verdict
from fleet_tools import user
from scale import SCALE

from qreward import Criterion, QRewardClient, Rubric
from qreward.errors import ConfigError
from qreward.judge import Judge
from qreward.judge.parsing import YesNoVerdict
from qreward.testing import FakeFleet, SyntheticJudge

HEAD = "Answer with one JSON object and nothing else, with these members in this order:"
FORMS: list[tuple[str, str, Any]] = [
    ("truth=0.8", '"reason": text, why\n"score": number, from 0 to 10', {"reason": "So it seems.", "score": 8.0}),
    ("truth=0.75", '"score": whole number, at least 1, at most 5; from 1 to 5', {"score": 4}),
    ("truth=0", '"score": number, from -1 to 1', {"score": -1.0}),
    ("truth=0.2", '"verdict": one of "yes", "no"', {"verdict": "no"}),
    ("truth=1", '"right": true or false\n"steps": list of text', {"right": True, "steps": []}),
    ("truth=0.2\ntruth=0.3", '"preferred": one of "A", "B", "tie"', {"preferred": "B"}),
    ("truth[safe]=no truth[score]=0.5;", '"safe": one of "yes", "no"\n"score": number, from 0 to 1', {"safe": "no", "score": 0.5}),
]


def test_a_verdict_has_the_form_that_the_prompt_describes() -> None:
    found = [(json.loads(write_verdict(user(f"{text}\n\n{HEAD}\n{form}"), SyntheticJudge())), wanted) for text, form, wanted in FORMS]
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert write_verdict(user("truth=1\n\nIs this true: It is right.\nReply with yes or no."), SyntheticJudge()) == "yes"


def test_a_prompt_without_a_form_is_an_error_and_a_refusal_is_no_verdict() -> None:
    with pytest.raises(ConfigError, match="JSON object"):
        write_verdict(user("How good is it?"), SyntheticJudge())
    assert write_verdict(user(f"truth=1\n{HEAD}\n{FORMS[0][1]}"), SyntheticJudge(refuse=1)) == REFUSAL


async def test_a_judge_reads_the_verdicts_and_a_share_of_its_comparisons_is_flipped() -> None:
    qualities = [place / 10 for place in range(11)]
    pairs = [("t", f"{place} truth=0.{place % 7}1", f"{place} truth=0.{place % 5}2") for place in range(150 * SCALE)]
    fake = ModelEndpoint("a", synthetic=True, synthetic_judge=FaultyJudge(flip=0.1))
    async with FakeFleet([fake]) as fleet, QRewardClient(fleet.endpoints) as client:
        batch = await Judge(client, model="m").batch_compare(pairs)
        fleet.set("a", synthetic_judge=SyntheticJudge())
        scored = await Judge(client, model="m").batch_score([("t", f"truth={quality}") for quality in qualities])
        decided = await Judge(client, model="m", verdict=YesNoVerdict).batch_score([("t", "truth=0.9"), ("t", "truth=0.1")])
    assert [verdict.score for verdict in scored.values()] == pytest.approx(qualities)
    assert [verdict.score for verdict in decided.values()] == [1.0, 0.0]
    votes = [
        (vote.score > 0.5) == (float(first.split("=")[1]) > float(second.split("=")[1]))
        for (_, first, second), comparison in zip(pairs, batch.values(), strict=True)
        for vote in comparison.votes
    ]
    assert sum(votes) / len(votes) == pytest.approx(0.9, abs=0.06)


RUBRIC = Rubric(
    [
        Criterion("right", "It is right.\n\nIt agrees with the reference."),
        Criterion("clear", "How clear is it?", levels={"unclear": "", "readable": "with effort", "clear": "at first reading"}),
        Criterion("tone", "What is its tone?", choices={"calm": 1, "dry": 0.5, "rude": 0}),
    ]
)


@pytest.mark.parametrize("prompt", [None, "{answer_form}\n\nQuestion: {prompt}\n{response}", "Question: {prompt}\nA: {response}"])
async def test_a_truth_may_name_the_question_of_a_written_criterion_as_that_of_a_decided_one(prompt: str | None) -> None:
    texts = {
        "truth[It is right.]=no; truth[How clear is it?]=readable; truth[What is its tone?]=dry": (0, 0.5, 0.5),
        "truth[It is right.]=1; truth[How clear is it?]=1; truth[What is its tone?]=rude": (1, 1, 0),
        "truth[verdict]=yes; truth[score]=0; truth[choice]=calm; truth=0.5": (1, 0, 1),
    }
    fake = ModelEndpoint("a", synthetic=True)
    async with FakeFleet([fake]) as fleet, QRewardClient(fleet.endpoints) as client:
        batch = await Judge(client, model="m", rubric=RUBRIC, prompt=prompt).batch_score([("t", text) for text in texts])
    found = [tuple(result.score for result in verdict.criteria.values()) for verdict in batch.values()]
    assert found == [*texts.values()]
