"""The reward worker and the rollout loop for ROLL's RLVR pipelines. In ``qreward.integrations.roll``, only this module imports ROLL."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from opentelemetry import context, propagate
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.user_defined_rollout_loop import UserDefinedRolloutLoop
from roll.models.model_providers import default_tokenizer_provider
from roll.utils.logging import get_logger
from roll.utils.prompt import prompt_maps

from qreward.integrations.roll import (
    ADAPTER,
    PROMPTS,
    RESPONSES,
    RewardUnavailable,
    check_dropped,
    failure_of,
    judge_rows,
    rows_of,
    settings_of,
)

CARRIER = "_otel_ctx"
"""Key of ``DataProto.meta_info`` in which ROLL stores W3C ``traceparent`` and ``tracestate``."""


class JudgeRewardWorker(Worker):  # type: ignore[misc]  # ROLL has no types
    """Scores with a judge or a reward model, in place of ROLL's own judge, whose keys it accepts.

    Because ``compute_rewards`` is async, ROLL allows 1,000 concurrent calls of the actor. One worker replaces many of ROLL's own workers.
    """

    def __init__(self, worker_config: Any) -> None:
        super().__init__(worker_config=worker_config)
        self.rank_info.dp_rank = self.rank_info.rank
        self.rank_info.dp_size = self.rank_info.world_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def initialize(self, pipeline_config: Any) -> None:
        """Load the actor's tokenizer and read the settings. A wrong setting ends the run before ROLL generates a response."""
        super().initialize(pipeline_config)
        self.actor_tokenizer = default_tokenizer_provider(pipeline_config.actor_train.model_args)
        config = settings_of(self.worker_config, prompt_maps)
        failure_of(config)
        self.rewarder = ADAPTER.rewarder(config)
        self._decoding = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qreward-decoding")  # a tokenizer is not thread-safe

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)  # type: ignore[untyped-decorator]
    async def compute_rewards(self, data: DataProto) -> DataProto:
        """Judge each row. Raises ``RewardUnavailable`` if a reward is missing, and ``on_failure`` names no number for it."""
        meta_info = data.meta_info or {}
        carrier = meta_info.get(CARRIER) or {}  # ROLL continues the caller's trace only in methods that are not async
        token = context.attach(propagate.extract(carrier, context.get_current()))
        try:
            rows = await asyncio.get_running_loop().run_in_executor(self._decoding, self._rows, data)
            rewards, metrics = await judge_rows(self.rewarder, rows, meta_info.get("global_step"))
        finally:
            context.detach(token)
        scores = torch.tensor(rewards, dtype=torch.float16)
        zeros = torch.zeros_like(data.batch[RESPONSES], dtype=torch.float16)
        output = DataProto.from_dict(tensors={"token_level_rewards": zeros, "response_level_rewards": scores, "scores": scores.clone()})
        output.meta_info = {"metrics": metrics}
        return output

    def _rows(self, data: DataProto) -> list[dict[str, Any]]:
        prompts, responses = (
            self.actor_tokenizer.batch_decode(data.batch[name], skip_special_tokens=True) for name in (PROMPTS, RESPONSES)
        )
        return rows_of(data.non_tensor_batch, prompts, responses)


class SkippingRolloutLoop(UserDefinedRolloutLoop):  # type: ignore[misc]  # ROLL has no types
    """ROLL's rollout loop, for ``user_defined_rollout_loop_cls``, but a :class:`RewardUnavailable` does not end the run.

    Instead, the loop drops the prompt with all its responses, and ROLL takes another prompt.

    Raises:
        RewardUnavailable: from ``process_new_prompt``, when ``MOST_DROPPED`` prompts in a row were dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dropped, self._reason = 0, ""

    async def process_new_prompt(self, context: Any) -> Any:
        """Process a prompt as ROLL's loop does, and return its responses. If rewards are missing, return None, which drops the prompt."""
        responses = await super().process_new_prompt(context)
        check_dropped(self._dropped, "prompts", self._reason)
        return responses

    async def _generate_and_reward(self, context: Any, req: Any, domain: str) -> Any:
        try:
            responses = await super()._generate_and_reward(context=context, req=req, domain=domain)
        except RewardUnavailable as error:
            self._dropped += 1
            self._reason = str(error).splitlines()[0]
            get_logger().warning(f"prompt {context.prompt_id} is dropped: {self._reason}")
            return None
        self._dropped = 0
        return responses
