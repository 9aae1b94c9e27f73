"""The words in eight languages, from ``vocabulary.toml``, as parts of regular expressions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_TABLES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
_WITHOUT_SPACES = ("zh", "ja", "ko")
"""Languages that put no spaces between words, or join endings to them."""


def vocabulary(notion: str) -> str:
    """Return a part of a regular expression that matches the words of a table."""
    table = {language: text.replace("\n", "") for language, text in _TABLES[notion].items()}
    spaced = "|".join(text for language, text in table.items() if language not in _WITHOUT_SPACES)
    return "|".join([rf"\b(?:{spaced})\b", *(text for language, text in table.items() if language in _WITHOUT_SPACES)])


def any_word(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts), re.IGNORECASE | re.MULTILINE)
