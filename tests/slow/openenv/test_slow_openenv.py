"""OpenEnv's real rubrics and its real server over a fleet of which a tenth goes wrong: steps in threads and awaited steps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.llm_client import LLMClient
from openenv.core.rubrics import Gate, LLMJudge, Rubric, WeightedSum
from slow_tools import peaks, went_wrong
from trainers_tools import settings_of

from qreward.errors import QRewardError
from qreward.integrations.openenv import QRewardRubric
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
EXAMPLE = Path(__file__).parents[3] / "examples" / "trainers" / "openenv_rubric.py"


class Answer(Action):
    message: str


class Question(Observation):
    question: str = ""
    answer: str = ""


class Sums(Environment):  # type: ignore[misc]
    """Asks ``at + at?``; an answer is ``at,sum``."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(rubric=QRewardRubric())

    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Question:
        return Question()

    def step(self, action: Answer, timeout_s: Any = None, **kwargs: Any) -> Question:
        seen, action = self._seen(action)
        seen.reward = self._apply_rubric(action, seen)
        return seen

    def _seen(self, action: Answer) -> tuple[Question, Answer]:
        at, _, said = action.message.partition(",")
        return Question(question=f"{at} + {at}?", answer=str(2 * int(at)), done=True), Answer(message=said)

    @property
    def state(self) -> State:
        return State()


class AwaitedSums(Sums):
    async def step_async(self, action: Answer, timeout_s: Any = None, **kwargs: Any) -> Question:
        seen, action = self._seen(action)
        seen.reward = await self._apply_rubric_async(action, seen)
        return seen


class Answering(LLMClient):  # type: ignore[misc]
    """A model that gives the same answer to every prompt."""

    def __init__(self, answer: str) -> None:
        super().__init__("http://nowhere", None)
        self.answer = answer

    async def complete(self, prompt: str, **kwargs: Any) -> str:
        return self.answer


async def steps(environment: Any, count: int) -> list[Any]:
    """The answers of OpenEnv's own server to that many steps at once; each second one is wrong."""
    transport = httpx.ASGITransport(create_fastapi_app(environment, Answer, Question), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://openenv", timeout=120) as client:
        bodies = [{"action": {"message": f"{at},{2 * at + at % 2}"}} for at in range(count)]
        return list(await asyncio.gather(*(client.post("/step", json=body) for body in bodies)))


@pytest.mark.parametrize("environment", [Sums, AwaitedSums])
def test_the_server_gives_the_right_rewards_of_steps_at_once(environment: Any, fleet: FakeFleet, settings: Path) -> None:
    found = asyncio.run(steps(environment, 64))
    assert [each.json()["reward"] for each in found] == [float(at % 2 == 0) for at in range(64)]
    print(f"{environment.__name__}: in flight {peaks(fleet)}, {went_wrong(fleet)} went wrong")
    assert went_wrong(fleet) > 0
    assert sum(peaks(fleet)) <= 40 if environment is Sums else sum(peaks(fleet)) >= 48  # 32 threads, and hedges


def test_a_step_without_reward_fails_or_has_null_if_that_was_chosen(fleet: FakeFleet, settings: Path, tmp_path: Path) -> None:
    for name in fleet.names:
        fleet.set(name, faults=Faults(error_500=1.0), latency=Latency())
    settings_of(fleet, tmp_path, deadline=1.0)
    for environment in (Sums, AwaitedSums):
        (failed,) = asyncio.run(steps(environment, 1))
        assert failed.status_code == 500
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure="none")
    (failed,) = asyncio.run(steps(Sums, 1))
    assert (failed.status_code, failed.json()["reward"]) == (200, None)


@pytest.mark.parametrize("answer", ["In 2024 I would say 0.2", "cannot answer"])
def test_openenvs_own_judge_makes_a_number_of_what_is_none_and_ours_fails_also_inside_its_containers(answer: str, tmp_path: Path) -> None:
    action, seen = Answer(message="4"), Question(question="2 + 2?", answer="4")

    async def scored(rubric: Rubric) -> float:
        return float(await rubric(action, seen))

    with FakeFleet([FakeEndpoint("judge-0", responder=lambda messages: answer)]) as fleet:
        file = str(settings_of(fleet, tmp_path, deadline=5.0))
        theirs = LLMJudge("{action}", Answering(answer))
        assert asyncio.run(scored(theirs)) == (1.0 if "2024" in answer else 0.0)
        ours = QRewardRubric(file)
        for rubric in (ours, Gate(ours, threshold=0.5), WeightedSum([ours, theirs], [0.5, 0.5])):
            with pytest.raises(QRewardError):
                asyncio.run(scored(rubric))
            assert rubric.last_score is None
    close_all()


def test_the_containers_take_our_rubric_and_know_its_last_score(settings: Path, fleet: FakeFleet) -> None:
    ours = QRewardRubric()
    whole = WeightedSum([ours, Gate(QRewardRubric(), threshold=0.5)], [0.5, 0.5])
    seen = Question(question="2 + 2?", answer="4")

    async def scored(message: str) -> float:
        return float(await whole(Answer(message=message), seen))

    assert [asyncio.run(scored(message)) for message in ("4", "5")] == [1.0, 0.0]
    assert whole(Answer(message="4"), seen) == 1.0  # as in step, where no loop runs
    assert dict(whole.named_rubrics())["rubric_0"].last_score == 1.0


def test_the_example_runs_and_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-X", "dev", str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "4: 1.0\n5: 0.0\nno judge answers: no reward\n"), done.stderr
    assert "Unclosed" not in done.stderr
