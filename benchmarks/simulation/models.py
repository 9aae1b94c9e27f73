"""Thirty-eight servers, each alone behind one source: examples of an endpoint of unknown capacity.

The servers ``a``, ``b`` and ``c`` are those on which limiters were first compared. The servers ``n`` are the out-of-sample test: they were
not used to choose the rules. The servers ``h`` report their rate limits in the headers of every response. A suffix ``q`` means the same
server without these headers.
Defaults: 0.15 s to the first token and 10 ms per token, lognormal output lengths with mean 200 and sigma 0.8, rejections after 30 ms
without ``Retry-After``, and reported usage. Changes happen at 200 s and are reverted at 400 s of 600 s (n4 runs 1800 s, since a response
takes minutes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation.doors import Rate
from simulation.laws import Alone, Scoring, Shared
from simulation.specs import Outputs, Spec
from simulation.steps import Walk, between, hold, square, steps

SECONDS = 600.0


@dataclass(frozen=True)
class Model:
    """One row.

    Args:
        name: name of the model.
        title: its description in the table.
        spec: the server.
        latency: it never rejects because it is full, so the p99 latency shows whether it is overloaded.
        recovery: its changes are few and large enough to measure the time until each is found.
        measured: its capacity is the throughput of the ``known`` controller, since faults waste a share that depends on the client.
        seconds: length of a run in virtual seconds.
    """

    name: str
    title: str
    spec: Spec
    latency: bool = False
    recovery: bool = True
    measured: bool = False
    seconds: float = SECONDS


CAP64 = Spec(cap=hold(64))
MOVES = Spec(cap=steps(64, (200, 16), (400, 64)))
VLLM = Shared()
BATCHED = Spec(law=VLLM)
REWARD = Spec(law=Scoring(), outputs=Outputs(1.0, 0.2), usage=False)


PER_SECOND = Spec(rates=(Rate(10, period=1.0, hint="second"),))
BY_CLOCK = Spec(rates=(Rate(3000, hint="exact"), Rate(300_000, unit="tokens", hint="exact")))
BUCKETS = Spec(rates=(Rate(3000, burst=3000, hint="exact"), Rate(300_000, burst=300_000, unit="tokens", hint="exact")))
USED = Spec(
    rates=(Rate(100_000, burst=100_000, unit="tokens", used=True, hint="exact"),),
    outputs=Outputs(200.0, 1.2, prompts=((0.8, 50), (0.2, 8000))),
)
BUCKET60, MINUTES, SILENT60 = (
    Spec(rates=(rate,)) for rate in (Rate(600, burst=60, hint="exact"), Rate(600, hint="exact"), Rate(600, burst=60))
)


def _telling(spec: Spec) -> Spec:
    return replace(spec, rates=tuple(replace(rate, told=True) for rate in spec.rates))


def _shared(**changes: object) -> Spec:
    return Spec(law=replace(VLLM, **changes))  # type: ignore[arg-type]


MODELS = {
    model.name: model
    for model in (
        Model("n1", "cap 150, rejects after 0.3 s", Spec(cap=hold(150), reject_after=0.3)),
        Model("n2", "cap walks in 20..120", Spec(cap=Walk(20, 120, 64, 8, 5.0, SECONDS)), recovery=False),
        Model("n3", "vLLM, 64 sequences, prefill stalls 15 ms", _shared(seqs=64, stall=0.015), latency=True),
        Model(
            "n4",
            "vLLM, 1500-token outputs, sigma 1",
            Spec(law=VLLM, outputs=Outputs(1500.0, 1.0)),
            latency=True,
            seconds=3 * SECONDS,
        ),
        Model("n5", "reward model, 40 ms up to 32, no usage", REWARD, latency=True),
        Model("n6", "3000 requests and 300k tokens a minute, by the clock", BY_CLOCK),
        Model("n7", "cap 64, 2 % errors, 0.5 % hangs", Spec(cap=hold(64), resets=0.02, hangs=0.005), measured=True),
        Model("n8", "vLLM, 5 times slower from 200 to 320 s", _shared(speeds=between(200, 320, 0.2)), latency=True),
        Model("n9", "503 for 60 s, then cap 256", Spec(cap=hold(256), away=(0.0, 60.0))),
        Model("n10", "cap 2", Spec(cap=hold(2))),
        Model("n11", "cap 400, answers in 150 ms", Spec(law=Alone(tpot=0.0005), ttft=0.05, cap=hold(400))),
        Model("n12", "cap alternates between 64 and 32 every 30 s", Spec(cap=square(64, 32, 30.0, SECONDS))),
        Model("n13", "a3 with Retry-After: 1 on each 429", replace(MOVES, cap_hint=1.0)),
        Model("n14", "600 requests a minute as 10 a second", PER_SECOND),
        Model("n15", "vLLM, 4 replicas, then 1, then 4", _shared(h=24.0, seqs=64, replicas=between(200, 400, 1, 4)), latency=True),
        Model("n16", "vLLM, speed x 0.03 from 200 to 400 s", _shared(speeds=between(200, 400, 0.03)), latency=True),
        Model("n17", "vLLM that thrashes from 128, then 64, then 192", _shared(thrash=steps(128, (200, 64), (400, 192))), latency=True),
        Model("n18", "vLLM, 0.1 % stray 503", Spec(law=VLLM, stray=0.001), latency=True),
        Model("n19", "n5, 0.1 % stray 503", replace(REWARD, stray=0.001), latency=True),
        Model("n20", "a3 without usage", replace(MOVES, usage=False)),
        Model("a", "cap 64", CAP64),
        Model("a2", "cap 6", Spec(cap=hold(6))),
        Model("a3", "cap 64, then 16, then 64", MOVES),
        Model("b", "vLLM", BATCHED, latency=True),
        Model("b2", "vLLM that thrashes from 128", _shared(thrash=hold(128)), latency=True),
        Model("b3", "vLLM, 3.3 times slower from 200 to 400 s", _shared(speeds=between(200, 400, 0.3)), latency=True),
        Model("c", "600 a minute, bucket of 60, exact hint", BUCKET60),
        Model("c2", "600 a minute by the clock, exact hint", MINUTES),
        Model("c3", "600 a minute, bucket of 60, no hint", SILENT60),
        Model("h1", "3000 requests and 300k tokens a minute, buckets of a minute's worth, limits in headers", _telling(BUCKETS)),
        Model("h1q", "h1 without headers", BUCKETS),
        Model("h2", "n6, limits in headers", _telling(BY_CLOCK)),
        Model("h3", "c, limits in headers", _telling(BUCKET60)),
        Model("h4", "c2, limits in headers", _telling(MINUTES)),
        Model("h5", "c3, limits in headers", _telling(SILENT60)),
        Model("h6", "n14, limits in headers", _telling(PER_SECOND)),
        Model("h7", "100k tokens a minute, charged as they are used, long prompts, limits in headers", _telling(USED)),
        Model("h7q", "h7 without headers", USED),
    )
}
