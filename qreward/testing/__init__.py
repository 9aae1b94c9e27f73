"""Tools for testing reward code: fake judges that are real HTTP servers on loopback, and virtual time for event loops."""

from __future__ import annotations

from qreward.functions.function import no_waiting
from qreward.testing.bodies import NAN, REFUSED, echo_of
from qreward.testing.endpoint import Seen
from qreward.testing.fleet import FakeFleet
from qreward.testing.responders import SyntheticJudge
from qreward.testing.spec import FakeEndpoint, Faults, Latency, Phase, PrefixCache, Scoring
from qreward.testing.virtual_time import Deadlock, VirtualTimeLoop, run_in_virtual_time

__all__ = [
    "NAN",
    "REFUSED",
    "Deadlock",
    "FakeEndpoint",
    "FakeFleet",
    "Faults",
    "Latency",
    "Phase",
    "PrefixCache",
    "Scoring",
    "Seen",
    "SyntheticJudge",
    "VirtualTimeLoop",
    "echo_of",
    "no_waiting",
    "run_in_virtual_time",
]
