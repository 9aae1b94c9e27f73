"""The clients of the overhead benchmark, their pinned environments, and their numbers of calls."""

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
    "litellm": ("litellm==1.110.2", "openai==2.54.0", "aiohttp==3.14.5"),
    "qreward-0.1.7": ("qreward==0.1.7", "openai==3.52.0", "httpx-aiohttp==0.2.0", "aiohttp==3.14.5"),
}
CPU_BUDGET = 0.8  # seconds of CPU time of one measured window, unless FEWEST_WAVES requires more
WALL_BUDGET = 2.5  # seconds of one measured window if the server delays its responses
FEWEST_WAVES = 2  # minimum number of calls divided by the calls in flight: a first wave of calls, and one more
BARE = "bare"
YARDSTICK = "openai-aiohttp"


@dataclass(frozen=True)
class Client:
    """One row of the table.

    Attributes:
        name: its name for ``--only`` and in the table.
        script: its file in ``clients``.
        environment: key of ``ENVIRONMENTS``, or None for the interpreter that runs the benchmark.
        cost: rough CPU time of a call in microseconds. Determines only the number of calls.
        share: share of the rounds in which it is measured; less than 1 for slow clients, to keep the run short.
    """

    name: str
    script: str
    environment: str | None = None
    cost: float = 120.0
    share: float = 1.0

    def python(self) -> Path:
        """Return the interpreter of its environment. Create the environment if needed."""
        return Path(sys.executable) if self.environment is None else python_of(self.environment, ENVIRONMENTS[self.environment])

    def takes_part(self, number: int) -> bool:
        """Return whether it is measured in round ``number`` (from 0). Round 0 measures all clients."""
        return ceil((number + 1) * self.share) > ceil(number * self.share)

    def requests(self, in_flight: int, delay_ms: int) -> int:
        """Return the number of calls in the measured window."""
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
    """Return the arguments of every client script (see ``clients/_harness.py``). The warm-up makes one call for each call in flight."""
    return [
        *("--urls", ",".join(urls), "--verdict", verdict),
        *("--pieces", str(pieces), "--concurrency", str(in_flight), "--warm-up", str(in_flight), "--requests", str(requests)),
        *pin(core),
        *(["--gc"] if gc else []),
    ]
