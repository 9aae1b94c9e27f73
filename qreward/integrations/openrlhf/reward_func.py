"""A file for OpenRLHF's ``--reward.remote_url``. ``python -m qreward.integrations.openrlhf`` prints its path.

OpenRLHF calls the function in threads, at most ``min(32, cpus + 4)`` at once; ``agent.py`` in the same package has no such bound.
"""

from __future__ import annotations

from typing import Any

from qreward.engine.portal import portal
from qreward.integrations.openrlhf.scoring import results


def reward_func(queries: list[str], prompts: list[str], labels: list[Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001 - signature
    """Score responses. May be called from any number of threads. The settings are in the file that ``QREWARD_REWARD`` names.

    Args:
        queries, prompts, labels: as OpenRLHF passes them: one of each, or several.
        kwargs: accepted and ignored.

    Returns:
        ``rewards``, ``scores`` and ``extra_logs`` (``judge_ok``, ``judge_seconds``): numbers for one query, lists of them for several.

    Raises:
        ConfigError: the settings are missing or wrong. OpenRLHF only logs exceptions of this function and continues without a reward.
        QRewardError: a reward is missing, and the settings say ``on_failure: raise``.
    """
    found = portal().call(results, queries, prompts, labels)
    if len(found) == 1:
        return found[0]
    logs = {name: [each["extra_logs"][name] for each in found] for name in ("judge_ok", "judge_seconds")}
    return {"rewards": [each["rewards"] for each in found], "scores": [each["scores"] for each in found], "extra_logs": logs}
