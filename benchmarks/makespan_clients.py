"""The clients of the makespan benchmark, with hand-tuned settings for those that do not adapt."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _environments import python_of
from overhead_clients import ENVIRONMENTS

IN_FLIGHT = 32  # concurrent calls per endpoint
TIMEOUT = 10.0  # seconds per attempt: 1.5 times the slowest response of any fleet


@dataclass(frozen=True)
class Client:
    """One row of the tables.

    Attributes:
        name: its name for ``--clients`` and in the tables.
        script: its file in ``clients``.
        what: its description on the page.
        environment: key of ``ENVIRONMENTS``, or None for the interpreter that runs the benchmark.
        settings: settings that its script gets besides the URLs.
    """

    name: str
    script: str
    what: str
    environment: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def python(self) -> Path:
        """Return the interpreter of its environment. Create the environment if needed."""
        return Path(sys.executable) if self.environment is None else python_of(self.environment, ENVIRONMENTS[self.environment])


def _litellm(name: str, what: str, **settings: Any) -> Client:
    usual = {"in_flight": IN_FLIGHT, "timeout": TIMEOUT, "num_retries": 20}
    return Client(name, "bulk_litellm.py", what, "litellm", usual | settings)


def _old(name: str, what: str, **schedule: Any) -> Client:
    settings = {"in_flight": IN_FLIGHT, "timeout": TIMEOUT, "schedule": schedule}
    return Client(name, "bulk_qreward_0_1.py", what, "qreward-0.1.7", settings)


_OPENAI = {"in_flight": IN_FLIGHT, "timeout": TIMEOUT, "max_retries": 10}
_KEPT_IN = {"disable_cooldowns": True}

OURS = Client("qreward", "bulk_qreward.py", "`batch_chat_completion` with its defaults")
CLIENTS = (
    OURS,
    _old("qreward-0.1.7", "its manager with round robin, under its `schedule`", retry_times=10, hedged_request_time=5.0),
    _litellm("litellm", "`Router`, strategy `simple-shuffle`", **_KEPT_IN),
    Client(
        "openai", "bulk_openai_turns.py", "an `AsyncOpenAI` (aiohttp) and a semaphore for each endpoint, round robin", "openai", _OPENAI
    ),
    Client("openai-pull", "bulk_openai_pull.py", "the same, the endpoints' workers pull from one queue", "openai", _OPENAI),
)
CANDIDATES = (
    _litellm("litellm-cooldowns", "`simple-shuffle` with its cooldowns of 5 s"),
    _litellm("litellm-least-busy", "strategy `least-busy`", routing_strategy="least-busy", **_KEPT_IN),
    _litellm("litellm-latency", "strategy `latency-based-routing`", routing_strategy="latency-based-routing", **_KEPT_IN),
    _litellm("litellm-usage", "strategy `usage-based-routing-v2`", routing_strategy="usage-based-routing-v2", **_KEPT_IN),
    _old("qreward-0.1.7-alone", "without the retries and hedges of `schedule`", retry_times=0),
    _old("qreward-0.1.7-unhedged", "without the hedges of `schedule`", retry_times=3),
)
"""Other settings of the compared clients. They are measured only on request, because the settings in ``CLIENTS`` lost fewer requests or
were faster."""
BARE = Client("bare", "bulk_bare.py", "aiohttp, the endpoints' workers pull from one queue, no retry", settings={"in_flight": 3})
