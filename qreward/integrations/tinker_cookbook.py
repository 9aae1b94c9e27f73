"""Rewards of a judge or a reward model in tinker-cookbook: a mixin for its builders of groups. This module does not import the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers import Adapter, Source

__all__ = ["QRewardGroup"]

ADAPTER = Adapter(
    trainer="tinker_cookbook",
    deadline=300.0,  # tinker-cookbook has a limit only if grader_timeout_seconds is set
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("reference",)},
    none_unsupported="which adds the rewards of a group up; use raise (the default) or a number",
    no_groups="",
)


class QRewardGroup:
    """A mixin for an ``EnvGroupBuilder``, which scores the trajectories of a group. It must be the first base class.

    Set ``settings`` in the class for settings of its own. By default, the file that ``QREWARD_REWARD`` names has the settings.

    Example:
        >>> class ProblemGroupBuilder: ...  # from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
        >>> class JudgedGroup(QRewardGroup, ProblemGroupBuilder): ...
    """

    settings: Source = None

    async def compute_group_rewards(
        self, trajectory_group: Sequence[Any], env_group: Sequence[Any]
    ) -> list[tuple[float | None, dict[str, float]]]:
        """Return the reward and the metrics of each trajectory. tinker-cookbook adds the rewards of the trajectory's steps.

        Raises ``QRewardError`` if a reward is missing, and the settings name no number for it.
        """
        made = ADAPTER.rewarder(self.settings)
        rows = [self.row(*each) for each in zip(trajectory_group, env_group, strict=True)]
        scored = await ADAPTER.score_in_portal(made, rows)
        return [(ADAPTER.reward(each, made.config), each.metrics()) for each in scored]

    def row(self, trajectory: Any, env: Any) -> dict[str, Any]:
        """Return the columns of a trajectory; override this method to add columns, and for an environment that is no ``ProblemEnv``.

        The columns are ``prompt`` (messages), ``response`` (the text of the last action, without thinking) and ``reference``.
        """
        if not hasattr(env, "get_question"):
            raise ConfigError(f"{type(env).__name__} is no ProblemEnv; override row() of {type(self).__name__} to say what is judged")
        content = env.renderer.parse_response(trajectory.transitions[-1].ac.tokens)[0]["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")
        prompt = [*env.convo_prefix, {"role": "user", "content": env.get_question()}]
        return {"prompt": prompt, "response": text, "reference": env.get_reference_answer()}
