"""For tests of reward code: fake judges that are real HTTP servers on loopback, and an event loop on virtual time.

Never imported by the library itself.
"""

from __future__ import annotations

from qreward.testing.fleet import FakeFleet
from qreward.testing.seen import Seen
from qreward.testing.spec import FakeEndpoint, Faults, Latency, Phase
from qreward.testing.text import echo_of
from qreward.testing.virtual_time import Deadlock, VirtualTimeLoop, run_in_virtual_time

__all__ = [
    "Deadlock",
    "FakeEndpoint",
    "FakeFleet",
    "Faults",
    "Latency",
    "Phase",
    "Seen",
    "VirtualTimeLoop",
    "echo_of",
    "run_in_virtual_time",
]
