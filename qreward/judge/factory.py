"""``make_scorer``, which trainer adapters use to create a scorer from settings."""

from __future__ import annotations

from qreward.client import QRewardClient
from qreward.errors import ConfigError
from qreward.judge.config import JudgeConfig
from qreward.judge.judge import Judge
from qreward.judge.reward_model import RewardModelScorer
from qreward.judge.types import Scorer


def make_scorer(client: QRewardClient, scorer: JudgeConfig | str | None, *, owns_client: bool = True) -> Scorer:
    """Create a judge from its settings, or a reward model scorer from a model name.

    Args:
        client: the client that sends the requests.
        scorer: the settings of a judge, or the name of a reward model.
        owns_client: closing the scorer also closes the client.

    Raises:
        ConfigError: a setting is invalid, or ``scorer`` is None.

    Example:
        >>> make_scorer(QRewardClient(["http://gpu-0:8000/v1"]), "rm-7b")
        <RewardModelScorer rm-7b>
    """
    if isinstance(scorer, JudgeConfig):
        return Judge.from_config(client, scorer, owns_client=owns_client)
    if isinstance(scorer, str) and scorer:
        return RewardModelScorer(client, scorer, owns_client=owns_client)
    raise ConfigError(f"a scorer is made from JudgeConfig or the name of a reward model, not {scorer!r}")
