"""HTML of a verdict: the score, the votes it was aggregated from, and the tokens used."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from qreward.notebook.render import Column, clip, facts, frame, number, table

MOST_WORDS = 400
"""Characters shown of an answer."""


def verdict_html(verdict: Any, outcome: str, attributes: Mapping[str, float] | None = None) -> str:
    """The outcome of a ``Verdict`` or a ``Comparison``, with a table row for each vote and each attribute of a reward model."""
    used, score = verdict.usage, f"{verdict.score:g}"
    line = facts([
        "" if outcome == score else f"score {score}",
        f"{number(len(verdict.votes))} votes" if len(verdict.votes) > 1 else "",
        "" if used is None or used.total_tokens is None else f"{number(used.total_tokens)} tokens",
        "cached" if verdict.cached else "",
    ])  # fmt: skip
    named = table(_ATTRIBUTES, list(attributes.items())) if attributes else ""
    return frame(f"<b>{escape(outcome)}</b>{' · ' if line else ''}{line}", named, table(_VOTES, verdict.votes))


def _reason(vote: Any) -> str:
    """The ``reason`` of the parsed verdict, if it has one; else the text of the answer."""
    reason = getattr(vote.verdict, "reason", None)
    return escape(clip(reason if isinstance(reason, str) and reason else vote.text, MOST_WORDS))


_VOTES = (
    Column("model", "who was asked", lambda vote: escape(vote.model), words=True),
    Column("score", "what its answer says", lambda vote: f"{vote.score:g}"),
    Column("shown", "in which order the two responses were shown", lambda vote: "second first" if vote.swapped else "", words=True),
    Column("reason", "why, or the answer as it came", _reason, words=True),
)
_ATTRIBUTES = (
    Column("attribute", "what the reward model calls it", lambda row: escape(str(row[0])), words=True),
    Column("value", "as it gave it", lambda row: f"{row[1]:g}"),
)
