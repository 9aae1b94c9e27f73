"""A directory for notes, Ray Serve, and the two decorators that the same tests ask."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import qreward


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


@pytest.fixture(params=["ray", "qreward"])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ray's decorator, then ours, in a process that is a replica without a cluster."""
    from ray import serve

    config = SimpleNamespace(max_ongoing_requests=10_000)
    replica = SimpleNamespace(_deployment_config=config, deployment="d", replica_tag="r", app_name="a")
    monkeypatch.setattr(serve.context, "_INTERNAL_REPLICA_CONTEXT", replica)
    return serve.batch if request.param == "ray" else qreward.batch
