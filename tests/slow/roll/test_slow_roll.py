"""ROLL's real ``Cluster`` on a real Ray with our worker: many calls at once, failures, two domains, traces, and a clean end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qreward.testing import FakeEndpoint, FakeFleet, Latency

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]  # what Ray, torch and ROLL warn of is not ours
PROMPT = "{answer_form}\nQuestion: {question}\nReference answer: {reference}\nCandidate answer: {response}"
JUDGE = {"scale": [0, 1], "reasks": 2}


def keys(fleet: FakeFleet, **settings: Any) -> dict[str, Any]:
    """What a user writes: ROLL's own keys, and ours in ``reward_manager_config``."""
    return {
        "judge_prompt": PROMPT,
        "judge_model_type": "api",
        "judge_api_url": ",".join(fleet.urls.values()),
        "reward_manager_config": [{"judge": JUDGE}, settings],
    }


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    """Two judges that answer well, after half a second."""
    with FakeFleet([FakeEndpoint(name, responder="judge", latency=Latency(base=0.5)) for name in ("one", "two")]) as running:
        yield running


def test_50_single_calls_on_one_actor_are_all_at_the_fleet_at_once(ray: Any, cluster: Any, rollouts: Any, fleet: FakeFleet) -> None:
    (worker,) = cluster(**keys(fleet)).workers
    outputs = ray.get([worker.compute_rewards.remote(rollouts((at, at - at % 2))) for at in range(50)])
    assert [output.batch["scores"].tolist() for output in outputs] == [[1.0 - at % 2] for at in range(50)]
    assert sum(fleet.seen(name).peak_in_flight for name in fleet.names) >= 50
    assert "qreward-decoding_0" in ray.get(worker.about.remote())["threads"]


def test_with_a_tenth_of_calls_failing_every_reward_is_right(ray: Any, cluster: Any, rollouts: Any, troubled: FakeFleet) -> None:
    (worker,) = cluster(**keys(troubled, deadline=60)).workers
    outputs = ray.get([worker.compute_rewards.remote(rollouts((at, at - at % 2))) for at in range(300)])
    assert [output.batch["scores"].item() for output in outputs] == [1.0 - at % 2 for at in range(300)]
    seen = {name: troubled.seen(name) for name in troubled.names}
    assert seen["breaks"].errors["error_500"] > 0
    assert seen["hangs"].errors["hang"] > 0
    assert seen["limits"].rejected > 0


def test_two_domains_go_through_rolls_reward_scheduler_as_one_batch(cluster: Any, rollouts: Any, fleet: FakeFleet) -> None:
    from roll.distributed.scheduler.protocol import DataProto
    from roll.distributed.scheduler.reward_scheduler import RewardScheduler

    clusters = {"a": cluster("reward-a", **keys(fleet)), "b": cluster("reward-b", world_size=2, **keys(fleet))}
    mixed = DataProto.concat([rollouts((at, at // 2 * 2), domain="ab"[at % 2]) for at in range(8)])
    output = asyncio.run(RewardScheduler().compute_rewards(mixed, clusters, None))
    assert output.batch["scores"].tolist() == [1.0, 0.0] * 4
    assert len(output.meta_info["metrics"]["judge/ok"]) == 8


def test_the_spans_of_judge_calls_are_children_of_the_span_that_roll_sent(ray: Any, cluster: Any, rollouts: Any, fleet: FakeFleet) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from roll.utils.telemetry import inject_trace_context

    (worker,) = cluster(**keys(fleet)).workers
    tracer = TracerProvider().get_tracer("pipeline")
    parents, calls = [], []
    for at in range(4):
        data = rollouts((at, at))
        with tracer.start_as_current_span("rollout.compute_rewards") as span:
            inject_trace_context(data.meta_info)
            parents.append((span.get_span_context().trace_id, span.get_span_context().span_id))
        calls.append(worker.compute_rewards.remote(data))
    calls.append(worker.compute_rewards.remote(rollouts((9, 9))))
    ray.get(calls)
    chats = [(trace, parent) for name, kind, trace, parent in ray.get(worker.spans.remote()) if kind == "CLIENT"]
    assert sorted(chat for chat in chats if chat[1]) == sorted(parents)
    assert len([chat for chat in chats if not chat[1]]) == 1  # the one that ROLL sent no context with


@pytest.mark.parametrize("signalled", [True, False])
def test_an_actor_that_is_told_to_end_ends_without_a_word_of_open_sessions(
    ray: Any, cluster: Any, rollouts: Any, fleet: FakeFleet, signalled: bool
) -> None:
    (worker,) = cluster(**keys(fleet)).workers
    ray.get([worker.compute_rewards.remote(rollouts((at, at))) for at in range(8)])
    pid = ray.get(worker.about.remote())["pid"]
    if signalled:
        os.kill(pid, signal.SIGTERM)
    else:
        worker.__ray_terminate__.remote()
    until(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())
    from ray._private.worker import _global_node

    logs = [path.read_text(errors="replace") for path in Path(_global_node.get_logs_dir_path()).glob(f"worker-*-{pid}.*")]
    assert logs
    assert not [line for text in logs for line in text.splitlines() if "Unclosed" in line or "Traceback" in line]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
