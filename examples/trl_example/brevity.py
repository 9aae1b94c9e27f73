"""A plain reward function, which gives short completions the highest reward."""

from __future__ import annotations

from typing import Any


def brevity(completions: list[Any], **_: Any) -> list[float]:
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [min(1.0, 100 / max(1, len(text))) for text in texts]
