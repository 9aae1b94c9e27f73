"""The oldest verl that has ``reward.custom_reward_function`` and reward managers that are given the function."""

from __future__ import annotations

from importlib.metadata import version

from test_slow_verl import *  # noqa: F403


def test_this_is_the_oldest_verl() -> None:
    assert version("verl") == "0.7.1"
