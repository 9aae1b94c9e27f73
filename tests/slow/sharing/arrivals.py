"""What the fake endpoints note of each request that they let in: when it came, to whom, and from which process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

LOG = "ARRIVALS_LOG"


class Arrival(NamedTuple):
    """Seconds of this machine's monotonic clock, the endpoint's model, the number of the process."""

    at: float
    model: str
    process: int


def note(messages: list[Any]) -> str:
    """A responder. The message is ``<model> <process> ...``."""
    model, process, *_ = messages[-1]["content"].split()
    file = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{time.monotonic():.4f} {model} {process}\n".encode())
    os.close(file)
    return "yes"


def read(path: Path) -> list[Arrival]:
    """All that was noted so far, oldest first."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(Arrival(float(at), model, int(process)) for at, model, process in map(str.split, lines))
