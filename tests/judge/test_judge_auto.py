"""The method ``auto``: decisions where servers answer with probabilities, else written verdicts; found out once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from decided_tools import TEN, DecisionBackend, always, by_text, deciding
from judge_tools import QUESTION

from qreward.codecs.decisions import PROBE
from qreward.errors import BadRequest, InvalidResponse
from qreward.judge import Criterion, Judge, Rubric, YesNoVerdict
from qreward.scheduler.outcome import Failure, FailureKind

YES = json.dumps({"reason": "so", "verdict": "yes"})
ITEMS = [("q", f"a{number}") for number in range(20)]


def auto(backend: DecisionBackend, use: Callable[[Judge], Any], dialect: str = "chat", **settings: Any) -> Any:
    return deciding(backend, use, dialect, **{"method": "auto", "rubric": TEN, **settings})


def written(backend: DecisionBackend) -> list[Any]:
    return [each for each in backend.sent if not each.questions]


def test_servers_that_give_probabilities_decide_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qreward")
    for dialect, requests in (("openai", 20), ("chat", 200)):
        caplog.clear()
        backend = DecisionBackend(always((0.75, 0.25)))
        batch = auto(backend, lambda judge: judge.batch_score(ITEMS), dialect, temperature=0, max_tokens=100)
        assert [result.value.score for result in batch] == [0.75] * 20
        assert (len(backend.sent), written(backend)) == (requests + 1, []), "one small question finds it out"
        assert all("temperature" not in each.body or dialect == "chat" for each in backend.sent)
        assert [record.message for record in caplog.records] == ["model 'judge-7b': its servers answer decisions with probabilities"]


def test_a_model_without_probabilities_writes_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qreward")
    missing = Failure(FailureKind.REFUSED, BadRequest("endpoint 'a' answered 400: logprobs are not supported", status_code=400))
    for backend in (DecisionBackend(always((1.0, 0.0)), YES, logprobs=False), DecisionBackend(always(missing), YES)):
        caplog.clear()

        async def use(judge: Judge, backend: DecisionBackend = backend) -> Any:
            first = await judge.score(*QUESTION)
            asked = len(backend.sent)
            return first, asked, await judge.batch_score(ITEMS)

        first, asked, batch = auto(backend, use, temperature=0)
        assert first.score == 1.0
        assert [result.value.score for result in batch] == [1.0] * 20
        assert asked <= 20
        assert all(each.questions == () for each in backend.sent[asked:])
        assert written(backend)[0].body["temperature"] == 0
        assert [record.message for record in caplog.records] == ["model 'judge-7b': its servers do not answer decisions with probabilities"]


def test_the_answers_to_one_item_are_of_one_kind() -> None:
    answered = iter([False, True, True])
    rubric = Rubric(TEN.criteria[:3])
    backend = DecisionBackend(always((0.75, 0.25)), YES, logprobs=lambda _: next(answered))
    verdict = auto(backend, lambda judge: judge.score(*QUESTION), rubric=rubric)
    kinds = {each.distribution is None for each in verdict.criteria.values()}
    assert len(kinds) == 1


def test_a_model_that_has_decided_once_never_writes() -> None:
    backend = DecisionBackend(always((0.75, 0.25)), YES)

    async def use(judge: Judge) -> Any:
        await judge.score(*QUESTION)
        backend._logprobs = False
        with pytest.raises(InvalidResponse, match="log probabilities"):
            await judge.score("q", "other")

    auto(backend, use)
    assert written(backend) == []


def test_a_refusal_and_a_low_label_mass_do_not_make_a_model_write() -> None:
    about = Rubric([Criterion("a", "It explains that the server returned no log probabilities, as a logprob is missing.")])
    for says in (None, ((0.9, 0.1), 0.2)):
        backend = DecisionBackend(by_text({PROBE.questions[0].instructions: (1.0, 0.0)}, says), YES)
        with pytest.raises(InvalidResponse):
            auto(backend, lambda judge: judge.score(*QUESTION), rubric=about)
        assert written(backend) == []


def test_models_of_one_judge_are_asked_each_in_its_way() -> None:
    backend = DecisionBackend(always((0.6, 0.4)), YES, seconds=0.0, logprobs=lambda asked: asked.body["model"] == "a")

    async def use(judge: Judge) -> Any:
        return [await judge.score("q", response) for response in ("one", "two")]

    settings: dict[str, Any] = {"model": ["a", "b"], "settle": "mean", "rubric": None, "verdict": YesNoVerdict}
    for verdict in auto(backend, use, **settings):
        assert {vote.model: vote.score for vote in verdict.votes} == {"a": pytest.approx(0.6), "b": 1.0}
        assert verdict.score == pytest.approx(0.8)


def test_pairs_fall_back_too() -> None:
    backend = DecisionBackend(always((1.0, 0.0, 0.0)), json.dumps({"reason": "", "preferred": "tie"}), logprobs=False)
    assert auto(backend, lambda judge: judge.compare("q", "one", "two")).preference == "tie"
    assert len(written(backend)) == 2
