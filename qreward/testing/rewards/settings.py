"""How a fake reward server scores, and what it takes: settings only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qreward.settings.base import Policy


class Scoring(Policy):
    """What a fake reward server is.

    Args:
        labels: its classes, or, for NIM, its attributes. By default one: ``LABEL_0``, and ``reward`` for NIM.
        max_items: most items of a list; TEI's default is 32, the others have no limit.
        max_tokens: longest item, at four bytes of its JSON a token; a list with a longer one is refused as a whole.
        per_item: seconds of work for each item, beside the ``base`` of the latency.
        activation_field: the name by which a vLLM switches the activation off; one that it does not know has no effect.
        reward_vectors: ``/v1/embeddings`` gives the reward as a vector of one number, as reward models do on SGLang and vLLM.
    """

    labels: tuple[str, ...] = ()
    max_items: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=8192, ge=1)
    per_item: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    activation_field: Literal["use_activation", "activation", "softmax"] = "use_activation"
    reward_vectors: bool = False
