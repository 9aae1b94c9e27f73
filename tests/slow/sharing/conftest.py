"""A small Ray on this machine; and it is always shut down."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STORE = 100 * 2**20
"""Bytes of the object store; the least that Ray takes is 75 MiB."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The module ``ray``, connected."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray warns of is not ours
        import ray

        here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}  # for workers to import what they run
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        ray.init(num_cpus=4, object_store_memory=STORE, runtime_env=here, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()
