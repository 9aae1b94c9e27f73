"""Codecs of OpenRLHF's ``/get_reward``, and of NVIDIA NIM's reward models, which answer a chat with a line of numbers."""

from __future__ import annotations

import re
from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import joined
from qreward.codecs.rewards import parsing as reading
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.base import ALONE, Conversation, ListCodec, Pair, conversation
from qreward.codecs.rewards.parsing import InvalidRow
from qreward.errors import BadRequest

_ATTRIBUTE = re.compile(r"\s*([A-Za-z][\w .-]{0,40}?)\s*:\s*([^\s,]+)\s*")


class OpenRlhfReward(ListCodec):
    """``POST /get_reward`` with ``query`` (prompt and response in one), ``prompts`` and ``labels``.

    The reward is in ``rewards``. ``scores`` and the lists of ``extra_logs`` are its attributes; ``RewardModel(label=...)`` selects one of
    them as the reward. Without a template, the query is the prompt followed by the response.
    """

    path = "/get_reward"
    native = True

    def form(self, item: Any) -> Any:
        if isinstance(item, Conversation):
            raise BadRequest("/get_reward of this server takes no conversations; send (prompt, response), or a text")
        return item

    def write(self, items: list[Any], model: str, params: dict[str, Any]) -> bytes:
        queries = [self.settings.render(item.prompt, item.response) if isinstance(item, Pair) else item for item in items]
        known = [item if isinstance(item, Pair) else Pair("", "") for item in items]
        labels = ["" if pair.label is None else pair.label for pair in known]
        jsonio.check(labels, "labels")
        params = {"prompts": [pair.prompt for pair in known], "labels": labels, **params}
        return jsonio.write(model, "query", queries, params, all_text=True)

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        count = len(call.inputs)
        rewards = reading.as_many(reading.member(document, "rewards"), count, "rewards")
        logs = document.get("extra_logs")
        columns = {**(logs if isinstance(logs, dict) else {}), "score": document.get("scores"), "reward": rewards}
        whole = {name: column for name, column in columns.items() if isinstance(column, list) and len(column) == count}
        return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]

    def value(self, row: Any) -> Score:
        wanted = "reward" if self.settings.label is None else self.settings.label
        if wanted not in row:
            raise InvalidRow(f"it has {reading.told(row)}; RewardModel(label=...) must be one of them")
        return Score(reading.number(row[wanted], "reward"), {name: float(raw) for name, raw in row.items() if _is_number(raw)})


class NimReward(ListCodec):
    """``POST /chat/completions`` with a response such as ``helpfulness:1.25,correctness:0.43`` or ``reward:-7.1``.

    A request contains one conversation; only concurrent requests increase the throughput. The reward is the attribute named by the
    settings' ``label``, else ``reward``, else the only one.
    """

    path = "/chat/completions"
    has_template = True
    limits = ALONE

    def form(self, item: Any) -> Any:
        if isinstance(item, str):
            raise BadRequest("this server judges conversations; send (prompt, response), or messages whose last one is the assistant's")
        return conversation(item) if isinstance(item, Pair) else item

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        choices = reading.member(document, "choices")
        if not choices:
            raise Malformed("the answer has no choices")
        return reading.in_order(choices[:1], len(call.inputs))

    def value(self, row: Any) -> Score:
        row = reading.row_of(row)
        reading.check_ending(row.get("finish_reason"))  # "length" is usual here, and the text of numbers is still complete
        message = row.get("message")
        if isinstance(message, list) and message:  # an earlier form of the hosted API
            message = message[0]
        attributes = attributes_of(joined(message.get("content")) if isinstance(message, dict) else "")
        return Score(reading.picked(attributes, self.settings.label, "reward"), attributes)


def attributes_of(text: str) -> dict[str, float]:
    """Parse a line such as ``helpfulness:1.25,correctness:0.43``. Raises ``InvalidRow`` for anything else.

    Example:
        >>> attributes_of("helpfulness:1.25, correctness:-0.5")
        {'helpfulness': 1.25, 'correctness': -0.5}
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _ATTRIBUTE.fullmatch(part)
        if match is None or match[1] in found:
            raise InvalidRow("its text is not a list of attributes such as helpfulness:1.25,correctness:0.43")
        try:
            value = float(match[2])
        except ValueError:
            raise InvalidRow(f"its {match[1]} is a text, not a finite number") from None
        found[match[1]] = reading.number(value, match[1])
    return found


def _is_number(raw: Any) -> bool:
    try:
        reading.number(raw)
    except InvalidRow:
        return False
    return True
