"""A judge rewards groups of tinker-cookbook: a group of right and wrong answers, and a group that is skipped because no judge answers.

Run it: ``python examples/trainers/tinker_group.py``, after ``pip install tinker-cookbook``. Fixed answers stand in for the model.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.rollouts import do_group_rollout

from qreward import QRewardError
from qreward.integrations.tinker_cookbook import QRewardGroup
from qreward.testing import FakeEndpoint, FakeFleet, Faults


class Bytes:
    """A tokenizer whose tokens are bytes."""

    bos_token, eos_token_id, name_or_path = None, None, "bytes"

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Any, **_: Any) -> str:
        return bytes(tokens).decode()


class Sum(ProblemEnv):
    def get_question(self) -> str:
        return "What is 2 + 2?"

    def get_reference_answer(self) -> str:
        return "4"

    def check_format(self, sample_str: str) -> bool:
        return bool(sample_str)

    def check_answer(self, sample_str: str) -> bool:  # noqa: ARG002 - the judge says what is right
        return False


class JudgedGroup(QRewardGroup, ProblemGroupBuilder):
    """A group whose rewards are the judge's."""


class Policy(TokenCompleter):
    def __init__(self) -> None:
        self.answers = iter("4545")

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:  # noqa: ARG002
        text = f" {next(self.answers)}\n\nUser:"
        return TokensWithLogprobs(tokens=list(text.encode()), maybe_logprobs=[0.0] * len(text), stop_reason="stop")


async def main() -> None:
    group = JudgedGroup(env_thunk=partial(Sum, get_renderer("role_colon", Bytes()), format_coef=0.0), num_envs=4)
    async with FakeFleet([FakeEndpoint("gpu-0", responder="judge")]) as fleet:
        client = {"endpoints": [{"base_url": url} for url in fleet.urls.values()]}
        JudgedGroup.settings = {"client": client, "judge": {"model": "judge-7b", "scale": [0, 1]}, "deadline": 2}
        print((await do_group_rollout(group, Policy())).get_total_rewards())
        fleet.set("gpu-0", faults=Faults(error_500=1.0))
        try:
            print((await do_group_rollout(group, Policy())).get_total_rewards())
        except QRewardError:
            print("no judge answers: no reward")


if __name__ == "__main__":
    asyncio.run(main())
