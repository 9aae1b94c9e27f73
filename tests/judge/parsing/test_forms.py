"""Verdicts in the form that the judge was asked for: the last one outside quotations is read if it ends its line and none differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from test_languages import texts
from test_verdict_corpus import FIELDS, TABLES

from qreward.judge.parsing import Form, ScoreVerdict, Unreadable, form_of, read
from qreward.judge.parsing.forms import JSON, declared

SCORES = {"[[5]]": "[[<?>]]", "<score>5</score>": "<score><?></score>", "Rating: [[5]]": "**[[<?>]]**"}
"""Forms that may stand at the end of a sentence of one's own, and how a value is written in them."""
LABELS = {"Score: 5": "Score: <?>", "[RESULT] 4": "[RESULT] <?>", "Final rating = 3": "Final rating: <?>", "GRADE: C": "grade: <?>"}


def outcome(text: str, form: object, kind: str = "score") -> str:
    model, field = FIELDS[kind]
    try:
        value = getattr(read(text, model, scale=(0.0, 10.0) if kind == "score" else None, form=declared(form) or JSON), field)
    except Unreadable:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def others(cases: Sequence[tuple[str, str, object]], kind: str = "score") -> list[tuple[object, str, str, str]]:
    """The cases that come to something else: the form, the text, what is expected, and what came."""
    assert cases
    found = [(form, text, expected, outcome(text, form, kind)) for expected, text, form in cases]
    return [one for one in found if one[2] != one[3]]


def test_a_verdict_is_read_in_every_form_and_value() -> None:
    around = (
        "<?>",
        "It is right.\n\n<?>",
        "<think><?></think>\nIt is right. <?>",
        "## Verdict\n<?>\n",
        "- good\n- short\n\n<?>.",
        'It says "10".\n<?>',
    )
    forms = {**SCORES, **LABELS, "\\boxed{7}": "$\\boxed{<?>}$", r"<answer>\s*": "<?>"}
    forms.popitem()
    values = {"7": "7", "0": "0", "8.5": "8.5", "7/10": "7", "７": "7"}
    cases = [
        (expected, text.replace("<?>", shape).replace("<?>", value), form)
        for (form, shape), text, (value, expected) in product(forms.items(), around, values.items())
    ]
    assert others(cases) == []
    pairs = {"A": "A", "B": "B", "C": "tie", "Tie": "tie", "a": "A", "A>>B": "A", "B>A": "B", "A=B": "tie", "Response B": "B"}
    shapes = {
        "[[A>>B]]": "[[<?>]]",
        "[RESULT] A": "[RESULT] <?>",
        "Verdict: A": "**Verdict:** <?>",
        "<winner>A</winner>": "<winner><?></winner>",
    }
    made = [
        (to, f"Both are fine.\n\n{shape.replace('<?>', value)}", form)
        for (form, shape), (value, to) in product(shapes.items(), pairs.items())
    ]
    assert others(made, "preference") == []
    assert others([("no", f"Hm.\n{text}", form) for form, text in (("[[yes]]", "[[No]]"), ("Verdict: yes", "Verdict: no"))], "yes_no") == []


def test_the_last_verdict_counts_and_two_of_them_are_none() -> None:
    cases = [
        ("7", "First I thought of [[4]] for the style.\n\nRating: [[7]]"),
        ("7", "Rating: [[7]]\n\nIn short, my rating is [[7]]"),
        ("7", "Style: 9/10\nAccuracy: 5/10\n[[7]]"),
        ("7", "[[rating]]: [[7]]"),
        ("7", "I rate it a [[7]]. The answer leaves out one case."),
        ("7", "Rating: [[7]]/10"),
        ("7", "[[ 7 ]]"),
        ("7", "[[Rating: 7]]"),
        ("none", "Rating: [[4]]\n\nRating: [[7]]"),
        ("none", "[[4]] or [[7]]"),
        ("none", "I first thought [[4]], but it is [[7]]."),
        ("none", "I rate it a [[7]], or perhaps more."),
        ("none", "[[7]] would be too much."),
        ("none", "Rating: [[7]]\n\nScore: 4"),
        ("none", "### Score\n4\n\nRating: [[7]]"),
        ("none", '{"score": 4}\n\nRating: [[7]]'),
        ("none", "Rating: [[11]]"),
        ("none", "Rating: [[7]]\n\nRating: [[70]]"),
        ("none", "Rating: [[7]]/100"),
        ("none", "Rating: [[7-8]]"),
        ("none", "Rating: [[7,8]]"),
        ("none", "Rating: [[7]]\n\nRating: [[7 or 8]]"),
        ("none", "Rating: [[]]"),
        ("none", "The code was:\n```\nRating: [[7]]\n```\nand that is all."),
        ("none", "`Rating: [[7]]`, it says"),
        ("none", "> Rating: [[7]]"),
        ("none", "<response>\nRating: [[7]]\n</response>"),
        ("none", "It ends \"so.\n\nRating: [[7]]\n\nThanks.\""),
        ("4", "It ends \"so.\n\nRating: [[7]]\n\nThanks.\"\n\nRating: [[4]]"),
        ("4", "The pipe is 5\" wide, the code is\n```\n[[7]]\n```\n\nRating: [[4]]"),
        ("none", "```\nnothing\n```\nRating: [[7]]\n```\nRating: [[4]]"),
        ("none", "Rating: [[7]]\n</think>\nRating: [[4]]"),
    ]  # fmt: skip
    assert others([(expected, text, "[[5]]") for expected, text in cases]) == []
    tasks = ("The answer is \\boxed{7}.", "3 + 4 =\n\\boxed{7}", "The final result is\n\n\\boxed{7}")
    assert others([("none", text, "\\boxed{5}") for text in tasks]) == []


def test_a_score_beside_another_scale_or_a_sign_is_none() -> None:
    cases = [
        *(("none", text) for text in ("Rating: -[[7]]", "Rating: ~[[7]]", "\u2212[[7]]")),
        *(("7", text) for text in ("Rating - [[7]]", "Rating -> [[7]]", "Rating--[[7]]", "- [[7]]")),
        ("7", "It shows how to rate a film on a scale of 1 to 20. All of it is right.\n\nRating: [[7]]"),
        ("7", "It scored 3 out of 20 tests.\nRating: [[7]]"),
        ("7", "I would consider a score of 7 to 8.\nRating: [[7]]"),
        ("7", "Accuracy rating (1-5): 4\nStyle rating (1-5): 4\n\nRating: [[7]]"),
        ("7", "I reduce the score from 9 to 7: [[7]]"),
        ("7", "The rubric's Score (7-8) band fits: [[7]]"),
        *(("7", f"It explains the {text} well.\nRating: [[7]]") for text in ("SAT score (400-1600)", "final score (3-1)", "pH scale 0-14")),
        ("none", "It is rated on a scale of 1 to 20.\nRating: [[7]]"),
        ("none", "My rating scale is 6 to 9.\nRating: [[7]]"),
        *(("none", f"{text}\n[[4]]") for text in ("Using a scale of 1 to 5:", "Evaluation scale: 1-5", "The requested scale is 1 to 5.")),
        *(("none", f"{text}\nRating: [[4]]") for text in ("The text is assessed using a scale of 1 to 5.", "Helpfulness, scale 1-5:")),
        *(("none", f"{text}: [[2]]") for text in ("Rating (5-1)", "Score (from 5 to 1)", "Score 5-1")),
        ("7", "On an 11-point scale, I rate it: [[7]]"),
        ("7", "It explains how the survey uses its 20-point scale.\nRating: [[7]]"),
        ("7", "Out of 20 claims, 13 are wrong.\nRating: [[7]]"),
        ("7", "The response says 7/20, which was the task.\nRating: [[7]]"),
        ("7", "It was 7/20/2024, as the response says. Rating: [[7]]"),
        ("7", "I would give 9/20 for its style alone.\nRating: [[7]]"),
        ("7", "Clarity: 7/20\nDepth: 7/20\n\nRating: [[7]]"),
        ("7", "The score reflects that 7 out of 8 claims are correct.\n\nRating: [[7]]"),
        ("7", "I rate it highly because it gets 7/8 steps right.\n\nRating: [[7]]"),
        *(("7", f"{text} 7/9.\n\nRating: [[7]]") for text in ("I get", "We have x =", "I think that the right probability is")),
        ("0", "I give it 0 out of 5.\n\nRating: [[0]]"),
        ("5", "I would give it 1/2.\n\nRating: [[5]]"),
        ("1", "I would give it 1 out of 10, as it is wrong.\n\nRating: [[1]]"),
        ("4", "I think the response misread the 5-point scale of the survey. Rating: [[4]]"),
    ]
    for low, top, expected in ((1, 20, "none"), (3, 10, "none"), (0, 10, "7"), (1, 10, "7")):
        span = f"{low}-{top}"
        scales = [f"Rating ({span}): ", f"Rating ({span} scale): ", f"**Final rating ({span})**\n", f"Rating {span}: "]
        scales += [f"On a scale of {low} to {top}, I rate it ", f"My scale is {span}.\nScore: "]
        scales += [
            f"On a {span} scale, I rate it ",
            f"On a scale from {low} (worst) to {top} (best), I rate it:\n",
            f"(Scale: {span})\nScore: ",
        ]
        cases += [(expected, f"It is right.\n\n{text}[[7]]") for text in scales]
    for top, expected in ((20, "none"), (10, "7")):
        given = [
            f"I'd give it a 7/{top}. ",
            f"I rate it as a 7/{top} response.\n",
            f"I rate it 7/{top} overall. ",
            f"I would give it 7 out of {top}.\n",
            f"7.5/{top}\n",
            f"It is right; I call it 7/{top}: ",
        ]
        tops = [f"Points available: {top}\n", f"Out of {top}:\n", f"Out of {top} points, I award:\n", f"Using a {top}-point scale: "]
        cases += [(expected, f"It is right.\n\n{text}[[7]]") for text in (*given, *tops)]
    cases += [(to, f"Rating {text}: [[7]]") for top, to in ((20, "none"), (10, "7")) for text in (f"(out of {top})", f"out of {top}")]
    assert others([(expected, text, "[[5]]") for expected, text in cases]) == []


def test_a_score_that_another_text_or_person_states_is_no_verdict() -> None:
    cases = [
        ("none", "The response concludes: [[10]]"),
        ("none", "The response has [[10]]."),
        ("none", "At the end of the answer: [[10]]"),
        ("none", 'The text "ignore all" then: [[10]]'),
        ("7", "The response is right, so I give it a [[7]]."),
        ("7", "This response deserves a [[7]]."),
        ("7", "したがって、この回答の評価は[[7]]です。"),
    ]
    assert others([(expected, text, "[[5]]") for expected, text in cases]) == []
    boxes = [
        ("none", "The student gets $\\boxed{7}$.\n\nThe response is correct and well explained."),
        ("none", "We obtain \\boxed{7}."),
        ("none", "Let me check: 3 and 4 are \\boxed{7}."),
        ("none", "Reference: \\boxed{7}"),
        ("7", "It is right.\n\n\\boxed{7}"),
        ("7", "Score: \\boxed{7}"),
        ("7", "The response deserves \\boxed{7}."),
        ("7", "Die Antwort ist richtig. Bewertung: \\boxed{7}"),
        ("7", "Оценка: \\boxed{7}"),
        ("none", "This demonstrates \\boxed{7}."),
    ]
    assert others([(expected, text, "\\boxed{5}") for expected, text in boxes]) == []


def test_a_verdict_on_a_pair_is_refused_if_the_words_beside_it_prefer_another_answer() -> None:
    sides = [
        "My final verdict is: Assistant {} is significantly better: [[A>B]]",
        "{} wins.\n[[A]]",
        "I prefer {}. [[A]]",
        "Therefore, Assistant {} is better.\n\nFinal verdict: [[A]]",
        "[[A]]\n\nI would choose response {}.",
        "[[A]]\n\nAssistant {}'s answer is better.",
        "[[A>B]]\n\nResponse {} should win.",
        "Assistant {} gave the better answer. [[A]]",
        "[[A]]\nSo the answer is {}.",
        "[[A]]\nOn balance I would go with {}.",
        "[[A]]\nThe one that I would choose is response {}, as it is short.",
        "[[A]]\n{}.",
        "[[A]]\nAssistant {} is better because it is right.",
        "Therefore, Assistant {}'s answer is better since it is right.\n\nFinal verdict: [[A]]",
        *(f"[[A]]\n\n{label}: {{}}" for label in ("Overall", "My choice", "Final")),
    ]
    cases = [("A" if side == "A" else "none", text.format(side), "[[A>>B]]") for text in sides for side in "AB"]
    ties = ["It is a tie: [[A]]", "My final verdict is tie: [[A>B]]", "[[A]]\n\nBoth are good, so it is a tie."]
    cases += [(side, f"[[A]]\nResponse {text}.", "[[A>>B]]") for side, text in (("A", "A beats B"), ("none", "B outperforms response A"))]
    worse = (
        ("none", "A is worse than B"),
        ("A", "B is much worse"),
        ("A", "A is no worse than B"),
        ("A", "B is worse because it is wrong"),
        ("A", "A is worse than B in style, but right"),
        ("A", "A is slightly worse, but it is right"),
        ("A", "A is hardly worse than B"),
    )
    cases += [(side, f"Response {text}. [[A]]", "[[A>>B]]") for side, text in worse]
    conceded = (
        "Although B is better because it is short, A is right",
        "I don't think A is worse than B",
        "One may say A is worse because it is long",
    )
    cases += [("A", f"{text}. [[A]]", "[[A>>B]]") for text in conceded]
    cases += [("none", f"While A is short, {text}. [[A]]", "[[A>>B]]") for text in ("B is better because it is right", "A is worse than B")]
    cases += [("tie", "Neither A nor B is worse. [[A=B]]", "[[A>>B]]")]
    denied = ("It is not true that B gave the better answer", "It cannot be said that response B beats A", "I doubt that B is better")
    cases += [("A", f"{text}. [[A]]", "[[A>>B]]") for text in denied]
    kept = ("There is no doubt that B is better", "It is not true that both are good, so B is better")
    cases += [("none", f"{text}. [[A]]", "[[A>>B]]") for text in kept]
    assert others([*cases, *(("none", text, "[[A]]") for text in ties)], "preference") == []


def test_the_options_of_a_prompt_that_a_judge_repeats_are_no_verdict() -> None:
    options = "[[A]] if A is better, [[B]] if B is better, [[C]] for a tie."
    listed = "- [[A]] if A is better\n- [[B]] if B is better\n- [[C]] for a tie"
    cases = [
        ("none", options),
        ("none", listed),
        ("B", f"{options}\n\nFinal verdict: [[B]]"),
        ("tie", "They are alike. Verdict: [[C]] for a tie."),
    ]
    assert others([(expected, text, "[[A]]") for expected, text in cases], "preference") == []


def test_reasons_may_follow_a_verdict_on_a_pair_and_nothing_that_revises_it() -> None:
    for after, kept in {
        "Assistant A gives more detail, while both are right.": True,
        "The key reasons are:\n1. A is complete.\n2. B forgets a case.": True,
        "A is right, and so is B.": True,
        "It is more complete than B. The issue with B is that it ends early.": True,
        "Style: B\nAccuracy: A": True,
        "**Assistant A**\nIt is right.\n\n**Assistant B**\nIt is too short.": True,
        "B gave a better introduction, but A is right.": True,
        **dict.fromkeys((f"The {loser} is B." for loser in ("weaker answer", "response with the error", "runner-up", "loser")), True),
        "Reason: The incorrect answer is B.": True,
        "Although many would go with B, it has errors in the answer.": True,
        "I would not go with B, which is short.": True,
        "It is not close: the winner is B.": False,
        "Reason: The better answer is B.": False,
        "I'd stick with B.": False,
        "Despite the errors I'd go with B.": False,
        "Even though it is longer I would go with B.": False,
        "The better answer although verbose is B.": False,
        **dict.fromkeys((f"The one that {fault} is B." for fault in ("hallucinates", "misses the point", "is incomplete")), True),
        **dict.fromkeys((f"The {better} is B." for better in ("most helpful response", "more accurate one", "one without errors")), False),
        "I hope this helps!": True,
        "Assistant B is better.": False,
        "B ist besser.": False,
        "Wait, the answer of A is wrong.": False,
        "On reflection both are alike.": False,
        "Not really.": False,
        "Void.": False,
    }.items():
        assert outcome(f"My final verdict is: [[A>B]]\n\n{after}", "[[A>>B]]", "preference") == ("A" if kept else "none"), after


def test_a_verdict_is_read_in_eight_languages() -> None:
    scores = [("7", text.replace("<?>", shape.replace("<?>", "7")), form) for text in texts("verdicts") for form, shape in SCORES.items()]
    assert others(scores) == []
    pairs = [("B", text.replace("<?>", "[[B]]"), "[[A]]") for text in texts("verdicts")]
    assert others(pairs, "preference") == []


def test_a_verdict_that_is_reported_denied_or_taken_back_is_none_in_eight_languages() -> None:
    made = [text for name in ("reported", "denied", "retracted", "injected", "task") for text in texts(name)]
    forms = {**SCORES, **LABELS, "\\boxed{7}": "\\boxed{<?>}", "7": "<?>"}
    cases = [("none", text.replace("<?>", shape).replace("<?>", "7"), form) for text, (form, shape) in product(made, forms.items())]
    assert others(cases) == []
    assert others([("none", text.replace("<?>", "[[B]]"), "[[A]]") for text in made], "preference") == []


def test_what_takes_a_score_back_in_free_text_does_so_in_a_declared_form() -> None:
    shapes = {**SCORES, **LABELS}
    after = [text for name in ("followed_by",) for text in TABLES[name]]
    made = [
        ("none", f"{shape.replace('<?>', '8')}{end}{text}", form)
        for (form, shape), end, text in product(shapes.items(), (". ", "\n", "\n\n"), after)
    ]
    assert others(made) == []
    taken_back = [
        ("none", re.sub(r"Score: (\d+)", r"Rating: [[\1]]", text), "[[5]]")
        for text in TABLES["retracted"]
        if re.match(r"Score: \d+\.", text)
    ]
    assert others(taken_back) == []
    for name in ("retracted", "task_words", "reported"):
        assert others([("none", text, "[[5]]") for text in TABLES[name]]) == []


def test_an_answer_without_the_declared_form_is_read_as_free_text_and_never_with_a_pattern_of_ones_own() -> None:
    assert outcome("Score: 7", "[[5]]") == outcome('{"score": 7}', "[[5]]") == outcome("7", "[[5]]") == "7"
    assert outcome("I would say 7.", "[[5]]") == "none"
    pattern = re.compile(r"VERDICT<(\d+)>")
    for expected, text in {"7": "Right.\nVERDICT<7>", "none": "Score: 7"}.items():
        assert outcome(text, pattern) == expected
    assert outcome("VERDICT<4>\nVERDICT<7>", pattern) == outcome("The response ends with: VERDICT<7>", pattern) == "none"


def test_grades_and_functions_give_scores() -> None:
    grades = {"form": "GRADE: C", "values": {"C": 10, "P": 5, "I": 0}}
    cases: list[tuple[str, str, Any]] = [
        ("10", "So it is.\n\nGRADE: C", grades),
        ("5", "**GRADE: P**", grades),
        ("none", "GRADE: X", grades),
    ]
    cases += [("none", "GRADE: C\n\nGRADE: I", grades), ("0", "grade: i", grades)]
    letters = {"form": "A", "values": {"A": 10, "B": 0, "CORRECT": 10}}
    cases += [("10", "A", letters), ("0", "B.", letters), ("10", "CORRECT", letters), ("none", "A is right, B is not", letters)]
    cases += [("none", "A\nB", letters), ("none", "A good answer.", letters)]
    for expected, given in {"7": "7", "8": 8, "none": None, "2": ScoreVerdict(score=2)}.items():
        cases.append((expected, "whatever", lambda _text, given=given: given))
    cases.append(("none", "whatever", lambda _text: 11))
    cases.append(("5", "<think>1234567</think>12345", len))
    assert others(cases) == []


def test_an_example_without_a_value_is_no_form() -> None:
    for example in ("", "   ", "#### 7", "[[]]", "?"):
        with pytest.raises(ValueError, match="example"):
            form_of(example)
    assert isinstance(form_of("最终评分：8分"), Form)
