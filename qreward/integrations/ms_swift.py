"""Rewards of a judge or a reward model in ms-swift: a class for its registry of reward functions. This module does not import ms-swift."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from qreward.integrations.trainers import Adapter, Source
from qreward.integrations.trainers.texts import rows_of
from qreward.integrations.trl import check_groups

__all__ = ["QRewardORM"]

ADAPTER = Adapter(
    trainer="ms-swift",
    deadline=300.0,  # ms-swift has no limit, but all ranks wait for the slowest
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("solution", "reference", "answer", "ground_truth")},
    none_unsupported="which counts a reward of None as 0.0; use raise (the default) or a number",
    no_groups="",
)


class QRewardORM:
    """A reward function for GRPO in ms-swift, with the signature of its ``AsyncORM``.

    Set ``settings`` in a subclass for settings of its own. By default, the file that ``QREWARD_REWARD`` names has the settings. The
    attribute ``metrics`` has means over the last batch, such as ``judge_ok``.

    Raises:
        ConfigError: the settings are missing or wrong.

    Example:
        >>> orms: dict[str, type] = {}  # from swift.rewards import orms
        >>> orms["qreward"] = QRewardORM
    """

    settings: Source = None

    def __init__(self, args: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - ms-swift's signature
        self._size = getattr(args, "num_generations", None)
        self.metrics: dict[str, float] = {}
        ADAPTER.rewarder(self.settings)  # a wrong setting fails here, not at the first batch

    async def __call__(self, completions: Sequence[Any], messages: Sequence[Sequence[Any]], **columns: Any) -> list[float | None]:
        """Return the rewards of a batch, whose conversations (``messages``) end with the ``completions``.

        Raises ``QRewardError`` if a reward is missing, and the settings name no number for it.
        """
        made = ADAPTER.rewarder(self.settings)
        prompts = [each[:-1] for each in messages]
        if made.config.rank is not None:
            check_groups("qreward", prompts, self._size)
        rows = rows_of(prompts, completions, {**columns, "messages": messages})
        step = getattr(columns.get("trainer_state"), "global_step", None)
        scored = await ADAPTER.score_in_portal(made, rows, step=step)
        every = [each.metrics() for each in scored]
        self.metrics = {name: fmean(each[name] for each in every) for name in (every[0] if every else ())}
        return [ADAPTER.reward(each, made.config) for each in scored]
