"""Runs one batch of the makespan benchmark, with a fleet in one process and a client in another, and builds its record."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from _processes import HERE, ClientFailed, clean_environment, pin
from makespan_clients import Client
from makespan_fleets import Conversation, Plan

from qreward.testing import FakeEndpoint, FakeFleet, Seen, echo_of

START_TIMEOUT = 60.0  # seconds that a client may take until its first call is done
GRACE = 20.0  # seconds beyond the cap after which an unresponsive client is killed
WARM_UP = "warm-up"


Front = Callable[[Sequence[str]], AbstractContextManager[Sequence[str]]]


class ClientProcess:
    """A script of ``clients`` as a child process that replies to each input line with a line of JSON."""

    def __init__(self, python: Path, script: str, core: int | None) -> None:
        self._script = script
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the process
        command = [str(python), str(HERE / "clients" / script), *pin(core)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=clean_environment()
        )

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def ask(self, line: str, patience: float) -> Any:
        """Send a line and return the reply. Raises ``ClientFailed`` if the process ends, or does not reply within ``patience`` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(patience, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        finally:
            timer.cancel()
        if not reply:
            raise ClientFailed(f"{self._script}: {self._last_words()}")
        return json.loads(reply)

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        said = self._log.read().strip().splitlines()[-1:] or ["nothing said"]
        return f"status {status}: {said[0]}"


def run_bulk(client: Client, plan: Plan, cap: float, cores: tuple[int | None, int | None], front: Front = nullcontext) -> dict[str, Any]:
    """Run the batch with a client and return the record. The client is stopped after ``cap`` times the lower bound.

    ``front`` starts what stands between the client and the endpoints, and yields the URLs that the client gets.
    ``load_before`` in the record is the load average of the machine. Above about 2, other processes were using the cores.

    Raises:
        ClientFailed: the client ended with an error, or stopped replying.
    """
    client_core, server_core = cores
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with _on_core(server_core), FakeFleet([*plan.endpoints, FakeEndpoint(WARM_UP)], process=True) as servers:
        urls = dict(servers.urls)
        warm_up = urls.pop(WARM_UP)
        with front(list(urls.values())) as reached, ClientProcess(client.python(), client.script, client_core) as process:
            job = {"warm_up": warm_up, "urls": list(reached), "settings": client.settings, "cap": cap * plan.bound}
            process.ask(json.dumps(job | {"conversations": plan.work}), START_TIMEOUT)
            servers.reset()
            said = process.ask("go", cap * plan.bound + GRACE)
            seen = [servers.seen(name) for name in urls]
    times = {"bound_s": plan.bound, "informed_s": plan.informed, "ratio": said["wall_s"] / plan.bound, "load_before": busy}
    return judged(said, plan.work) | counted(seen) | times


def judged(said: dict[str, Any], work: Sequence[Conversation]) -> dict[str, Any]:
    """Return the client's part of the record: its texts are compared with the echo of each conversation."""
    texts = said.pop("texts")
    right = sum(text == echo_of(messages) for text, messages in zip(texts, work, strict=True))
    wrong = len(texts) - texts.count(None) - right
    lost = sum(said["errors"].values())
    return {"requests": len(work), "right": right, "wrong": wrong, "lost": lost, "open": len(work) - right - wrong - lost, **said}


def counted(seen: Sequence[Seen]) -> dict[str, Any]:
    """Return the servers' part of the record. ``worked`` counts the requests that were not rejected, ``open_upstream`` those in flight."""
    rejected = sum(each.rejected for each in seen)
    return {
        "sent": sum(each.requests for each in seen),
        "rejected": rejected,
        "worked": sum(each.requests for each in seen) - rejected,
        "answered": sum(each.answered for each in seen),
        "open_upstream": sum(each.in_flight for each in seen),
        "endpoints": [msgspec.to_builtins(each) for each in seen],
    }


@contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """Pin processes that are started inside the block to this core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
