"""Processes of a benchmark: the server on one core and a fresh client on the other, both in a clean environment.

This module does not know what is measured. A client prints one line of JSON, which is passed on.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
SETTINGS = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise litellm downloads its price list on import
UNWANTED = ("_PROXY", "PYTHON", "OPENAI_", "LITELLM_", "QREWARD_", "OTEL_")


class ClientFailed(Exception):
    """A client process failed or timed out. The message ends with the last line of its output."""


def cores() -> tuple[int | None, int | None]:
    """Return the cores of client and server; None for both if processes cannot be pinned."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that affect a client: proxies, Python's settings, keys and settings of the libraries."""
    kept = {key: value for key, value in os.environ.items() if not any(word in key.upper() for word in UNWANTED)}
    return kept | SETTINGS


def pin(core: int | None) -> list[str]:
    return [] if core is None else ["--core", str(core)]


class Server:
    """``server.py`` as a child process.

    Example:
        >>> with Server(core=None) as server:
        ...     len(server.urls(delay_ms=200))
        4
    """

    def __init__(self, core: int | None) -> None:
        self._command = [sys.executable, str(HERE / "server.py"), *pin(core)]

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=clean_environment())
        assert self._process.stdout is not None
        hello = json.loads(self._process.stdout.readline())
        self._ports: list[int] = hello["ports"]
        self.verdict: str = hello["verdict"]
        self.chunks: int = hello["chunks"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.communicate()

    def urls(self, delay_ms: int = 0, *, pause_ms: int | None = None) -> list[str]:
        """Return the base URLs of the endpoints, which respond after ``delay_ms``, or stream with ``pause_ms`` between two chunks."""
        way = f"d{delay_ms}" if pause_ms is None else f"s{pause_ms}"
        return [f"http://127.0.0.1:{port}/{way}/v1" for port in self._ports]

    def stats(self) -> dict[str, int]:
        """Return the number of ``served`` requests and the ``peak`` of open requests since the last call."""
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[0], timeout=10)
        connection.request("GET", "/stats")
        answer: dict[str, int] = json.load(connection.getresponse())
        connection.close()
        return answer


def run_client(python: Path, script: str, arguments: Sequence[str], timeout: float) -> dict[str, Any]:
    """Run ``clients/SCRIPT`` and return the JSON object that it prints, plus the duration of the process as ``seconds``.

    Raises:
        ClientFailed: the process ended with an error, or ran longer than ``timeout`` seconds.
    """
    command = [str(python), str(HERE / "clients" / script), *arguments]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout, env=clean_environment())
    except subprocess.TimeoutExpired:
        raise ClientFailed(f"{script}: more than {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()[-1:] or ["nothing said"]
        raise ClientFailed(f"{script}: status {error.returncode}: {said[0]}") from None
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured | {"seconds": time.perf_counter() - begin}
