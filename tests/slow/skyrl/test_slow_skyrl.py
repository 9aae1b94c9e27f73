"""SkyRL's real generator with our environment in its threads, over a fleet of which a tenth goes wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import skyrl_gym
from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from slow_tools import byte_tokenizer, peaks, went_wrong
from trainers_tools import NOISE, settings_of

from qreward.errors import QRewardError
from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet, Faults, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]  # the framework's own warnings are not ours
EXAMPLE = Path(__file__).parents[3] / "examples" / "trainers" / "skyrl_env.py"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = byte_tokenizer()
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    skyrl_gym.register(id="qreward", entry_point="qreward.integrations.skyrl:QRewardEnv")


class Engine:
    """Answers ``a + b?`` rightly, or for an odd ``a`` wrongly, as an inference engine of SkyRL does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return None  # it has no version of weights

    async def finish_session(self, session: Any) -> None:
        """No session is kept."""

    async def generate(self, given: Any, model: Any = None) -> dict[str, Any]:
        await asyncio.sleep(0)
        first, _, second = self._tokenizer.decode(given["prompt_token_ids"][0]).split("user\n")[1].split("?")[0].partition(" + ")
        text = str(int(first) + int(second) + int(first) % 2)
        return {"responses": [text], "response_ids": [self._tokenizer(text)["input_ids"]], "stop_reasons": ["stop"]}


def generated(tokenizer: Any, count: int, workers: int = 32) -> Any:
    generator = SkyRLGymGenerator(
        GeneratorConfig(max_input_length=512), SkyRLGymConfig(max_env_workers=workers), Engine(tokenizer), tokenizer
    )
    batch = {
        "prompts": [[{"role": "user", "content": f"{at} + {at}?"}] for at in range(count)],
        "env_classes": ["qreward"] * count,
        "env_extras": [{"reward_spec": {"method": "judge", "ground_truth": str(2 * at)}} for at in range(count)],
    }
    return asyncio.run(generator.generate(batch, disable_tqdm=True))


def test_the_generator_gets_right_rewards_and_metrics_from_its_threads(fleet: FakeFleet, settings: Path, tokenizer: Any) -> None:
    begun = time.monotonic()
    found = generated(tokenizer, 64)
    print(f"64 in {time.monotonic() - begun:.1f} s, in flight {peaks(fleet)}, {went_wrong(fleet)} went wrong")
    assert [sum(rewards) for rewards in found["rewards"]] == [float(at % 2 == 0) for at in range(64)]
    assert found["rollout_metrics"]["environment/judge_ok"] == 1.0
    assert went_wrong(fleet) > 0
    assert sum(peaks(fleet)) <= 40  # 32 threads, and hedges
    assert generated(tokenizer, 4, workers=0)["rewards"]  # without threads, one after the other


def test_a_failure_ends_the_generation_and_is_no_reward(fleet: FakeFleet, settings: Path, tokenizer: Any, tmp_path: Path) -> None:
    for name in fleet.names:
        fleet.set(name, faults=Faults(error_500=1.0), latency=Latency())
    settings_of(fleet, tmp_path, deadline=1.0)
    with pytest.raises(QRewardError):
        generated(tokenizer, 4)
    close_all()
    settings_of(fleet, tmp_path, deadline=1.0, on_failure=-1.0)
    assert [sum(rewards) for rewards in generated(tokenizer, 4)["rewards"]] == [-1.0] * 4


def test_the_example_runs_and_ends_quietly() -> None:
    done = subprocess.run([sys.executable, "-X", "dev", str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stdout) == (0, "[1.0, 0.0, 1.0]\nno judge answers: no reward\n"), done.stderr
    assert not NOISE.search(done.stderr), done.stderr
