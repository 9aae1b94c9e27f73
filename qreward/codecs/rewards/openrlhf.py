"""The kind ``openrlhf``: ``/get_reward`` of OpenRLHF's reward servers, and of ``qreward serve``."""

from __future__ import annotations

from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.rewards import parsing
from qreward.codecs.rewards.answers import RewardScore
from qreward.codecs.rewards.base import ListCodec, Pair, ServerKind
from qreward.codecs.rewards.parsing import InvalidRow


class OpenRlhfReward(ListCodec):
    """Encodes and decodes ``POST /get_reward`` with ``query`` (prompt and response in one text), ``prompts`` and ``labels``."""

    path = "/get_reward"
    native = True

    def form(self, item: Any) -> Any:
        return item if isinstance(item, Pair) else super().form(item)

    def body(self, items: list[Any]) -> dict[str, Any]:
        queries = [self.settings.render(item.prompt, item.response) if isinstance(item, Pair) else item for item in items]
        known = [item if isinstance(item, Pair) else Pair("", "") for item in items]
        labels = ["" if pair.label is None else pair.label for pair in known]
        return {"query": queries, "prompts": [pair.prompt for pair in known], "labels": labels}

    def rows(self, document: Any, call: WireRequest) -> list[Any]:
        count = len(call.inputs)
        rewards = parsing.as_many(parsing.member(document, "rewards"), count, "rewards")
        logs = document.get("extra_logs")
        columns = {**(logs if isinstance(logs, dict) else {}), "score": document.get("scores"), "reward": rewards}
        whole = {name: column for name, column in columns.items() if isinstance(column, list) and len(column) == count}
        return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]

    def value(self, row: Any) -> RewardScore:
        wanted = "reward" if self.settings.label is None else self.settings.label
        if wanted not in row:
            raise InvalidRow(f"it has {parsing.safe_names(row)}; RewardModel(label=...) must be one of them")
        return RewardScore(parsing.number(row[wanted], "reward"), {name: float(raw) for name, raw in row.items() if parsing.is_number(raw)})


OPENRLHF = ServerKind("openrlhf", {"score": OpenRlhfReward})
