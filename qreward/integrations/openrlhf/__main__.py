"""``python -m qreward.integrations.openrlhf [agent | reward_func]`` prints both options for OpenRLHF, or only one path."""

from __future__ import annotations

import sys

from qreward.integrations.openrlhf import agent_path, reward_func_path

PATHS = {"agent": agent_path(), "reward_func": reward_func_path()}


def main(arguments: list[str]) -> int:
    """Return the exit code: 0, or 2 for an unknown name."""
    if len(arguments) > 1 or not PATHS.keys() >= {*arguments}:
        sys.stderr.write("usage: python -m qreward.integrations.openrlhf [agent | reward_func]\n")
        return 2
    options = f"--train.agent_func_path {PATHS['agent']}\n--reward.remote_url {PATHS['reward_func']}"
    sys.stdout.write(f"{PATHS[arguments[0]] if arguments else options}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
