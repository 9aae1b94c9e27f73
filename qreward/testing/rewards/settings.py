"""Settings of a fake reward server."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qreward.settings.base import Policy


class Scoring(Policy):
    """Settings of a fake reward server.

    Args:
        labels: classes of the model, or, for NIM, its attributes. By default one: ``LABEL_0``, and ``reward`` for NIM.
        max_items: most items of a list. None is 32 for TEI, and no limit for the others.
        max_tokens: length of the longest accepted item in tokens, at four bytes of JSON per token. A list with a longer item is refused.
        per_item: seconds of work for each item, in addition to the ``base`` of the latency.
        activation_field: name of the request field that disables the activation on vLLM; other names have no effect.
        reward_vectors: ``/v1/embeddings`` returns the raw scores as a vector with one number per label, as reward models do on
            SGLang and vLLM.
    """

    labels: tuple[str, ...] = ()
    max_items: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=8192, ge=1)
    per_item: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    activation_field: Literal["use_activation", "activation", "softmax"] = "use_activation"
    reward_vectors: bool = False
