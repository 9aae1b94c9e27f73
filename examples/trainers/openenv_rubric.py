"""A judge is the rubric of an OpenEnv environment: a right and a wrong answer, and a step that fails because no judge answers.

Run it: ``python examples/trainers/openenv_rubric.py``, after ``pip install openenv``.
"""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from qreward import QRewardError
from qreward.integrations.openenv import QRewardRubric
from qreward.testing import FakeEndpoint, FakeFleet, Faults


class Answer(Action):
    message: str


class Question(Observation):
    question: str = "What is 2 + 2?"
    answer: str = "4"


class Sums(Environment):
    """Asks one question."""

    state = State()

    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Question:  # noqa: ARG002
        return Question()

    def step(self, action: Answer, timeout_s: Any = None, **kwargs: Any) -> Question:  # noqa: ARG002
        seen = Question(done=True)
        seen.reward = self._apply_rubric(action, seen)
        return seen


def main() -> None:
    with FakeFleet([FakeEndpoint("gpu-0", responder="judge")]) as fleet:
        client = {"endpoints": [{"base_url": url} for url in fleet.urls.values()]}
        env = Sums(rubric=QRewardRubric({"client": client, "judge": {"model": "judge-7b", "scale": [0, 1]}, "deadline": 2}))
        for answer in ("4", "5"):
            print(f"{answer}: {env.step(Answer(message=answer)).reward}")
        fleet.set("gpu-0", faults=Faults(error_500=1.0))
        try:
            print(env.step(Answer(message="4")).reward)
        except QRewardError:
            print("no judge answers: no reward")


if __name__ == "__main__":
    main()
