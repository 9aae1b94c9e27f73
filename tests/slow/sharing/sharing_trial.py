"""What all trials of sharing have in common: a fleet that keeps the limits itself, and what its log says of a time."""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import arrivals

from qreward.testing import FakeEndpoint, FakeFleet, Latency

PROCESSES = 8
RPM, TPM, SLOTS = 600, 60_000, 20
TOKENS, SECONDS = 30, 2.0
"""Of an answer: its output tokens, and how long one of the endpoint with slots takes."""
LIMITS: dict[str, dict[str, Any]] = {"r": {"rpm": RPM}, "t": {"tpm": TPM}, "c": {"max_concurrency": SLOTS}}


class Span(NamedTuple):
    """What arrived in a time. ``fairness`` is each process' part by the mean, the least and the most."""

    a_minute: float
    fairness: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.a_minute:.1f} a minute, processes {self.fairness[0]:.3f} to {self.fairness[1]:.3f} of the mean"


class Trial:
    """One fleet with one endpoint a limit, and where everything is noted."""

    def __init__(self, fleet: FakeFleet, folder: Path, shared: str) -> None:
        self.fleet, self.folder, self.shared = fleet, folder, shared
        (folder / "notes").mkdir()
        self.spec = folder / "spec.json"
        found = [
            {"base_url": url, "name": name, "models": [name], "api_key": "k", "proxy": "", "limits": {**LIMITS[name], "shared": shared}}
            for name, url in fleet.urls.items()
        ]
        self.spec.write_text(json.dumps({"endpoints": found, "notes": str(folder / "notes")}))

    def arrivals(self, model: str) -> list[arrivals.Arrival]:
        return [arrival for arrival in arrivals.read(self.folder / "arrivals") if arrival.model == model]

    def span(self, model: str, begin: float, end: float, processes: set[int]) -> Span:
        found = Counter(arrival.process for arrival in self.arrivals(model) if begin <= arrival.at < end)
        counts = [found[process] for process in processes]
        mean = sum(counts) / len(counts)
        return Span(sum(found.values()) * 60 / (end - begin), (min(counts) / mean, max(counts) / mean))

    def busiest(self, model: str) -> int:
        """Most requests that arrived in any 60 seconds."""
        times = [arrival.at for arrival in self.arrivals(model)]
        return max(bisect_right(times, at + 60.0) - place for place, at in enumerate(times))

    def cost(self) -> float:
        """Tokens of a request, as the fleet counts them; all are the same."""
        seen = self.fleet.seen("t")
        return seen.tokens / seen.answered

    def notes(self, process: int) -> list[dict[str, Any]]:
        path = self.folder / "notes" / f"{process}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_all(self, processes: set[int], seconds: float = 60.0) -> None:
        """Until each process was served by each endpoint."""
        until = time.monotonic() + seconds
        while any({arrival.process for arrival in self.arrivals(model)} < processes for model in LIMITS):
            assert time.monotonic() < until, {model: Counter(arrival.process for arrival in self.arrivals(model)) for model in LIMITS}
            time.sleep(0.5)

    def used(self, model: str, span: Span) -> float:
        """Share of the limit."""
        if model == "c":
            return span.a_minute * SECONDS / 60 / SLOTS
        return span.a_minute / RPM if model == "r" else span.a_minute * self.cost() / TPM

    def check(self, spans: dict[str, dict[str, Span]]) -> None:
        """The promise: never more than the limit in any minute, nearly all of it used, in equal parts."""
        for name, by_model in spans.items():
            for model, span in by_model.items():
                print(f"{self.shared} {model} {name}: {span}, used {self.used(model, span):.3f}")
        seen = {model: self.fleet.seen(model) for model in LIMITS}
        most = {"r": self.busiest("r"), "t": self.busiest("t") * self.cost(), "c": seen["c"].peak_in_flight}
        print(f"{self.shared}: in any minute {most['r']} of {RPM}, {most['t']:.0f} of {TPM} tokens; at once {most['c']} of {SLOTS}")
        assert {model: one.rejected for model, one in seen.items()} == {"r": 0, "t": 0, "c": 0}
        assert most["r"] <= RPM
        assert most["t"] <= TPM
        assert most["c"] <= SLOTS
        for by_model in spans.values():
            for model, span in by_model.items():
                assert self.used(model, span) >= 0.95, (model, span)
                assert 0.9 <= span.fairness[0] <= span.fairness[1] <= 1.1, (model, span)

    def spans(self, begin: float, end: float, processes: set[int]) -> dict[str, Span]:
        return {model: self.span(model, begin, end, processes) for model in LIMITS}


@contextmanager
def trial(folder: Path, shared: str) -> Iterator[Trial]:
    """A fleet in a process of its own, whose endpoints keep the limits and would turn away what is too much."""
    os.environ[arrivals.LOG] = str(folder / "arrivals")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    common: dict[str, Any] = {"responder": "arrivals:note", "api_key": "k"}
    fleet = FakeFleet(
        [
            FakeEndpoint("r", models=["r"], rpm=RPM, latency=Latency(base=0.2, tokens=TOKENS), **common),
            FakeEndpoint("t", models=["t"], tpm=TPM, latency=Latency(base=0.2, tokens=TOKENS), **common),
            FakeEndpoint("c", models=["c"], max_concurrency=SLOTS, latency=Latency(base=SECONDS, tokens=TOKENS), **common),
        ],
        process=True,
    )
    with fleet:
        yield Trial(fleet, folder, shared)
