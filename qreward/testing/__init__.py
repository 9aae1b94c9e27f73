"""For tests of reward code: fake judges that are real HTTP servers on loopback.

Never imported by the library itself.
"""

from __future__ import annotations

from qreward.testing.fleet import FakeFleet
from qreward.testing.seen import Seen
from qreward.testing.spec import FakeEndpoint, Faults, Latency, Phase
from qreward.testing.text import echo_of

__all__ = ["FakeEndpoint", "FakeFleet", "Faults", "Latency", "Phase", "Seen", "echo_of"]
