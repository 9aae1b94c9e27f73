"""The form of the answers of a judge: declared, found in its prompt, or that of a known benchmark; and the same form when it asks again."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from judge_tools import MODEL, QUESTION, JudgeBackend, always, in_turn, judge_over, judging

from qreward import QRewardClient
from qreward.errors import ConfigError, InvalidResponse
from qreward.judge import Judge, JudgeConfig, YesNoVerdict
from qreward.judge.config import PRESETS

MT_BENCH = "Rate {response} to {prompt}. End with your rating from 1 to 10 in this form: Rating: [[5]]"
PAIR = "Which is better for {prompt}: {first} or {second}? End with [[A]], [[B]] or [[C]] for a tie."


def made(**settings: Any) -> Judge:
    return Judge(QRewardClient(["http://a.example/v1"]), **{"model": MODEL, **settings})


def scored(backend: JudgeBackend, **settings: Any) -> float:
    return float(judging(backend, lambda judge: judge.score(*QUESTION), **settings).score)


def fifth_word(text: str) -> Any:
    """A function of one's own: the answer's fifth word, if there is one."""
    words = text.split()
    return words[4] if len(words) > 4 else None


def raises(_text: str) -> float:
    raise LookupError("no words")


def test_a_declared_form_is_asked_for_without_json_and_read() -> None:
    for answer, said in {
        "[[5]]": "It is right.\n\nRating: [[7]]",
        "<score>3</score>": "It is right. <score>7</score>",
        "[RESULT] 4": "Feedback: right. [RESULT] 7",
        "Score: 7": "Right.\n**Score:** 7/10",
        "\\boxed{7}": "Right. \\boxed{7}",
    }.items():
        backend = JudgeBackend(always(said))
        assert scored(backend, answer=answer) == 0.7, answer
        assert "response_format" not in backend.sent[0].params
        shown = answer.replace("5", "N").replace("3", "N").replace("4", "N").replace("7", "N")
        assert (shown in backend.sent[0].text, "JSON" in backend.sent[0].text) == (True, False), answer
        assert made(answer=answer).answer == answer
    backend = JudgeBackend(always("[[no]]"))
    assert scored(backend, answer="[[yes]]", verdict=YesNoVerdict) == 0.0
    assert "[[yes]], or [[no]]" in backend.sent[0].text


def test_the_form_that_a_prompt_shows_is_found_and_nothing_is_added_to_the_prompt() -> None:
    shown = {
        MT_BENCH: "[[5]]",
        "{response}: write feedback, then [RESULT] (a number from 1 to 5)": "[RESULT] 4",
        "{response}\nReason in <reason></reason>, then your score in <score></score>": "<score>7</score>",
        "{response}\nPut the score into \\boxed{{}}.": "\\boxed{7}",
        "{response}\nEnd with one line: Score: <number>": "Score: 7",
        "{response}\nEnd with \"Final rating: X\".": "Final rating: 7",
        'Judge {response} as JSON: {{"score": 7}}': "json",
        "Judge {response}: 1 to 5 points. {answer_form} Score: 5": "json",
        "Judge {response}": "json",
    }  # fmt: skip
    for prompt, answer in shown.items():
        assert made(prompt=prompt).answer == answer, prompt
    backend = JudgeBackend(always("Rating: [[7]]"))
    assert scored(backend, prompt=MT_BENCH, range=None) == 7.0
    assert backend.sent[0].text == MT_BENCH.format(prompt=QUESTION[0], response=QUESTION[1])
    assert made(pair_prompt=PAIR).answer == "[[C]]"
    assert made(prompt=[{"role": "system", "content": "Judge."}, {"role": "user", "content": MT_BENCH}]).answer == "[[5]]"
    for settings in ({"answer": "json"}, {"response_format": "json_object"}, {"method": "decide"}):
        assert made(prompt=MT_BENCH, **settings).answer == "json", settings
    backend = JudgeBackend(always("B it is. [[B]]"))
    found = judging(backend, lambda judge: judge.compare("q", "a", "b"), pair_prompt=PAIR, reasks=0)
    assert found.preference == "tie"  # B in both orders
    assert "JSON" not in backend.sent[0].text + backend.sent[1].text


def test_the_request_is_repeated_in_the_same_form() -> None:
    own = "Say how good {response} is, as you were taught."
    cases: list[tuple[dict[str, Any], str, str, str]] = [
        ({"prompt": MT_BENCH}, "Hm.", "[[7]]", "[[N]], where N is your score"),
        ({"answer": "Score: 7"}, "Hm.", "Score: 7", "Score: N, where N is your score"),
        ({"prompt": own, "response_format": "none"}, "Hm.", "Score: 7", "Answer in the form that was asked for."),
        ({"prompt": own, "answer": re.compile(r"VERDICT (\d)")}, "Hm.", "VERDICT 7", "Answer in the form that was asked for."),
        ({"prompt": own, "answer": fifth_word}, "Hm.", "I give it points: 7", "Answer in the form that was asked for."),
        ({}, "Hm.", "Score: 7", "JSON"),
        ({"prompt": MT_BENCH}, "", "[[7]]", "[[N]], where N is your score"),
    ]
    for settings, first, second, words in cases:
        backend = JudgeBackend(in_turn(first, second))
        assert scored(backend, **settings) == 0.7, settings
        note = backend.sent[1].text
        assert (words in note, "JSON" in note) == (True, words == "JSON"), (settings, note)
        assert ".." not in note, note


def test_a_function_of_ones_own_reads_the_answer_and_its_faults_are_named() -> None:
    settings: dict[str, Any] = {"prompt": "{response}", "answer": fifth_word}
    assert scored(JudgeBackend(always("<think>a b c d 1</think>I give it points: 7")), **settings) == 0.7
    for said, words in (("No.", "finds no verdict"), ("I give it points: 70", "from 0 to 10"), ("I give it points: lots", "not a number")):
        with pytest.raises(InvalidResponse, match=words):
            scored(JudgeBackend(always(said)), **settings)
    backend = JudgeBackend(always("x"))
    with pytest.raises(InvalidResponse, match=r"answer function.*raises.*LookupError.*the fault is in your code"):
        scored(backend, prompt="{response}", answer=raises)
    assert len(backend.sent) == 1


def test_forms_that_fit_nothing_are_settings_errors() -> None:
    for settings, words in (
        ({"answer": "?"}, "example"),
        ({"answer": 7}, "int"),
        ({"answer": re.compile("x")}, "one group"),
        ({"answer": {"pattern": "("}}, "regular expression"),
        ({"answer": {"form": "GRADE: C"}}, "values"),
        ({"answer": {"form": "GRADE: C", "values": {"C": "1"}}}, "finite score"),
        ({"answer": {"form": "GRADE: C", "values": {"C": 10**400}}}, "finite score"),
        ({"answer": {"form": "GRADE: C", "values": {"C": 11}}}, "scale"),
        ({"answer": {"function": "judge_tools:no_such"}}, "no_such"),
        ({"answer": fifth_word}, "own prompt"),
        ({"answer": "[[5]]", "response_format": "json_schema"}, "json_schema"),
        ({"answer": "[[5]]", "method": "decide"}, "decide"),
        ({"answer": "[[5]]", "method": "auto"}, "answer has no effect with method='auto'"),
        ({"preset": "mt-bench", "method": "auto"}, "answers that preset 'mt-bench' sets has no effect with method='auto'"),
        ({"preset": "simple-qa", "pair_prompt": "{first} {second}"}, "pairs need a judge of their own, without grades"),
        ({"answer": "[[5]]", "rubric": ["Is it right?"]}, "rubric"),
        ({"preset": "mt-bnech"}, "mt-bench"),
    ):
        with pytest.raises(ConfigError, match=words):
            made(**settings)


def test_settings_of_a_file_name_a_form_a_pattern_a_function_or_a_preset() -> None:
    client = QRewardClient(["http://a.example/v1"])
    for settings, answer in (
        ({"answer": "[[5]]"}, "[[5]]"),
        ({"answer": {"pattern": r"V(\d)"}, "prompt": "{response}"}, r"V(\d)"),
        ({"answer": {"function": "test_judge_answers:fifth_word"}, "prompt": "{response}"}, "fifth_word"),
        ({"answer": {"form": "GRADE: C", "values": {"C": 10, "I": 0}}}, "GRADE: C"),
        ({"preset": "arena-hard"}, "[[A>>B]]"),
    ):
        config = JudgeConfig(model=MODEL, **settings)  # type: ignore[arg-type]
        judge = Judge.from_config(client, config)
        assert judge.answer == pickle.loads(pickle.dumps(judge)).answer == answer


@pytest.mark.real_time
async def test_another_form_is_another_question_for_the_cache_and_for_a_calibration(tmp_path: Path) -> None:
    cache = tmp_path / "verdicts"
    for settings, said, sent in (({}, '{"score": 5}', 1), ({"answer": "Score: 7"}, "Score: 5", 1), ({"answer": "Score: 7"}, "Score: 9", 0)):
        backend = JudgeBackend(always(said, seconds=0))
        async with judge_over(backend, cache=cache, prompt="{response} {answer_form}", **settings) as judge:
            assert (await judge.score(*QUESTION)).score == 0.5
            await judge.aclose()
        assert len(backend.sent) == sent
    assert made().identity.settings != made(answer="Score: 7").identity.settings


ANSWERS = {
    "mt-bench": ("Rating: [[5]]", "Hm.\n\nRating: [[10]]"),
    "mt-bench-reference": ("Rating: [[5]]", "Hm.\n\nRating: [[10]]"),
    "mt-bench-pair": ("[[A]]", "Hm. [[A]]"),
    "mt-bench-pair-reference": ("[[A]]", "Hm. [[C]] for a tie."),
    "arena-hard": ("[[A>>B]]", "My final verdict is: [[B>>A]]\n\nB is complete."),
    "prometheus": ("[RESULT] 4", "Feedback: good. [RESULT] 5"),
    "prometheus-pair": ("[RESULT] A", "Feedback: good. [RESULT] B"),
    "simple-qa": ("A", "A"),
    "model-graded-qa": ("GRADE: C", "It does.\n\nGRADE: C"),
}
"""For each preset: its form, and an answer in this form with the best score or a preference."""


def test_each_preset_reads_its_answers_and_asks_in_its_own_words_alone() -> None:
    assert ANSWERS.keys() == PRESETS.keys()
    for preset, (form, said) in ANSWERS.items():
        backend = JudgeBackend(always(said))

        async def use(judge: Judge, preset: str = preset) -> float:
            fields: dict[str, Any] = {"rubric": "Is it clear?"} if "prometheus" in preset else {}
            if "pair_prompt" in PRESETS[preset]:
                return (await judge.compare("q", "a", "b", "ref", **fields)).score
            return (await judge.score("q", "a", "ref", **fields)).score

        assert judging(backend, use, preset=preset) == (0.5 if "pair_prompt" in PRESETS[preset] else 1.0), preset
        assert all("JSON" not in sent.text and "response_format" not in sent.params for sent in backend.sent), preset
        assert "End with one line" not in backend.sent[0].text, preset
        assert made(preset=preset).answer == form
    backend = JudgeBackend(always("A"))
    judging(backend, lambda judge: judge.score(*QUESTION), preset="simple-qa", prompt="{response}")
    assert "End with one line" in backend.sent[0].text, "the own prompt does not say how to answer"
    assert made(preset="mt-bench", prompt="{response} [[5]]", scale=(1, 5)).answer == "Rating: [[5]]"
