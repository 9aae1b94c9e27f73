"""Rubrics whose criteria are answered in writing: one request each, after a common beginning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from decided_tools import MIXED, TEN, Asked, DecisionBackend, always, deciding
from judge_tools import QUESTION, refused

from qreward.errors import InvalidResponse
from qreward.judge import Criterion, Rubric
from qreward.judge.calls import in_words


def yes(reason: str = "so") -> str:
    return json.dumps({"reason": reason, "verdict": "yes"})


def no() -> str:
    return json.dumps({"reason": "so", "verdict": "no"})


def by_words(answers: dict[str, str], default: str = yes()) -> Any:
    """The answer to a request that contains the words."""
    return lambda asked: next((said for words, said in answers.items() if words in asked.text), default)


def writing(backend: DecisionBackend, use: Any = lambda judge: judge.score(*QUESTION), **settings: Any) -> Any:
    return deciding(backend, use, **{"method": "write", "rubric": MIXED, **settings})


SAID = {
    "It is right.": yes(),
    "How clear is it?": json.dumps({"reason": "", "score": 1}),
    "What is the tone?": json.dumps({"reason": "", "choice": "B"}),
    "It insults.": no(),
}


def test_each_criterion_is_a_request_whose_question_comes_last() -> None:
    backend = DecisionBackend(always(None), by_words(SAID))
    verdict = writing(backend)
    assert verdict.score == pytest.approx((3 * 1.0 + 0.5 + 0.5 - 0.0) / 5)
    assert {name: (each.score, each.weight) for name, each in verdict.criteria.items()} == {
        "right": (1.0, 3.0), "clear": (0.5, 1.0), "tone": (0.5, 1.0), "rude": (0.0, -1.0),
    }  # fmt: skip
    assert [each.text for each in verdict.criteria.values()] == list(SAID.values())
    assert [each.reason for each in verdict.criteria.values()] == ["so", None, None, "so"]  # None if it is empty
    assert (verdict.confidence, verdict.distribution, verdict.text, verdict.verdict) == (None, None, "", None)
    assert verdict.usage.total_tokens == 4 * 15
    assert {each.at for each in backend.sent} == {0.0}
    texts = [each.text for each in backend.sent]
    begin = texts[0][: texts[0].index("Question, to be answered yes or no: It is right.")]
    assert all(text.startswith(begin) for text in texts)
    assert "counts for nothing" in begin
    writing(backend, lambda judge: judge.batch_score([("p", "one"), ("p", "two"), ("q", "one")]))
    groups = list(dict.fromkeys(each.group for each in backend.sent))
    assert [len(group) for group in groups] == [2, 2, 2, 2], "one for each item, within that of its prompt"
    assert groups[1][0] == groups[2][0] != groups[3][0]


def test_a_criterion_is_asked_with_its_levels_or_choices() -> None:
    assert in_words(Criterion("a", "It is kind.")) == "Question, to be answered yes or no: It is kind."
    assert in_words(Criterion("a", "Kind?", levels=["no", "yes"])) == "Question: Kind?\n0: no\n1: yes"
    assert in_words(Criterion("a", "Tone?", choices={"calm": 1, "rude": 0})) == "Question: Tone?\nA: calm\nB: rude"


def test_a_criterion_that_cannot_be_read_is_asked_again_and_then_fails_its_item_by_name() -> None:
    backend = DecisionBackend(always(None), by_words({**SAID, "It insults.": "Hm."}))
    with pytest.raises(InvalidResponse, match=r"criterion 'rude': no verdict could be read from model 'judge-7b' in 2 answers") as caught:
        writing(backend)
    assert len(backend.sent) == 5
    assert [attempt.outcome for attempt in caught.value.attempts] == ["unreadable"] * 2
    said = iter(["Hm.", no()])
    backend = DecisionBackend(always(None), lambda asked: next(said) if "It insults." in asked.text else by_words(SAID)(asked))
    assert writing(backend).score == pytest.approx(0.8)


def test_a_criterion_that_fails_ends_the_others_of_its_item_alone() -> None:
    def says(asked: Asked) -> Any:
        return refused("no", 403) if "It insults." in asked.text and "\nbad\n" in asked.text else by_words(SAID)(asked)

    backend = DecisionBackend(always(None), says)
    batch = writing(backend, lambda judge: judge.batch_score([("q", "fine"), ("q", "bad")]))
    assert [result.ok for result in batch] == [True, False]
    assert "criterion 'rude': endpoint 'a' answered 403" in str(batch[1].error)


def test_all_criteria_share_what_is_learned_about_response_formats() -> None:
    seen: list[str] = []

    class Picky(DecisionBackend):
        async def send(self, endpoint: Any, call: Any) -> Any:
            seen.append(call.params.get("response_format", {}).get("type", "none"))
            return refused("response_format is not supported") if seen[-1] != "none" else await super().send(endpoint, call)

    writing(Picky(always(None), by_words(SAID)), lambda judge: judge.batch_score([QUESTION, ("q", "other")]), samples=1)
    assert seen[-1] == "none"
    assert len(seen) <= 3 * 8


def test_samples_and_models_answer_all_criteria_and_settle_on_their_totals() -> None:
    backend = DecisionBackend(always(None), by_words(SAID))
    verdict = writing(backend, samples=3, temperature=1)
    assert len(backend.sent) == 12
    assert [vote.score for vote in verdict.votes] == pytest.approx([0.8] * 3)
    assert verdict.confidence == 1.0
    backend = DecisionBackend(always(None), lambda asked: yes() if asked.body["model"] == "a" else no(), seconds=0.0)
    verdict = writing(backend, rubric=TEN, model=["a", "b"], settle="mean")
    assert (verdict.score, sorted(vote.score for vote in verdict.votes), verdict.confidence) == (0.5, [0.0, 1.0], 0.0)


def test_a_template_of_ones_own_gets_the_question_at_its_place_or_at_the_end() -> None:
    one = Rubric([Criterion("kind", "It is kind.")])
    for prompt, wanted in (
        ("{answer_form}\nAbout: {response}", "Question, to be answered yes or no: It is kind.\n\nAnswer with one JSON"),
        ("About: {response}", "About: 42\n\nQuestion, to be answered yes or no: It is kind.\n\nAnswer with one JSON"),
    ):
        backend = DecisionBackend(always(None), yes())
        assert writing(backend, rubric=one, prompt=prompt).score == 1.0
        assert backend.sent[0].text.startswith(wanted)
    backend = DecisionBackend(always(None), yes())
    writing(backend, rubric=one, prompt="About: {response}", response_format="none")
    assert "It is kind." in backend.sent[0].text
    backend = DecisionBackend(always(None), json.dumps({"reason": "", "preferred": "tie"}))
    settings: dict[str, Any] = {"rubric": one, "pair_prompt": "{first} or {second}?", "response_format": "none"}
    writing(backend, lambda judge: judge.compare("q", "one", "two"), **settings)
    assert all("- It is kind. (1)" in sent.text for sent in backend.sent)


def test_a_gate_makes_the_score_zero_and_the_verdict_shows_which() -> None:
    gated = Rubric([Criterion("right", "It is right."), Criterion("safe", "It is safe.", weight=0, gate=0.5)])
    shown = {yes(): "<Verdict 1 by judge-7b: 'right 1, safe 1'>", no(): "<Verdict 0 by judge-7b: 'safe 0 below its gate 0.5, right 1'>"}
    for said, score in ((yes(), 1.0), (no(), 0.0)):
        verdict = writing(DecisionBackend(always(None), by_words({"It is safe.": said})), rubric=gated)
        assert (verdict.score, verdict.criteria["safe"].passed, verdict.criteria["right"].passed) == (score, bool(score), True)
        assert repr(verdict) == shown[said]
        assert gated.in_words().endswith("- It is right. (1)\n- It is safe. (must be met)")
        assert ("below 0.5" in verdict._repr_html_()) == (not score)
        with pytest.raises(KeyError, match="did you mean 'right'"):
            verdict.criteria["rigth"]


def test_pairs_are_compared_by_all_criteria_in_one_question() -> None:
    backend = DecisionBackend(always(None), json.dumps({"reason": "", "preferred": "tie"}))
    assert writing(backend, lambda judge: judge.compare("q", "one", "two")).preference == "tie"
    assert all("- It is right. (3)\n- How clear is it? (1)" in each.text for each in backend.sent)
    assert len(backend.sent) == 2
