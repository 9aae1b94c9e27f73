"""A rollout loop for ROLL's RLVR pipelines that drops a prompt whose rewards are missing, instead of ending the run."""

from __future__ import annotations

from typing import Any

from roll.distributed.scheduler.user_defined_rollout_loop import UserDefinedRolloutLoop
from roll.utils.logging import get_logger

from qreward.integrations.roll.rewards import Drops, RewardUnavailable


class SkippingRolloutLoop(UserDefinedRolloutLoop):  # type: ignore[misc]  # ROLL has no types
    """ROLL's rollout loop, but a :class:`RewardUnavailable` does not end the run.

    Instead, the loop drops the prompt with all its responses, and ROLL takes another prompt.

    The class is for ``user_defined_rollout_loop_cls`` of a pipeline. A dropped prompt is also replaced in a validation.

    Raises:
        RewardUnavailable: from ``process_new_prompt``, when ``MOST_DROPPED`` prompts in a row were dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drops = Drops("prompts")
        self._reason = ""

    async def process_new_prompt(self, context: Any) -> Any:
        """Process a prompt as ROLL's loop does, and return its responses. If rewards are missing, return None, which drops the prompt."""
        responses = await super().process_new_prompt(context)
        self._drops.check(self._reason)
        return responses

    async def _generate_and_reward(self, context: Any, req: Any, domain: str) -> Any:
        try:
            responses = await super()._generate_and_reward(context=context, req=req, domain=domain)
        except RewardUnavailable as error:
            self._drops.dropped()
            self._reason = str(error).splitlines()[0]
            get_logger().warning(f"prompt {context.prompt_id} is dropped: {self._reason}")
            return None
        self._drops.kept()
        return responses
