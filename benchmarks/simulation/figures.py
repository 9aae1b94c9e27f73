"""Metrics of scenarios besides the makespan: detection time, recovery time, and the cost for other requests."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from math import ceil, exp
from statistics import NormalDist

from simulation.fleets import ONLINE, Figure, Run
from simulation.measure import SPAN, quantile, recovered

FULL_USE = 0.9
"""Share (0 to 1) of its capacity from which a server that has returned counts as fully used."""


def latency(run: Run) -> list[Figure]:
    """Return the p99 latency divided by that of the oracle, which has the smallest limits with nearly the maximum throughput."""
    known = run if run.controller == "known" else run.twin(controller="known")
    return [Figure("p99 / known", quantile(run.bulk.latencies, 0.99) / quantile(known.bulk.latencies, 0.99), 3.0)]


def death(run: Run) -> list[Figure]:
    """Return figures of a server that dies and returns: seconds until its removal, requests sent while dead, seconds until its full use."""
    begin, end = run.specs[0].dead or (0.0, 0.0)
    noticed = [when - begin for when, source in run.world.lost_sight if source is run.world.sources[0] and when >= begin]
    return [
        Figure("s until noticed", min(noticed, default=end - begin), 5.0),
        Figure("sends while dead", _sent(run, 0, begin, end)),
        Figure("s until full use", _back(run, end), 15.0),
    ]


def brownout(run: Run) -> list[Figure]:
    """Return the seconds until the full use of a server that became slow and then fast again."""
    return [Figure("s until full use", _back(run, run.specs[0].law.changes()[-1]))]


def outage(run: Run) -> list[Figure]:
    """Return figures of an outage of all servers: requests per second to each, and seconds until half of the capacity is used again."""
    begin, end = run.specs[0].away or (0.0, 0.0)
    most = max(_sent(run, place, begin, end) for place in range(len(run.specs))) / (end - begin)
    useful = [sum(each) for each in run.useful]
    full = sum(spec.capacity(run.work.mean)(end) for spec in run.specs)
    last = len(useful) - SPAN
    resumed = next((second - end for second in range(ceil(end), last) if useful[second + 1] - useful[second] >= full / 2), last - end)
    return [Figure("sends/s to each server", most, 2.0), Figure("s until resumed", resumed, 5.0)]


def online(run: Run) -> list[Figure]:
    """Return figures of urgent calls beside a batch: their p99 latency divided by its lower bound, and the loss of the batch.

    The lower bound is the time to the first token plus the time of an output of the 99th percentile length, at the speed that the server
    has with the batch. The loss is the share of the throughput that is missing, where the tokens of the calls count as throughput.
    """
    alone = run.twin(scenario=replace(run.scenario, online=0.0, figures=None))
    tau = sum(run.bulk.latencies) / run.bulk.tokens
    longest = ONLINE.mean * exp(NormalDist().inv_cdf(0.99) * ONLINE.sigma - ONLINE.sigma**2 / 2)
    done = (run.bulk.tokens + run.online.tokens) / run.bulk.last
    return [
        Figure("urgent p99 / bound", quantile(run.online.latencies, 0.99) / (run.specs[0].ttft + longest * tau), 1.5),
        Figure("urgent p99 s", quantile(run.online.latencies, 0.99)),
        Figure("bulk loss", 1 - done / (alone.bulk.tokens / alone.bulk.last), 0.12),
    ]


def scale(run: Run) -> list[Figure]:
    """Return the cost of a million requests: wall seconds, decisions (sends and results) per second, and the peak memory in MB."""
    sent = sum(source.tally.sent for source in run.world.sources)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform.startswith("linux") else 1024**2)
    return [
        Figure("wall s", run.wall, 20.0),
        Figure("decisions/s", (sent + run.bulk.ended) / run.wall, 30_000.0, floor=True),
        Figure("RSS MB", peak, 150.0),
    ]


def poison(run: Run) -> list[Figure]:
    """Return figures of requests that no server can serve: servers removed, most attempts of a request, repeated attempts at one server.

    Also their cost for the other requests: the time until the end, and the time until the last answer, each divided by the makespan of the
    batch without these requests.
    """
    clean = run.twin(scenario=replace(run.scenario, poison=0, figures=None)).bulk.last
    trails = [task.trail or [] for task in run.bulk.failed]
    tries = [[record.endpoint for record in trail if record.outcome != "overloaded"] for trail in trails]
    again = sum(len(names) - len(set(names)) for names in tries)
    return [
        Figure("servers removed", float(len(run.world.lost_sight)), 0.0),
        Figure("max attempts", float(max(map(len, tries), default=0)), 4.0),
        Figure("attempts repeated at a server", float(again), 0.0),
        Figure("makespan / S2", run.bulk.last / clean, 1.1),
        Figure("last answer / S2", run.bulk.last_answer / clean, 1.1),
    ]


def waits(run: Run) -> list[Figure]:
    """Return figures of large requests, which must not starve: the longest time since a request was read, and the longest latency."""
    return [Figure("longest s since read", run.bulk.longest), Figure("longest answer s", max(run.bulk.latencies, default=0.0))]


def _sent(run: Run, place: int, begin: float, end: float) -> float:
    """Return the number of requests sent to a server from ``begin`` to ``end``, rounded to whole seconds."""
    last = len(run.sent) - 1
    return float(run.sent[min(last, int(end))][place] - run.sent[min(last, ceil(begin))][place])


def _back(run: Run, change: float) -> float:
    capacity = run.specs[0].capacity(run.work.mean)
    return recovered([each[0] for each in run.useful], capacity, change, float(len(run.useful) - 1), FULL_USE)
