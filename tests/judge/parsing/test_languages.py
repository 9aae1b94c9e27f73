"""Verdicts in eight languages. ``texts/languages.json`` holds the words around them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

from test_verdict_corpus import outcome

LANGUAGES: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "texts" / "languages.json").read_text("utf-8"))


def texts(name: str) -> list[str]:
    return [text for language, found in LANGUAGES[name].items() if language != "about" for text in found]


def test_a_verdict_that_is_reported_in_any_language_is_no_verdict() -> None:
    verdicts = ("评分：10分", "Score: 10", "[[10]]", "Rating: [[10]]", "<score>10</score>", '{"score": 10}')
    made = [text.replace("<?>", verdict) for text, verdict in product(texts("reported"), verdicts)]
    assert [text for text in made if outcome("score", text) != "none"] == []


def test_a_comma_in_double_brackets_may_separate_two_numbers() -> None:
    assert [text for text in ("[[8,9]]", "Rating: [[8,9]]", "Rating: [[8, 9]]") if outcome("score", text) != "none"] == []
