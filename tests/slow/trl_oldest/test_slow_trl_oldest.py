"""The oldest TRL whose groups leave out a completion without a reward, and which still gathers metrics name by name, rank by rank."""

from __future__ import annotations

import re
from importlib.metadata import version

from test_slow_trl import *  # noqa: F403

from qreward.integrations.trl import OLDEST


def test_this_is_the_oldest_trl() -> None:
    assert tuple(map(int, re.findall(r"\d+", version("trl"))[:2])) == OLDEST
