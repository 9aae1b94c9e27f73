"""``python -m qreward.integrations.openrlhf`` prints the options for OpenRLHF.

With the argument ``agent``, it prints only the path of ``agent.py``. With the argument ``reward_func``, it prints only the path of
``reward_func.py``.
"""

from __future__ import annotations

import sys

from qreward.integrations.openrlhf import agent_path, reward_func_path

PATHS = {"agent": agent_path, "reward_func": reward_func_path}


def main(arguments: list[str]) -> int:
    """Print both options with their paths, or only the path that ``arguments`` names. Return the exit code: 0, or 2 for an unknown name."""
    if not arguments:
        sys.stdout.write(f"--train.agent_func_path {agent_path()}\n--reward.remote_url {reward_func_path()}\n")
        return 0
    if len(arguments) > 1 or arguments[0] not in PATHS:
        sys.stderr.write("usage: python -m qreward.integrations.openrlhf [agent | reward_func]\n")
        return 2
    sys.stdout.write(f"{PATHS[arguments[0]]()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
