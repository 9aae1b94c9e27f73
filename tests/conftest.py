"""What all tests share: a neutral environment and hypothesis without deadlines. Fakes live beside the tests that use them."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from zlib import crc32

import hypothesis
import pytest
from scale import SCALE
from shared_tools import run

from qreward.testing.virtual_time import run_in_virtual_time

TOO_SLOW = [hypothesis.HealthCheck.too_slow]  # a busy machine is no fault of a test
hypothesis.settings.register_profile(
    "qreward", deadline=None, print_blob=True, max_examples=30 * SCALE, derandomize=True, suppress_health_check=TOO_SLOW
)
hypothesis.settings.load_profile("qreward")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
BENCHMARKS = TESTS.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))  # for its package ``fakes``
SOCKETS = ("acceptance", "client", "codecs", "live", "server", "testing", "transport")
"""Folders whose tests use sockets, but for those marked ``virtual_time``."""
SEED = int(os.environ.get("TEST_SEED", "0"))
_OUTSIDE = ("OPENAI_", "QREWARD_", "OTEL_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: a coroutine without sockets or threads, in a folder whose others have them")
    config.addinivalue_line("markers", "real_time(seconds): a coroutine with sockets or threads, which know no virtual time, and its limit")


@pytest.fixture(autouse=True)
def neutral_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No test may depend on the keys, configuration or proxies of whoever runs it."""
    for name in [name for name in os.environ if name.upper().startswith(_OUTSIDE)]:
        monkeypatch.delenv(name)
    if request.path.relative_to(TESTS).parts[0] in ("acceptance", "bulk", "examples"):
        monkeypatch.setenv("QREWARD_LIVE", "0")  # `qreward run` would show itself to the user


@pytest.fixture(autouse=True)
def repeatable_jitter(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Clients draw the same random numbers in each run of a test. ``TEST_SEED`` chooses other ones; a failed test prints it."""
    print(f"TEST_SEED={SEED}")
    seed = SEED + crc32(request.node.nodeid.encode())
    monkeypatch.setattr("qreward.runtime.Random", lambda: Random(seed))
    monkeypatch.setattr("qreward.functions.function.Random", lambda: Random(seed))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a module of the benchmarks, which are scripts and no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test: on virtual time, or on an ordinary loop in the folders of ``SOCKETS`` and where it is marked ``real_time``."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
    marker = pyfuncitem.get_closest_marker("real_time")
    if marker is not None:
        run(test, *marker.args)
    elif pyfuncitem.path.relative_to(TESTS).parts[0] in SOCKETS and pyfuncitem.get_closest_marker("virtual_time") is None:
        run(test)
    else:
        run_in_virtual_time(test)
    return True
