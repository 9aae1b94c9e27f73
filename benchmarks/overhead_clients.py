"""Who is measured by the overhead benchmark: the clients, the pinned environments of the peers, and how many calls each gets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from _environments import python_of
from _processes import pin

ENVIRONMENTS = {
    "openai": ("openai[aiohttp]==3.52.0", "httpx2==2.16.2", "aiohttp==3.14.5"),
    "litellm": ("litellm==1.106.2", "openai==2.54.0", "aiohttp==3.14.5"),
    "qreward-0.1.7": ("qreward==0.1.7", "openai==3.52.0", "httpx-aiohttp==0.2.0", "aiohttp==3.14.5"),
}
CPU_BUDGET = 0.8  # seconds of CPU time that one measured window may take, as far as the floor below allows
WALL_BUDGET = 2.5  # seconds that it may last where the server's delay sets the pace
FEWEST_WAVES = 2  # calls per place in flight, at least: one wave to start, one to follow
BARE = "bare"
YARDSTICK = "openai-aiohttp"


@dataclass(frozen=True)
class Client:
    """One row of the table.

    Attributes:
        name: as ``--only`` and the table call it.
        script: its file in ``clients``.
        environment: key of ``ENVIRONMENTS``, or None for the interpreter that runs the benchmark.
        cost: rough CPU time of a call in microseconds; only sets the number of calls.
        share: part of the rounds it takes part in; slow peers sit some out so that a run stays short.
    """

    name: str
    script: str
    environment: str | None = None
    cost: float = 120.0
    share: float = 1.0

    def python(self) -> Path:
        """Its interpreter, made if need be."""
        return Path(sys.executable) if self.environment is None else python_of(self.environment, ENVIRONMENTS[self.environment])

    def takes_part(self, number: int) -> bool:
        """Whether it is measured in round ``number`` (from 0). Every client is in the first."""
        return ceil((number + 1) * self.share) > ceil(number * self.share)

    def requests(self, in_flight: int, delay_ms: int) -> int:
        """Calls in its measured window."""
        most = CPU_BUDGET * 1e6 / self.cost
        if delay_ms:
            most = min(most, WALL_BUDGET * in_flight * 1000 / delay_ms)
        return max(int(most), FEWEST_WAVES * in_flight)


CLIENTS = (
    Client(BARE, "bare.py"),
    Client("bare-timeout", "bare_timeout.py"),
    Client("qreward-batch", "qreward_batch.py"),
    Client("qreward-calls", "qreward_calls.py"),
    Client("qreward-gather", "qreward_gather.py"),
    Client(YARDSTICK, "openai_aiohttp.py", "openai", cost=1200, share=0.6),
    Client("openai", "openai_httpx2.py", "openai", cost=2400, share=0.4),
    Client("litellm-router", "litellm_router.py", "litellm", cost=5000, share=0.4),
    Client("qreward-0.1.7", "qreward_0_1.py", "qreward-0.1.7", cost=1300, share=0.4),
)
QUICK = ("bare", "qreward-batch", "qreward-calls", "qreward-gather")


def command_line(
    urls: Sequence[str], verdict: str, in_flight: int, requests: int, *, core: int | None, gc: bool, pieces: int = 1
) -> list[str]:
    """The arguments that every client file takes (see ``clients/_harness.py``). The warm-up fills each place in flight once."""
    return [
        *("--urls", ",".join(urls), "--verdict", verdict),
        *("--pieces", str(pieces), "--concurrency", str(in_flight), "--warm-up", str(in_flight), "--requests", str(requests)),
        *pin(core),
        *(["--gc"] if gc else []),
    ]
