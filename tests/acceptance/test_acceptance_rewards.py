"""Our client and our reward server, as processes that die, drain and come back: no item is lost, none has another's reward."""

from __future__ import annotations

import asyncio

from acceptance_tools import needs_proc
from reward_ordeal import check, undergo


@needs_proc
def test_thousands_of_items_have_each_their_own_outcome_while_one_server_is_killed_and_the_other_drained() -> None:
    check(asyncio.run(asyncio.wait_for(undergo(4_000, ("openrlhf", "vllm"), 0.0, seed=1), 110)), memory=30_000_000)
