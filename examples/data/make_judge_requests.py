"""Write the requests of ``qreward demo``, each with the verdict that the judge should return.

Half of the candidate answers are right, often in another form than the reference, and half are wrong, often by one.
The questions of ``judge_facts.txt`` occur twice, like two rollouts of one prompt. All other questions are made from a seed.
This program does not use qreward. ``python examples/data/make_judge_requests.py qreward/cli/judge_requests.jsonl`` writes the file again.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path

HERE = Path(__file__).parent
SEED = 20261121
MADE_PER_CATEGORY = 32
SYSTEM = (
    "You grade answers. Compare the candidate answer with the reference answer to the question. Accept another form of the same "
    "answer: capitals, punctuation, articles, number formats and, where the question allows any order, the order of a list. "
    'Reply with one JSON object: {"verdict": "correct" or "incorrect", "score": 1.0 or 0.0, "reason": one sentence}.'
)
NAMES = ("Mia", "Omar", "Lena", "Ravi", "Chloe", "Tomas", "Aiko", "Femi", "Ines", "Pavel", "Nour", "Greta")
THINGS = ("apples", "stickers", "marbles", "pencils", "shells", "stamps", "coins", "buttons", "postcards", "tickets")
WORDS = (
    "river",
    "cloud",
    "amber",
    "stone",
    "maple",
    "tiger",
    "violin",
    "candle",
    "harbor",
    "lemon",
    "rocket",
    "meadow",
    "pepper",
    "garden",
)
UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"


@dataclass(frozen=True)
class Question:
    """A question with its reference answer, one right candidate and one wrong candidate."""

    text: str
    reference: str
    right: str
    wrong: str


Maker = Callable[[random.Random], Question]


def arithmetic(rng: random.Random) -> Question:
    """A word problem with one to three steps."""
    name, other = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    a, b, c = rng.randint(12, 60), rng.randint(3, 11), rng.randint(2, 9)
    text, answer = rng.choice(
        (
            (f"{name} has {a} {thing} and gives {b} to {other}. How many {thing} does {name} have left?", a - b),
            (f"{name} packs {b} boxes with {c} {thing} each. How many {thing} is that?", b * c),
            (f"{name} buys {c} bags of {b} {thing} and finds {a} more. How many {thing} does {name} have?", b * c + a),
            (f"{name} shares {b * c} {thing} equally with {b - 1} friends, keeping a share. How many does each get?", c),
            (f"{other} reads {b} pages a day for {c} days of a book with {a + b * c} pages. How many pages remain?", a),
            (f"{name} is {a} years old and {other} is {b} years younger. How old are they together?", 2 * a - b),
        )
    )
    right = rng.choice((str(answer), f"{answer}.", f"**{answer}**", f"{answer}.0"))
    return Question(text, str(answer), right, str(answer + rng.choice((-1, 1, 10))))


def units(rng: random.Random) -> Question:
    """A quantity with its unit."""
    name = rng.choice(NAMES)
    a, b = rng.randint(2, 9), rng.randint(3, 12)
    text, answer, big, small, factor = rng.choice(
        (
            (f"{name} walks {a} km a day for {b} days. How far is that?", a * b, "km", "m", 1000),
            (f"{name} carries {b} bricks of {a} kg each. How heavy is the load?", a * b, "kg", "g", 1000),
            (f"{name} ties {b} ropes of {a} m end to end. How long is the rope, knots aside?", a * b, "m", "cm", 100),
            (f"{name} sleeps {a} hours a night for {b} nights. How long does {name} sleep?", a * b, "hours", "minutes", 60),
            (f"{name} waits {b} minutes for one bus and {a} minutes for the next. How long is the wait?", a + b, "minutes", "seconds", 60),
            (f"{name} takes {b} kg of flour out of a sack of {a + b} kg. How much is left?", a, "kg", "g", 1000),
        )
    )
    right = rng.choice((f"{answer} {big}", f"{answer} {big}.", f"**{answer}** {big}", f"{answer}.0 {big}"))
    wrong = rng.choice((f"{answer + 1} {big}", f"{answer * 10} {big}", f"{answer} {small}", f"{answer * factor + 1} {small}"))
    return Question(text, f"{answer} {big}", right, wrong)


def fractions(rng: random.Random) -> Question:
    """A share or a sum of fractions, whose right answer may be a decimal."""
    name, whole = rng.choice(NAMES), rng.choice((4, 5, 8, 10, 16, 20))
    part, more = rng.randint(1, whole - 2), 1
    text, value = rng.choice(
        (
            (f"{name} eats {part} of {whole} equal slices. What share of the cake is that?", Fraction(part, whole)),
            (f"{name} has read {part} of {whole} chapters of equal length. What share of the book is left?", Fraction(whole - part, whole)),
            (f"What is {part}/{whole} plus {more}/{whole}?", Fraction(part + more, whole)),
            (f"What is half of {part}/{whole}?", Fraction(part, 2 * whole)),
        )
    )
    decimal = f"{float(value):.10g}"
    reference, right = rng.choice(
        ((str(value), decimal), (decimal, str(value)), (str(value), f"{value}."), (decimal, f"{float(value * 100):.10g}%"))
    )
    wrong = rng.choice((f"{float(value) + 0.1:.10g}", str(value + Fraction(1, whole)), f"{float(value) / 10:.10g}"))
    return Question(text, reference, right, wrong)


def percentages(rng: random.Random) -> Question:
    """A share of a round amount."""
    percent, base = rng.choice((5, 10, 20, 25, 40, 50, 75)), 20 * rng.randint(2, 40)
    answer = percent * base // 100
    text, reference = rng.choice(
        (
            (f"What is {percent}% of {base}?", answer),
            (f"A coat of {base} euros is {percent}% off. What is its new price, in euros?", base - answer),
        )
    )
    right = rng.choice((str(reference), f"{reference}.0", f"{reference}!"))
    return Question(text, str(reference), right, str(reference + rng.choice((-1, 1, 5))))


def large_numbers(rng: random.Random) -> Question:
    """Thousands with and without separators."""
    a, b = rng.randint(1_001, 99_999), rng.randint(101, 9_999)
    answer = a + b
    right = rng.choice((f"{answer:,}", str(answer), f"{answer}.00", f"({answer:,})"))
    return Question(f"What is {a} plus {b}?", f"{answer:,}", right, f"{answer + rng.choice((-1, 1, 100, 1000)):,}")


def spelled_numbers(rng: random.Random) -> Question:
    """A number asked for in digits or in words."""
    a, b = rng.randint(13, 70), rng.randint(2, 29)
    words, total = number_words(a), a + b
    wrong = rng.choice((-1, 1, 10))
    return rng.choice(
        (
            Question(f'Write "{words}" in digits.', str(a), f"{a}.", str(a + wrong)),
            Question(f"Write {a} in words.", words, rng.choice((words.capitalize(), words.replace("-", " "))), number_words(a + wrong)),
            Question(f"What is {words} plus {number_words(b)}, in digits?", str(total), f"{total}.", str(total + wrong)),
        )
    )


def dates(rng: random.Random) -> Question:
    """Days of the week and distances between dates."""
    start = date(2001, 1, 1) + timedelta(days=rng.randint(0, 9_000))
    gap = rng.randint(3, 90)
    end = start + timedelta(days=gap)
    if rng.random() < 0.5:
        right = rng.choice((str(gap), f"{gap}.", f"{gap}.0"))
        return Question(f"How many days after {start} is {end}?", str(gap), right, str(gap + rng.choice((-1, 1))))
    wrong = end + timedelta(days=rng.choice((-1, 1)))
    right = rng.choice((f"{end:%A}", f"{end:%A}".lower(), f"A {end:%A}."))
    return Question(f"{start} is a {start:%A}. Which day of the week is it {gap} days later?", f"{end:%A}", right, f"{wrong:%A}")


def sorting(rng: random.Random) -> Question:
    """A list to be put in order, so that the order matters."""
    chosen = rng.sample(WORDS, 4) if rng.random() < 0.5 else [str(n) for n in rng.sample(range(10, 100), 5)]
    ordered = sorted(chosen, reverse=(down := rng.random() < 0.3))
    swapped = list(ordered)
    at = rng.randrange(len(ordered) - 1)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    kind = "words alphabetically" if chosen[0].isalpha() else "numbers by size"
    text = f"Sort these {kind}, {'descending' if down else 'ascending'}: {', '.join(chosen)}."
    right = rng.choice((", ".join(ordered), ",".join(ordered), "; ".join(ordered), f"{', '.join(ordered[:-1])} and {ordered[-1]}."))
    return Question(text, ", ".join(ordered), right, ", ".join(swapped))


def sequences(rng: random.Random) -> Question:
    """The next term of an arithmetic or geometric sequence."""
    first, step, ratio = rng.randint(1, 30), rng.randint(2, 12), rng.randint(2, 3)
    terms = [first + step * i for i in range(5)] if rng.random() < 0.6 else [first * ratio**i for i in range(5)]
    shown, answer = ", ".join(map(str, terms[:4])), terms[4]
    right = rng.choice((str(answer), f"`{answer}`", f"{answer}."))
    return Question(f"What number comes next: {shown}?", str(answer), right, str(answer + rng.choice((-1, 1, terms[3]))))


MAKERS: dict[str, Maker] = {
    "arithmetic": arithmetic,
    "unit conversion": units,
    "fractions": fractions,
    "percentages": percentages,
    "large numbers": large_numbers,
    "numbers in words": spelled_numbers,
    "dates": dates,
    "sorting": sorting,
    "sequences": sequences,
}


def number_words(number: int) -> str:
    """A whole number in English words, up to 999 (``forty-two``)."""
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{number_words(hundreds)} hundred" + (f" and {number_words(rest)}" if rest else "")
    if number < 20:
        return UNITS.split()[number]
    tens, rest = divmod(number, 10)
    return TENS.split()[tens - 2] + (f"-{number_words(rest)}" if rest else "")


def written_questions() -> Iterator[tuple[str, Question]]:
    """The hand-written questions with their category, in the order of the file."""
    category = ""
    for line in (HERE / "judge_facts.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            category = line.strip("[]")
        elif line and not line.startswith("#"):
            text, reference, right, wrong = line.split(" | ")
            yield category, Question(text, reference, reference if right == "=" else right, wrong)


def made_questions(rng: random.Random) -> Iterator[tuple[str, Question, bool]]:
    """Made questions, no text twice, with whether the right candidate is shown: half of each category."""
    for category, make in MAKERS.items():
        unique: dict[str, Question] = {}
        while len(unique) < MADE_PER_CATEGORY:
            question = make(rng)
            unique.setdefault(question.text, question)
        for place, question in enumerate(unique.values()):
            yield category, question, place % 2 == 0


def line_of(number: int, category: str, question: Question, right: bool) -> str:
    """One request as a JSON line."""
    candidate = question.right if right else question.wrong
    user = f"Question: {question.text}\nReference answer: {question.reference}\nCandidate answer: {candidate}"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    expected = "correct" if right else "incorrect"
    return json.dumps({"id": f"judge-{number:04d}", "messages": messages, "expected": expected, "category": category})


def lines() -> list[str]:
    """All lines of the file; the same on every machine."""
    rng = random.Random(SEED)  # noqa: S311 - test data, not a secret
    drafts = [(category, question, right) for category, question in written_questions() for right in (True, False)]
    drafts.extend(made_questions(rng))
    rng.shuffle(drafts)
    return [line_of(number, *draft) for number, draft in enumerate(drafts, 1)]


def main() -> None:
    """Write the file that the command line names."""
    Path(sys.argv[1]).write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
