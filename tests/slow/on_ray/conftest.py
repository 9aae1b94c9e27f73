"""A small Ray on this machine, for all tests here: two CPUs in name, no dashboard; and it is always shut down."""

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
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray warns of is not ours
        import ray

        here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}  # for workers to import the scorers
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        ray.init(num_cpus=2, object_store_memory=STORE, runtime_env=here, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


@pytest.fixture
def killings(tmp_path: Path) -> Path:
    """A directory in which scorers note what they did, whatever becomes of them."""
    return tmp_path


@pytest.fixture(scope="session")
def serving(cluster: Any) -> Iterator[Any]:
    """The module ``ray.serve``, with its proxy at a free port of this machine; its ``url`` says where."""
    from socket import socket

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray import serve

    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.url = f"http://127.0.0.1:{port}"
    try:
        yield serve
    finally:
        serve.shutdown()
