"""vLLM in an environment of its own, and two replicas of a small generative model."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import _vllm
import pytest
from _vllm import Replica, two_replicas


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers write; skips the tests if vLLM cannot be had."""
    try:
        _vllm.python()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(_vllm.REQUIREMENTS)} could not be installed: pip ended with {error.returncode}")
    _vllm.models()
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def pair(folder: Path) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas, which take 16 requests at once each."""
    with two_replicas("judge", folder) as replicas:
        yield replicas


EXACT = ("--dtype", "float32")
"""Numbers as those of a forward pass in float32. In bfloat16, one of twelve rewards was 4 % of their spread off."""


@pytest.fixture(scope="session")
def reward(folder: Path) -> Iterator[Replica]:
    """A reward model: a classifier with one label."""
    with Replica("reward", 0, folder, *EXACT) as replica:
        yield replica


@pytest.fixture(scope="session")
def classes(folder: Path) -> Iterator[Replica]:
    """A classifier with three labels."""
    with Replica("classes", 1, folder, *EXACT) as replica:
        yield replica


@pytest.fixture(scope="session")
def embedder(folder: Path) -> Iterator[Replica]:
    """An embedding model."""
    with Replica("embedder", 0, folder, "--runner", "pooling", "--convert", "embed", *EXACT) as replica:
        yield replica
