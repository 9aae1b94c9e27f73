"""The table of the kinds of fake server."""

from __future__ import annotations

from qreward.testing.rewards.dialect import Dialect
from qreward.testing.rewards.others import Nim, OpenRlhf
from qreward.testing.rewards.sglang import Sglang
from qreward.testing.rewards.tei import Tei
from qreward.testing.rewards.vllm import Vllm

DIALECTS: dict[str, Dialect] = {
    "openai": Dialect(),
    "vllm": Vllm(),
    "sglang": Sglang(),
    "tei": Tei(),
    "openrlhf": OpenRlhf(),
    "nim": Nim(),
}
