"""Rewards for OpenRLHF. Its command line takes the path of ``reward_func.py`` (a function) or ``agent.py`` (an executor without threads).

Only ``agent.py`` imports OpenRLHF. ``python -m qreward.integrations.openrlhf`` prints the paths.
"""

from __future__ import annotations

from pathlib import Path

from qreward.integrations.openrlhf.reward_func import DEADLINE, results

__all__ = ["DEADLINE", "agent_path", "results", "reward_func_path"]


def reward_func_path() -> str:
    """Return the path for ``--reward.remote_url``."""
    return str(Path(__file__).with_name("reward_func.py"))


def agent_path() -> str:
    """Return the path for ``--train.agent_func_path``."""
    return str(Path(__file__).with_name("agent.py"))
