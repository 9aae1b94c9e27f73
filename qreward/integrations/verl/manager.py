"""A reward manager for verl, which this module imports. It receives the original prompt and all columns of the data."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.verl import ADAPTER, PROMPTS, ROUTER, load, score_rows, source_of

HERE = ("pkg://qreward.integrations.verl", "pkg://qreward/integrations/verl")

_ADAPTER = replace(ADAPTER, columns={**ADAPTER.columns, "prompt": ("raw_prompt", *PROMPTS)})

_Base: Any = importlib.import_module("verl.experimental.reward_loop.reward_manager.base").RewardManagerBase


class QRewardManager(_Base):  # type: ignore[misc]  # verl has no types
    """Scores each sample, as :func:`~qreward.integrations.verl.compute_score` does, but with the prompt that verl sent to the model.

    Raises:
        ConfigError: on construction, if a setting is wrong or another reward function is configured, which this manager would not call.

    Example:
        ``reward.reward_manager.source=importlib reward.reward_manager.name=QRewardManager``
        ``reward.reward_manager.module.path=pkg://qreward.integrations.verl``
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,  # noqa: ARG002 - verl passes it
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        function = config.reward.get("custom_reward_function") or {}
        if function.get("path") not in (None, *HERE):
            raise ConfigError(
                f"QRewardManager does not call a reward function, but {function.get('path')!r} is configured; "
                f"remove reward.custom_reward_function.path, or use verl's own manager"
            )
        given = {**(function.get("reward_kwargs") or {}), ROUTER: reward_router_address}
        served_by_sglang = reward_router_address and config.reward.reward_model.rollout.name == "sglang"
        self.settings = load(source_of(given, "sglang" if served_by_sglang else "vllm"))
        _ADAPTER.rewarder(self.settings)  # a wrong setting fails here, not at the first sample

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score the last sequence of a sample, and return the score and the whole result."""
        item = data[-1:][0]
        columns = item.non_tensor_batch
        row: dict[str, Any] = {}
        for inner in (columns.get("extra_info"), columns.get("tool_extra_fields"), columns):
            row |= inner if isinstance(inner, Mapping) else {}
        truth = columns.get("reward_model")
        row["ground_truth"] = truth.get("ground_truth") if isinstance(truth, Mapping) else None
        row["solution_str"] = await asyncio.to_thread(self._decode, item.batch)
        step = (getattr(data, "meta_info", None) or {}).get("global_steps")
        (result,) = await score_rows(_ADAPTER, _ADAPTER.rewarder(self.settings), [row], step)
        return {"reward_score": result["score"], "reward_extra_info": result}

    def _decode(self, batch: Any) -> str:
        tokens = batch["responses"]
        valid = int(batch["attention_mask"][-tokens.shape[-1] :].sum())
        return str(self.tokenizer.decode(tokens[:valid], skip_special_tokens=True))
