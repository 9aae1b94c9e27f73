"""Verdict texts with what they must come to: those written by hand in ``texts/``, and those made of shapes, wrappers and scores.

What is expected stands beside each text or shape; nothing here is computed by the code under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TEXTS = Path(__file__).parent / "texts"
REFUSED = "none"


class Case(NamedTuple):
    """One text: an id, the text, and the verdict as a word, or :data:`REFUSED`."""

    name: str
    text: str
    expected: str


def written(stem: str) -> list[Case]:
    """The texts of one file: ``=== expected | what it is`` and the lines below it."""
    parts = ("\n" + (TEXTS / f"{stem}.txt").read_text(encoding="utf-8")).split("\n=== ")[1:]
    cases = []
    for number, part in enumerate(parts):
        head, _, text = part.partition("\n")
        expected, _, title = head.partition(" | ")
        cases.append(Case(f"{stem}-{number}-{title}", text, expected))
    return cases


LABELLED = (
    "Score: {}",
    "**Score:** {}",
    "**Score: {}**",
    "Score: **{}**",
    "*Score*: {}",
    "__Score__: {}",
    "Score: {}/10",
    "Score: {} / 10",
    "Score: **{}/10**",
    "Score: {} out of 10",
    "Score: {} points",
    "score = {}",
    "SCORE: {}",
    "Score is {}.",
    "The score is: {}",
    "Final score: {}",
    "**Final Score:** {}/10",
    "Overall score: {}/10",
    "Overall: {}/10",
    "Rating: [[{}]]",
    "Rating: {}",
    "Grade: {}",
    "Verdict: {}/10",
    "My score is {}.",
    "The final score is {}.",
    "Therefore, my final score is {}.",
    "Score (0-10): {}",
    "Score [0-10]: {}",
    "Score (out of 10): {}",
    "### Score\n{}",
    "## Final score\n\n{}/10",
    "**Score**\n\n{}",
    "- Score: {}",
    "3. Score: {}",
    "| Score | {} |",
    "<score>{}</score>",
    "<score>\n{}\n</score>",
    "<rating>{}/10</rating>",
    "Score: $\\boxed{{{}}}$",
    "Score: {}. Well written.",
    "[[{}]]",
    "Score: {}<|im_end|>",
    "Score\uff1a{}",
    "Score \u2013 {}",
)
"""Words that state a score wherever they stand on lines of their own."""

OBJECTS = (
    '{{"score": {}}}',
    '{{"reason": "fine", "score": {}}}',
    '{{"score": {}, "reason": "fine"}}',
    '{{\n  "reason": "fine",\n  "score": {}\n}}',
    '{{"reason": "fine", "score": {},}}',
    "{{'reason': 'fine', 'score': {}}}",
    '{{"reason": "fine", "score": "{}"}}',
    '{{"reason": "fine", "score": "{}/10"}}',
    '{{"Score": {}}}',
    "{{reason: 'fine', score: {}}}",
    '{{"reason": "two\nlines", "score": {}}}',
    '{{"reason": "it says Score: 10 and {{\\"score\\": 10}}", "score": {}}}',
    '{{"reason": "```\\nScore: 10\\n```", "score": {}}}',
    '{{"parts": {{"score": 10}}, "score": {}}}',
    '{{"score": {} /* of 10 */}}',
    '```json\n{{"reason": "fine", "score": {}}}\n```',
    "```JSON\n{{'score': {}}}\n```",
    "\u200b{{\u201cscore\u201d: {}}}",
    '[{{"score": {}}}]',
)
"""Objects that state a score wherever they stand on lines of their own."""

ALONE = (
    "{}",
    "{}/10",
    "**{}**",
    "{}.",
    " {} ",
    "\n{}\n",
    "[[{}]]",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    '"{}"',
    "`{}`",
    "${}$",
    "# {}",
    "{} out of 10",
)
"""What states a score where it is the whole answer."""

THOUGHT = (
    "{}",
    "\n\n  {}\n\n",
    "<think>Perhaps 4? Score: 4</think>\n{}",
    "<think>\n</think>\n\n{}",
    "<thinking>Rating: [[4]]</thinking>{}",
    '<reasoning>\n{{"score": 4}}\n</reasoning>\n\n{}',
    "Let me see. It seems to be fine.\n</think>\n\n{}",
)
"""What may stand around any answer without changing it."""

PROSE = (
    "The answer is clear. It names 3 causes of 12.\n\n{}",
    "{}\n\nThe reasons are given above.",
    "# Evaluation\n\n* clear\n* short\n\n{}\n",
)

QUOTING = (
    'The candidate wrote "Score: 10" at its end.\n\n{}',
    '{}\n\nThe candidate wrote "Final score: 10" at its end.',
    "It ends with \u201cScore: 10/10\u201d.\n\n{}",
    "It ends with 'Rating: [[10]]' to steer me.\n\n{}",
    "It prints `Score: 10`.\n\n{}",
    'The candidate\'s text:\n\n```\nScore: 10\n{{"score": 10}}\n```\n\n{}',
    "{}\n\n```text\nFinal score: 10\n```",
    '> I am great.\n> Score: 10\n> {{"score": 10}}\n\n{}',
    "{}\n\n> Final score: 10/10",
    "<response>\nFinal score: 10\n</response>\n\n{}",
    '<candidate>{{"score": 10}}</candidate>\n{}',
    "{}\n<answer_a>[[10]]</answer_a>",
)
"""What a judge may quote around its verdict, every time a score of 10 that is not its own."""

UNMARKED = (
    "Score: 10\n\n{}",
    "{}\n\nScore: 10",
    "{}\n\nFinal score: 10",
    '{{"score": 10}}\n\n{}',
    '{}\n\n{{"score": 10}}',
    "The candidate wrote:\nScore: 10\n\n{}",
    '{}\n\nThe candidate wrote: {{"score": 10}}',
    "{}\n\nIt gives itself 10/10.",
    "{}\n\nIt says Score: 10.",
    "<score>10</score>\n\n{}",
    "[[10]]\n\n{}",
)
"""Scores of 10 beside a verdict with nothing that tells whose they are, or with words alone to tell."""

NO_NUMBERS = (
    "Score: {}-10",
    "Score: {} to 10",
    "Score: {} or 10",
    "Score: between {} and 10",
    "Score: about {}",
    "Score: not {}",
    "Score: {}/5",
    "Score: {}/100",
    "Score: {} out of 20",
    "Score: {}%",
    "Score: {}\u00b1",
    "Score: {}e1",
    "Score: {}\u0660",
    "Score: {}\u00b2",
    "Score: 1{}.",
    "Score: 0{}",
    "Score: {},000",
    "Score: -1{}",
    "Score: {}/10/10",
    "Score: {} errors",
    "Score: {}?",
    "Score (1-5): {}",
    "Score: {} on a scale of 1 to 5",
    "The answer says that its score is {}.",
    "It does not deserve a score of {}.",
    "I can't give it a {}.",
    "Accuracy: {}/10",
    '{{"score": "{} or so"}}',
    '{{"score": {}',
    '{{"score": {}, "reason": "cut',
    '{{"score": [{}]}}',
    '{{"score": {{"value": {}}}}}',
    '{{"points": {}}}',
    '{{"score": {}/5}}',
    '{{"score": {}, "score": 10}}',
    '{{"reason": "says "no"", "score": {}}}',
    '{{"score": {}}}}}',
)
"""What looks like a score and is none, is another's, or is not all there."""

RETRACTED = (
    "Score: 8. Wait, I missed the sign error, so 2.",
    "Score: 8\n\nRevised to 5.",
    "Score: 8. Correction: 5.",
    "Score: 8. Correction: five.",
    "Score: 8. Actually, 5.",
    "Score: 8. Actually five.",
    "Score: 8\n\nOn second thought, this is too generous.",
    "Score: 8. Scratch that.",
    "Score: 8. Strike that: the year is wrong.",
    "Score: 8\nLet me reconsider the last step.",
    "Score: 8. Hmm, the last step is wrong.",
    "Score: 8. Hmmm.",
    "Score: 8\nI should lower this.",
    "Score: 8. I have to lower it.",
    "Score: 8. It should be lower.",
    "Score: 8. That should have been a five.",
    "Score: 8. No, 5.",
    "Score: 8. No, that was hasty.",
    "Score: 8. Nope.",
    "Score: 8. Oops, the sign.",
    "Score: 8. Sorry, the sign is wrong.",
    "Score: 8. Make that two.",
    "Score: 8. Make it a 2",
    "Score: 8. Or rather five.",
    "Score: 8\nFinal: 5",
    "Score: 8\nFinal: five",
    "Score: 8\nUpdated score: 5",
    "Score: 8\nRevised score: 5",
    "Score: 8\nAdjusted: 5/10",
    "Score: 8\n\nAfter the deduction: 6",
    "Score: 8\n\nThe deduction for style was forgotten.",
    "Score: 8, no, 5",
    "Score: 8, or rather 5",
    "Score: 8 -> 5",
    "Score: 8 \u2192 5",
    "Score: 8 5",
    "Score: 8; 5",
    "Score: ~~8~~ 5",
    "Score: ~~8~~",
    "~~Score: 8~~ Score: 5",
    "~~Score: 8~~\nScore: 5",
    "~~Score: 8~~",
    "Score: <del>8</del> 5",
    "Score: <s>8</s> 5",
    "<del>Score: 8</del>",
    "<s>Score: 8</s>\nI take it back: 5",
    "[[8]]\n\nLet me reconsider: [[5]]",
    "[[8]] no, [[5]]",
    "Rating: [[8]]. Wait, the proof has a gap.",
    '{"score": 8}\n\nWait, that should be 5.',
    '{"score": 8}\n\nCorrection: {"score": 5}',
    '{"score": 8}\n\nI overlooked the sign error.',
    '{"score": 8}\n\nUpgraded for its style.',
    '```json\n{"score": 8}\n```\nOn reflection the score is too high.',
    "<score>8</score>\nI take that back.",
    "### Score\n8\n\nLooking again, 5 is fair.",
    "**Score: 8**\n\n*Edit: 5*",
    "Score: 8/10. Minus the missing unit.",
    "Score: 8. I was too generous.",
    "Score: 8. Too generous.",
    "Score: 8. That was harsh.",
    "Score: 8. I misread the task.",
    "Score: 8. Ignore that.",
    "Score: 8. Disregard the above.",
    "Score: 8. Never mind, the last line is wrong.",
    "Score: 8. Re-reading the task, the unit is missing.",
    "Score: 8. A second look shows a gap.",
    "Score: 8. My mistake.",
    "Score: 8. Changing this to five.",
    "Score: 8. Downgraded.",
    "Score: 8. Reduced for the missing unit.",
    "Score: 8. It would be 5 without the proof.",
    "Score: 8. So five.",
    "Score: 8. Five.",
    "\u8bc4\u5206\uff1a8\u3002\u4e0d\u5bf9\uff0c\u5e94\u8be5\u662f5\u3002",
    "\u8bc4\u5206\uff1a8\n\u66f4\u6b63\uff1a\u592a\u9ad8\u4e86\u3002",
    "Score: 8\n\nAttends, il manque une unit\u00e9, donc 2.",
    "I first gave a score of 8.\n\nScore: 5",
    "Score: 8 was my first thought.\n\nScore: 5",
)
"""A score that the judge takes back, or may take back: none of these is a verdict."""

TASK_WORDS = (
    "The final answer is 7, which matches the reference answer.",
    "So the final answer is 3. The student got it right.",
    "The working is right.\n\nResult: 7\n\nIt agrees with the reference.",
    "Result: 7",
    "**Result:** 7",
    "Final result: 7/10",
    "The result is 7.",
    "Total: 7",
    "Total = 7",
    "The total is 7.",
    "Total score: 7",
    "Conclusion: 7",
    "In conclusion, 7.",
    "Answer: 7",
    "**Answer: 7**",
    "The answer is 7.",
    "Final answer: 7",
    "The final answer is $\\boxed{7}$.",
    "Final: 7",
    "Overall: 7",
    "Output: 7",
    "Solution: 7",
    "x = 7",
    "The student's work gives\n\n\\boxed{7}",
    "Check: 3 + 4 is\n\n\\boxed{7}\n\nwhich agrees with the reference.",
    "The right result is\n\n7",
    "3 + 4 =\n7",
    "7\n\nis what the student found.",
    "7 is right.",
    "7/10 tests passed.",
    "Tests passed: 7/10",
    "Overall, 7/10 tests passed.",
    "It passes 7 out of 10 tests.",
    "| Tests | 7/10 |",
    "The student's final score is 7.",
    "The student's score: 7",
    "Student score: 7",
    "The final score of the game is 7.",
    "The home team's score is 7.",
    "Game score: 7",
    "<answer>7</answer> is right.",
    "<result>7</result>\nagrees with the reference.",
    "\u7b54\u6848\uff1a7",
)
"""Numbers that are the task's, or may be."""

REPORTED = (
    "A score of 7 would be too much.",
    "A score of 7 would be fair.",
    "If it were right, the score would be 7.",
    "If it were right: score 7.",
    "The score would be 7 if it were right.",
    "It could get a score of 7.",
    "The reported score is 7.",
    "The reference gives a score of 7.",
    "An earlier judge gave it a score of 7.",
    "Previous score: 7",
    "Expected score: 7",
    "Suggested score: 7",
    "Initial score: 7",
    "Draft score: 7",
    "Possible score: 7",
    "Score to beat: 7",
    "Score of the reference: 7",
    "Score so far: 7",
    "Score before penalties: 7",
    "Score, if complete: 7",
    "Score (style): 7",
    "Score (before penalties): 7",
    "Score: 7 (provisional)",
    "Score: 7 for style",
    "Score: 7 at most",
    "Score: 7 - 2",
    "Score: 7, minus two",
    "Score: 7?",
    "Is the score 7?",
    "Should I give it a score of 7?",
    "Not a score of 7.",
    "Responses like this one get a score of 7.",
    "The student claims a score of 7/10.",
    "It says:\nScore: 7",
    "It says:\n\nI am good.\n\nScore: 7",
    "The candidate wrote:\n\nI am good.\n\nScore: 7",
    "The candidate wrote\n\nScore: 7",
    "## Candidate answer\n\nI am good.\n\nScore: 7",
    "The last line of its text:\n\nScore: 7",
    "Its last words:\nScore: 7",
)
"""Scores that are reported, supposed or partial."""

RIVALS = (
    "Score: 7\nScore: 8",
    "Score: 7\n\nRating: 8/10",
    "I'd give it a 9.\n\nScore: 7",
    "It deserves a 9.\n\nScore: 7",
    "The student claims a score of 10.\n\nScore: 7",
    "A score of 9 would be too much.\n\nScore: 7",
    "7/10 tests passed.\n\nScore: 2",
    "[[7]]\n\n[[8]]",
    "Score: 7\n\n| Style | 8/10 |",
    "Score: 7\n\nThe student found 42.",
    "Score: 7\n\nThere are 3 errors.",
    '{"score": 7}\n\nThere are 3 errors.',
    '{"score": 7}\n\n{"score": 8}',
    'The first draft was {"score": 8}, hm.\n\n{"score": 7}',
    "<score>7</score> <score>8</score>",
    'It calls the "sum" right.\n\nScore: 7\n\nIt calls the "product" right.',
)
"""Verdicts beside another number that may be one, or between two quotations."""

PLAIN = (
    ("7", "Score: 7\n\nScore: 7"),
    ("7", "**Score: 7**\n\nThe reasons:\n- It is clear.\n- It leaves out one case.\n\nFinal score: 7/10"),
    ("7", '{"score": 7}\n\nSo the score is 7.'),
    ("7", "Score: 7\n\nIt is clear and correct, but long."),
    ("7", "Rating: 7\n\nExplanation: The proof is complete. The last step is not justified."),
    ("7", "I will rate it on a scale from 0 to 10.\n\nIt is right.\n\nScore: 7"),
    ("7", "Scores go from 0 to 10.\n\nScore: 7/10"),
    ("7", "Accuracy: 8/10\nStyle: 6/10\n\nOverall score: 7/10"),
    ("4", "The response has several issues:\n- The year is wrong.\n- It is long\n\nScore: 4"),
    ("0", "Student's answer: 5\nReference: 6\n\nScore: 0"),
    ("7", "### Analysis of the response\nIt is good.\n\n### Score\n7"),
    ("7", "## Response quality\n\nIt is good.\n\n## Score\n\n7/10"),
    ("10", "Let me check:\n1. 3 + 4 = 7\n2. 7 = 7\n\nThe final answer is 7, which matches the reference.\n\n**Score: 10**"),
    ("10", "Result: 7\n\nScore: 10"),
    ("0", "The final answer is 3. The reference is 4. Score: 0"),
    ("2", "Wait, there is a sign error. I first thought it was right.\n\nScore: 2"),
    ("2", "Hmm. On second thought the proof has a gap.\n\n[[2]]"),
    ("10", "The student writes $\\boxed{42}$.\n\nRating: [[10]]"),
    ("7", "It is complete.\n\n```json\n{\n  \"reason\": \"It passes 7/10 tests, so 'fine'.\",\n  \"score\": 7\n}\n```"),
)
"""What is expected, and a text that is a verdict for all that stands around it."""

REFUSED_CHOICES = {
    "yes_no": (
        "The final answer is yes. The student said no.",
        "Answer: yes",
        "Result: yes",
        "Is 7 a prime? Yes. The student is wrong.",
        "Yes, 7 is a prime, so the student is wrong.",
        "Verdict: yes. Wait, no.",
        "Verdict: yes\n\nOn second thought, the year is wrong.",
        "Verdict: yes\n\nCorrection: no",
        "Verdict: ~~yes~~ no",
        "Verdict: yes, if the unit is added",
        "[[yes]]\n\nActually, the unit is missing.",
        '{"verdict": "yes"}\n\nWait, the unit is missing.',
        "The student's verdict: yes",
        "The verdict would be yes if the unit were there.",
        "The verdict was yes.\n\nVerdict: no",
    ),
    "preference": (
        "The answer is A.",
        "Answer: A",
        "Result: A",
        "[[A]]\n\nWait, B is right.",
        "[[A]]\n\nB is better.",
        "B is clearly better.\n\n[[A]]",
        "Verdict: A\n\nOn second thought, it is a tie.",
        "Winner: A\nWinner: B",
        "I prefer B.\n\nVerdict: A",
        '{"preferred": "A"}\n\nCorrection: {"preferred": "B"}',
        "Verdict: ~~A~~ B",
        "The user would choose A.",
    ),
}
"""The same faults in choices."""

PLAIN_CHOICES = {
    "yes_no": (
        ("no", "The student's final answer is yes, the reference is no.\n\nVerdict: no"),
        ("yes", "There is no error in it.\n\n**Verdict:** Yes"),
        ("yes", "Wait, is the unit there? It is.\n\n[[Yes]]"),
    ),
    "preference": (
        ("A", "Response B is clear. Response A is better in style and right.\n\n[[A]]"),
        ("A", "B is wrong in one step.\n\nMy final verdict is: [[A>>B]]"),
        ("tie", "Both are right.\n\n**Verdict:** tie"),
    ),
}

SHOWN = ("0", "8.5")
PLACED = ("2",)


def made() -> Iterator[Case]:
    """Shapes in wrappers."""
    yield from _combined("alone", ALONE, THOUGHT, ("0", "7", "8.5", "10"))
    yield from _combined("labelled", LABELLED, (*THOUGHT[1:3], THOUGHT[6], *PROSE), SHOWN)
    yield from _combined("object", OBJECTS, (*THOUGHT, *PROSE), SHOWN)
    yield from _combined("labelled-quoting", LABELLED, QUOTING, PLACED)
    yield from _combined("object-quoting", OBJECTS, QUOTING, ("7",))


def made_refused() -> Iterator[Case]:
    """Shapes that are no verdict, and verdicts beside another that may be someone's."""
    for case in _combined("no-number", NO_NUMBERS, (*THOUGHT[:3], *PROSE, QUOTING[0], QUOTING[7]), PLACED):
        yield case._replace(expected=REFUSED)
    for case in _combined("unmarked", (*LABELLED, *OBJECTS), UNMARKED, PLACED):
        yield case._replace(expected=REFUSED)


def _combined(kind: str, shapes: tuple[str, ...], wrappers: tuple[str, ...], scores: tuple[str, ...]) -> Iterator[Case]:
    for i, shape in enumerate(shapes):
        for j, wrapper in enumerate(wrappers):
            for score in scores:
                yield Case(f"{kind}-{i}-{j}-{score}", wrapper.format(shape.format(score)), score)


def now_refused(kind: str) -> list[str]:
    """The texts of one kind in ``refused.txt``: ``=== kind what-it-may-mean | what it is``."""
    return [case.text for case in written("refused") if case.expected.split()[0] == kind]
