"""Rewards of a judge or a reward model in SkyRL: an environment of SkyRL-Gym, which this module imports."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from qreward.engine.portal import portal
from qreward.integrations.trainers import Adapter, Scored, Source

__all__ = ["QRewardEnv"]

ADAPTER = Adapter(
    trainer="skyrl",
    deadline=300.0,  # SkyRL has no limit
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("ground_truth", "reference", "solution", "answer")},
    none_unsupported="which needs a number for each step; use raise (the default) or a number",
)

_Env: Any = importlib.import_module("skyrl_gym.envs.base_text_env").BaseTextEnv


class QRewardEnv(_Env):  # type: ignore[misc]  # SkyRL-Gym has no types
    """Asks one question, and scores the answer. SkyRL calls the methods in threads, which share one client.

    Set ``settings`` in a subclass for settings of its own. By default, the file that ``QREWARD_REWARD`` names has the settings.

    Raises:
        ConfigError: the settings are missing or wrong.

    Example:
        ``skyrl_gym.register(id="qreward", entry_point="qreward.integrations.skyrl:QRewardEnv")``
    """

    settings: Source = None

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002 - SkyRL's signature
        super().__init__()
        self.extras = extras or {}
        self.prompt: list[Any] = []
        self._made = ADAPTER.rewarder(self.settings)
        self._scored: Scored | None = None

    def init(self, prompt: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Note the prompt, and return it unchanged."""
        self.prompt = list(prompt)
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        """Score an answer and end the episode. A subclass with several turns calls this method for the last turn.

        Raises ``QRewardError`` if there is no reward, and the settings name no number for it.
        """
        (self._scored,) = portal().call(ADAPTER.score, self._made, [self.row(action)])
        reward = ADAPTER.reward(self._scored, self._made.config)
        return {"observations": [], "reward": reward, "done": True, "metadata": {}, "postprocessed_action": None}

    def row(self, action: str) -> dict[str, Any]:
        """Return the columns of an answer; override this method to add columns.

        The columns are those of the dataset, the entries of its columns ``extra_info`` and ``reward_spec`` (or ``reward_model``), and
        ``prompt`` and ``response``. A column takes precedence over an entry with its name.
        """
        inner = [self.extras.get(name) for name in ("extra_info", "reward_model", "reward_spec")]
        entries = {name: value for mapping in inner if isinstance(mapping, Mapping) for name, value in mapping.items()}
        return {**entries, **self.extras, "prompt": self.prompt, "response": action}

    def get_metrics(self) -> dict[str, float]:
        """Return ``judge_ok``, ``judge_seconds``, ``judge_tokens``, ``judge_cost`` and ``judge_unreported``, which SkyRL logs."""
        return {} if self._scored is None else self._scored.metrics()
