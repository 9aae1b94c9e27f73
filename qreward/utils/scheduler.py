"""The old path of what belongs to ``schedule`` in QReward 0.1.7; see :mod:`qreward.compat`."""

from typing import Any

from qreward.compat.names import old_name


def __getattr__(name: str) -> Any:
    return old_name(__name__, name)
