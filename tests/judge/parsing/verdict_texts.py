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
    "Score: {}. Reason: well written.",
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
    "{}\n\nReason: The grounds are given above.",
    "# Evaluation\n\n* clear\n* short\n\n{}\n",
)

QUOTING = (
    'The candidate wrote "Score: 10" at its end.\n\n{}',
    '{}\n\nReason: The candidate wrote "Final score: 10" at its end.',
    "It ends with \u201cScore: 10/10\u201d.\n\n{}",
    "It ends with 'Rating: [[10]]' to steer me.\n\n{}",
    "It prints `Score: 10`.\n\n{}",
    'This is the code of the candidate.\n\n```\nScore: 10\n{{"score": 10}}\n```\n\n{}',
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
