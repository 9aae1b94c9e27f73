"""A hundred thousand items through two reward servers, of which one is killed and one drained on the way."""

from __future__ import annotations

import asyncio

import pytest
from acceptance_tools import needs_proc
from reward_ordeal import check, undergo

pytestmark = [needs_proc, pytest.mark.timeout(900)]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kinds", [("openrlhf", "openrlhf"), ("vllm", "vllm"), ("vllm", "openrlhf")], ids="-".join)
def test_a_hundred_thousand_items_have_each_their_own_outcome(kinds: tuple[str, str], seed: int) -> None:
    check(asyncio.run(asyncio.wait_for(undergo(100_000, kinds, 0.0, seed), 800)), memory=30_000_000)
