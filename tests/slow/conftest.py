"""What the suites share: the helpers of the fast tests, a fleet of which a tenth goes wrong, and a small Ray."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

SLOW = Path(__file__).parent
SHARED = ("openai_sdk", "trl", "verl")  # folders whose tests are run with several versions of a framework
sys.path[:0] = [str(SLOW), str(SLOW.parent / "integrations"), *(str(SLOW / name) for name in SHARED)]
sys.path += [str(SLOW.parent / "acceptance"), str(SLOW.parent / "codecs"), str(SLOW.parents[1] / "benchmarks")]
PARTS = [f"test_openai_{part}" for part in ("errors", "facade", "load", "shapes", "transport")]
pytest.register_assert_rewrite("suite", "langchain_cases", "openai_tools", *PARTS, "test_slow_trl", "test_slow_verl")


@pytest.fixture
def troubled() -> Iterator[FakeFleet]:
    """Three judges: one breaks, one hangs, one limits; together a tenth of what is sent goes wrong."""
    endpoints = [
        FakeEndpoint("breaks", responder="judge", latency=Latency(base=0.02), faults=Faults(error_500=0.1, seed=1)),
        FakeEndpoint("hangs", responder="judge", latency=Latency(base=0.02), faults=Faults(hang=0.1, seed=2)),
        FakeEndpoint("limits", responder="judge", latency=Latency(base=0.02), rpm=6000, burst=5),
    ]
    with FakeFleet(endpoints) as running:
        yield running


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    """Two judges, of which one takes few requests at once; together a tenth of what they take fails or hangs."""
    from slow_tools import narrow_and_wide

    with narrow_and_wide(1.0) as made:  # longer than it takes to send all, so that those that may be in flight at once are
        yield made


@pytest.fixture
def settings(fleet: FakeFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings file of a trainer that uses these judges."""
    from trainers_tools import settings_of

    file = settings_of(fleet, tmp_path)
    monkeypatch.setenv("QREWARD_REWARD", str(file))
    yield file
    close_all()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The module ``ray``, connected to a small Ray on this machine, whose workers import what the suites run."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray warns of is not ours
        import ray

        folders = os.pathsep.join(str(SLOW / suite) for suite in ("on_ray", "sharing"))
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        store = 100 * 2**20  # bytes; the least that Ray takes is 75 MiB
        ray.init(num_cpus=4, object_store_memory=store, runtime_env={"env_vars": {"PYTHONPATH": folders}}, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()
