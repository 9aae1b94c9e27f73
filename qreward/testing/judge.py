"""A judge that needs no model: it reads a question, a reference and a candidate, and says whether they agree.

Deterministic, so a reward computed from it can be checked. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import re
from typing import Any

from qreward.testing.equivalence import same_answer
from qreward.testing.text import digest_of

_LABEL = re.compile(r"^[ \t]*(question|reference answer|candidate answer)[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_ANY_ORDER = re.compile(r"\b(?:in any order|order does(?: not|n't) matter)\b", re.IGNORECASE)


def judge(messages: list[Any]) -> str:
    """Judge the last user message; return JSON ``{"verdict", "score", "reason", "echo"}``.

    The message holds ``Question:``, ``Reference answer:`` and ``Candidate answer:``, each at the start of a line and going
    on until the next. The first of each counts, so a candidate that comes last cannot bring in a reference of its own.

    Example:
        >>> judge([{"role": "user", "content": "Reference answer: 1/2\\nCandidate answer: 50%"}])[:45]
        '{"verdict": "correct", "score": 1, "reason": '
    """
    reason, correct = _decide(sections(last_user_text(messages)))
    verdict = {"verdict": "correct" if correct else "incorrect", "score": int(correct), "reason": reason}
    return json.dumps({**verdict, "echo": digest_of(messages)[:8].hex()}, ensure_ascii=False)


def _decide(found: dict[str, str]) -> tuple[str, bool]:
    for label in ("reference answer", "candidate answer"):
        if not found.get(label):
            return f"the message has no {label}", False
    any_order = bool(_ANY_ORDER.search(found.get("question", "")))
    reason = same_answer(found["reference answer"], found["candidate answer"], any_order)
    return reason or "differs from the reference", reason is not None


def sections(text: str) -> dict[str, str]:
    """Label, in small letters, -> its text."""
    first: dict[str, re.Match[str]] = {}
    for match in _LABEL.finditer(text):
        first.setdefault(match[1].lower(), match)
    starts = sorted(first.values(), key=lambda match: match.start())
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return {match[1].lower(): text[match.end() : end].strip() for match, end in zip(starts, ends, strict=False)}


def last_user_text(messages: list[Any]) -> str:
    """The words of the last message of the user, ``""`` if there is none."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""
