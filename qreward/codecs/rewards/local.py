"""The scores of a function in this process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from qreward.codecs import json as jsonio
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import RewardScore
from qreward.codecs.rewards.base import Conversation, ListCodec, MergeLimits, Operation, Pair
from qreward.errors import ConfigError
from qreward.settings.policies import RewardModel


class LocalScore(ListCodec):
    """Passes the items to the function: a text, a mapping with ``prompt``, ``response`` and ``label``, or a list of messages."""

    path = "/local/score"
    pairs = chats = True

    def mergeable(self, item: Any) -> bool:  # noqa: ARG002 - a function takes conversations in a list too
        return True

    def encode(self, call: WireRequest, model: str) -> bytes:
        self.operation.check(call.params)
        return jsonio.write(model, "items", [_passed(self.form(item)) for item in call.inputs], {"params": call.params}, all_text=False)

    def value(self, row: Any) -> RewardScore:
        if not isinstance(row, dict):
            return RewardScore(parsing.number(row))
        if row.get("error"):
            raise parsing.InvalidRow(f"the function returned an error for it: {row['error']}")
        numbers = {name: float(raw) for name, raw in row.items() if parsing.is_number(raw)}
        return RewardScore(parsing.by_name(numbers, self.settings.label, "reward"), numbers)


def _passed(item: Any) -> Any:
    if isinstance(item, Pair):
        return {"prompt": item.prompt, "response": item.response} | ({} if item.label is None else {"label": item.label})
    return item.messages if isinstance(item, Conversation) else item


@lru_cache(maxsize=256)
def local_codec(operation: Operation, settings: RewardModel, most: int | None) -> LocalScore:
    """Return the codec of a function that takes ``most`` items at once. Raises ``ConfigError`` for an operation other than ``score``."""
    if operation.name != "score":
        raise ConfigError(f"a function in this process answers chat completions and scores, but not {operation.name}")
    codec = LocalScore(operation, settings)
    codec.limits = MergeLimits(items=most or 1)
    return codec
