"""The kind ``nim``: NVIDIA NIM's reward models."""

from __future__ import annotations

import re
from typing import Any

from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import joined
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import RewardScore
from qreward.codecs.rewards.base import ALONE, ListCodec, ServerKind
from qreward.codecs.rewards.parsing import InvalidRow

_ATTRIBUTE = re.compile(r"\s*([A-Za-z][\w .-]{0,40}?)\s*:\s*([^\s,]+)\s*")


class NimReward(ListCodec):
    """Encodes and decodes ``POST /chat/completions`` with a response such as ``helpfulness:1.25,correctness:0.43`` or ``reward:-7.1``."""

    path = "/chat/completions"
    texts = False
    chats = True
    rows_in = "choices"
    limits = ALONE

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        choices = parsing.member(document, self.rows_in)
        if not choices:
            raise Malformed("the answer has no choices")
        return parsing.in_order(choices[:1], len(call.inputs))

    def value(self, row: Any) -> RewardScore:
        row = parsing.row_of(row)
        parsing.check_ending(row.get("finish_reason"))  # "length" is accepted, because these servers send it with complete numbers
        message = row.get("message")
        attributes = attributes_of(joined(message.get("content")) if isinstance(message, dict) else "")
        return RewardScore(parsing.by_name(attributes, self.settings.label, "reward"), attributes)


def attributes_of(text: str) -> dict[str, float]:
    """Parse a line such as ``helpfulness:1.25,correctness:0.43``. Raises ``InvalidRow`` for anything else."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _ATTRIBUTE.fullmatch(part)
        if match is None or match[1] in found:
            raise InvalidRow("its text is not a list of attributes such as helpfulness:1.25,correctness:0.43")
        try:
            value = float(match[2])
        except ValueError:
            raise InvalidRow(f"its {match[1]} is a text, not a finite number") from None
        found[match[1]] = parsing.number(value, match[1])
    return found


NIM = ServerKind("nim", {"score": NimReward}, probe=("/v1/health/ready",), lists_models=True)
