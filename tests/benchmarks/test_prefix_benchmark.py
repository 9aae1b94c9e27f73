"""The prefix benchmark: every request is served once whoever sends it, its bounds hold, its routers do what they say, and it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_tools import quick
from fakes.model_server import MODELS, ServedModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SMALL = ServedModel(step=0.01, prefill=0.0001, decode=0.0001, cache_tokens=4096, budget=256, sequences=16)
Import = Callable[[str], ModuleType]


def job(workloads: Any, *names: str, tokens: int = 100, output: int = 3, shared: int = 2) -> Any:
    return workloads.PrefixJob(tuple((name, tokens) for name in names), output, shared)


# prompts


def test_prefixes_agree_exactly_as_far_as_the_texts_do(module: Import) -> None:
    workloads = module("prefix_workloads")
    first, second, third = (job(workloads, *names) for names in (("r", "q", "a"), ("r", "q", "b"), ("r", "p", "a")))
    for prefix, shared in ((workloads.told, (2, 1)), (workloads.found, (3, 1))):  # 800 characters are three blocks of 256, 400 are one
        mine = prefix(first)
        for other, expected in zip((second, third), shared, strict=True):
            equal = [ours == theirs for ours, theirs in zip(mine.keys, prefix(other).keys, strict=True)]
            assert equal == [place < expected for place in range(len(equal))], (prefix, other.path)
        assert mine.total == 1200
        assert list(mine.lengths) == sorted(mine.lengths)
    assert workloads.found(first).lengths == (256, 512, 768, 1024)
    assert workloads.told(first).lengths == (400, 800)


def test_workloads_are_the_same_for_a_seed_and_their_orders_have_the_same_jobs(module: Import) -> None:
    workloads = module("prefix_workloads")
    for workload in workloads.WORKLOADS:
        grouped, shuffled, again, other = (
            [each.path for each in workload.jobs(seed, order, 0.02)]
            for seed, order in ((1, "grouped"), (1, "shuffled"), (1, "shuffled"), (2, "grouped"))
        )
        assert sorted(grouped) == sorted(shuffled), workload.name
        assert shuffled == again, workload.name
        assert grouped != other, workload.name
        assert (workloads.ideal(workload.jobs(1, "grouped", 0.02)) < sum(tokens for path in grouped for _, tokens in path)) == (
            workload.name != "nothing"
        ), workload.name


# worlds


SHAPES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=60)


@given(shapes=SHAPES, policy=st.sampled_from(["pull", "told", "found", "calls-told", "chwbl", "sglang", "llm-d"]), dies=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_request_is_served_once_within_the_bounds(module: Import, shapes: list, policy: str, dies: bool) -> None:
    benchmark, workloads, world = module("prefix"), module("prefix_workloads"), module("prefix_world")
    jobs = [
        workloads.PrefixJob((("r", 64), (f"q{rubric}", 90 + rubric), (f"a{question}.{rubric}", 50 + 30 * answer)), output, 3)
        for rubric, question, answer, output in shapes
    ]
    fleet = world.Fleet("test", 3, slow=2.0, dies=dies)
    models, dies_after = fleet.models(SMALL), len(jobs) // 2 if dies else None
    if policy in benchmark.ROUTERS:
        played = world.RoutedWorld(models, benchmark.ROUTERS[policy](jobs, SMALL.cache_tokens))
    else:
        played = world.PulledWorld("1", models, benchmark.OURS[policy])
    ledger = played.play(jobs, dies_after)
    assert ledger.ended == len(jobs)
    assert not ledger.failed
    record = benchmark.measured(played, ledger)
    assert record["prefill"] >= workloads.ideal(jobs)
    assert record["makespan"] >= world.bound(jobs, models) * (1 - 1e-9)
    if not dies:
        assert record["prefill"] + record["cached"] == sum(each.prompt for each in jobs)
    if policy in benchmark.OURS:
        assert sorted(played.sent) == list(range(len(jobs)))
    assert played.replicas[0].dead <= bool(dies_after), "all may have been sent before one was to die"
    assert not any(replica.held for replica in played.replicas)


def test_the_bound_is_reached_by_one_replica_that_has_room_for_all(module: Import) -> None:
    workloads, world = module("prefix_workloads"), module("prefix_world")
    jobs = [job(workloads, "r", f"a{number}", tokens=1024, output=1) for number in range(100)]
    played = world.PulledWorld("1", [MODELS["8B"]], world.Pull())
    assert played.play(jobs, None).last == pytest.approx(world.bound(jobs, [MODELS["8B"]]), rel=0.02)


# the report and the command


def test_the_report_lists_the_missed_targets(module: Import) -> None:
    report = module("prefix_report")
    usual = {"workload": "grpo", "model": "8B", "order": "shuffled", "fleet": "8", "ideal": 100, "bound": 5.0, "seed": 1}

    def missed(**policies: tuple[float, int, int]) -> list[list[str]]:
        records = [
            usual
            | {"policy": policy.replace("_", "-"), "makespan": span, "prefill": prefill, "predicted": float(predicted), "reported": 100}
            for policy, (span, prefill, predicted) in {"pull": (10.0, 300, 0), **policies}.items()
        ]
        rows = report.misses({"records": records})
        assert all(row[:2] == ["grpo 8B shuffled", "8"] for row in rows)
        return [row[2:] for row in rows]

    assert missed(told_all=(5.0, 110, 109), found_all=(5.1, 115, 91), llm_d=(5.2, 100, 0)) == []
    assert missed(told_all=(6.0, 110, 100)) == [["told-all", "makespan gain", "1.67", "1.70"]]
    assert missed(told_all=(5.0, 120, 100)) == [["told-all", "computed tokens (x fewest possible)", "1.20", "1.10"]]
    assert missed(told=(5.0, 120, 80)) == [["told", "error of predicted cached tokens", "20%", "10%"]]
    assert missed(told=(5.0, 120, 100), sglang=(4.0, 100, 0)) == [["told", "makespan gain", "2.000", "2.500 (sglang)"]]


def test_the_quick_benchmarks_run_and_write_their_records(tmp_path: Path) -> None:
    run, printed = quick("prefix.py", tmp_path / "prefix.json")
    assert {record["policy"] for record in run["records"]} >= {"pull", "told", "found", "chwbl", "sglang", "llm-d"}
    for record in run["records"]:
        assert record["prefill"] >= record["ideal"]
        assert record["makespan"] >= record["bound"]
    assert "grpo 8B shuffled" in printed
    run, printed = quick("prefix_cost.py", tmp_path / "cost.json")
    parts = {name: set(measured[0]) for name, measured in run["parts"].items()}
    assert parts.keys() == {"scheduler", "prompt", "batch", "pick"}
    assert parts["scheduler"] >= {"no prefixes", "grpo, named", "grpo, found", "unshared"}
    assert "one endpoint" in parts["batch"]
    assert all(us > 0 for measured in run["parts"].values() for us in measured[0].values())
    assert "more" in printed
