"""The scenarios: S1 to S14, and S15, in which another client takes half of a server every other half minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from qreward.settings.policies import Limits
from simulation import figures
from simulation.doors import Rate
from simulation.fleets import Scenario
from simulation.laws import Alone, Law, Shared
from simulation.specs import Outputs, Spec
from simulation.steps import between, hold, square

MIXED = ((64, 0.01), (64, 0.02), (32, 0.01), (32, 0.04), (16, 0.01), (8, 0.02), (8, 0.08), (4, 0.01))
"""The eight servers of S2: the largest number of requests that each holds at once, and its seconds per token."""
FAULTS = {"resets": 0.01, "hangs": 0.003, "broken": 0.005}
LONG = 36_000.0  # seconds: longer than any batch here
SERVERS = 1000
LARGEST_CAP = 256


def always(*specs: Spec) -> Callable[[float], tuple[Spec, ...]]:
    """Return a fleet without disturbances."""
    return lambda _: specs


def mixed(first: Callable[[Spec, float], Spec] | None = None, **each: object) -> Callable[[float], tuple[Spec, ...]]:
    """Return the fleet of S2. ``first`` changes its first server, given the undisturbed bound; ``each`` is set on all servers."""

    def fleet(bound: float) -> tuple[Spec, ...]:
        specs = [with_(Spec(law=Alone(tpot), cap=hold(cap)), **each) for cap, tpot in MIXED]
        return (specs[0] if first is None else first(specs[0], bound), *specs[1:])

    return fleet


def with_(spec: Spec, **changes: object) -> Spec:
    """Return a copy of the server with these changes."""
    return replace(spec, **changes)  # type: ignore[arg-type]


def dies(spec: Spec, bound: float) -> Spec:
    return with_(spec, dead=(0.2 * bound, 0.6 * bound))


def slows(spec: Spec, bound: float) -> Spec:
    return with_(spec, law=Alone(MIXED[0][1], speeds=between(0.2 * bound, 0.6 * bound, 0.1)))


def fails(spec: Spec, _bound: float) -> Spec:
    return with_(spec, sudden=0.5)


def shared_with_another(spec: Spec, _bound: float) -> Spec:
    return with_(spec, cap=square(64, 32, 30.0, LONG))


def all_away(bound: float) -> tuple[Spec, ...]:
    begin = 0.3 * bound
    return mixed(away=(begin, begin + 60.0))(bound)


def many(_bound: float) -> tuple[Spec, ...]:
    """Return a thousand servers with Pareto distributed caps: one or two for most, hundreds for a few (at most 256)."""
    rng = Random("caps")
    return tuple(Spec(cap=hold(min(LARGEST_CAP, int(rng.paretovariate(1.0))))) for _ in range(SERVERS))


def four(law: Law) -> Callable[[float], tuple[Spec, ...]]:
    return always(*[Spec(law=law)] * 4)


RPM, LARGE_RPM = Rate(600, burst=60, hint="exact"), Rate(6000, burst=600, hint="exact")
TPM = Rate(100_000, burst=16_667, unit="tokens", used=True, hint="exact")
LONG_PROMPTS = Outputs(200.0, 1.2, prompts=((0.8, 50), (0.2, 8000)))
VLLM, THRASHING = Shared(), Shared(thrash=hold(128))

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("S1", "4 x cap 64", 50_000, always(*[Spec(cap=hold(64))] * 4)),
        Scenario("S2", "8 mixed", 20_000, mixed()),
        Scenario("S2-500", "8 mixed, short bulk", 500, mixed()),
        Scenario("S2-5k", "8 mixed, middle bulk", 5000, mixed()),
        Scenario("S2h", "8 mixed, 0.3 % hangs", 20_000, mixed(hangs=0.003)),
        Scenario("S2h-500", "8 mixed, 0.3 % hangs, short", 500, mixed(hangs=0.003)),
        Scenario("S2h-5k", "8 mixed, 0.3 % hangs, middle", 5000, mixed(hangs=0.003)),
        Scenario("S3", "3 x 600 and 6000 a minute, hints", 20_000, always(*[Spec(rates=(RPM,))] * 3, Spec(rates=(LARGE_RPM,)))),
        Scenario("S4", "2 x 600 by the clock, no hint", 6000, always(*[Spec(rates=(Rate(600),))] * 2)),
        Scenario(
            "S5",
            "4 x 100k tokens a minute, long prompts",
            2000,
            always(*[Spec(rates=(TPM,))] * 4),
            limits=Limits(tpm=100_000),
            outputs=LONG_PROMPTS,
            figures=figures.waits,
        ),
        Scenario("S6", "4 x vLLM", 20_000, four(VLLM), figures=figures.latency),
        Scenario("S7", "4 x vLLM that thrashes from 128", 20_000, four(THRASHING), figures=figures.latency),
        Scenario("S8", "S2, the largest dies and returns", 20_000, mixed(dies), figures=figures.death),
        Scenario("S9", "S2, the largest 10 times slower", 20_000, mixed(slows), figures=figures.brownout),
        Scenario("S10", "S2 with faults, the largest fails 50 % at once", 20_000, mixed(fails, **FAULTS)),
        Scenario("S11", "S2, all answer 503 for 60 s", 20_000, all_away, figures=figures.outage),
        Scenario("S12", "S6 with 2 urgent calls a second", 20_000, four(VLLM), online=2.0, figures=figures.online),
        Scenario("S13", "1000 servers", 1_000_000, many, figures=figures.scale),
        Scenario("S14", "S2, no server can serve 0.1 %", 20_000, mixed(), poison=1000, figures=figures.poison),
        Scenario("S15", "S2, another client takes half of the largest", 20_000, mixed(shared_with_another)),
    )
}
