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
"""Share of its capacity at which a server that has returned counts as fully used."""


def latency(run: Run) -> list[Figure]:
    """The p99 latency, divided by that with the oracle: the smallest limits with nearly the maximum throughput."""
    known = run if run.controller == "known" else run.twin(controller="known")
    return [Figure("p99 / known", quantile(run.bulk.latencies, 0.99) / quantile(known.bulk.latencies, 0.99), 3.0)]


def death(run: Run) -> list[Figure]:
    """A server dies and returns: seconds until its removal from service, requests sent to it while dead, seconds until its full use."""
    begin, end = run.specs[0].dead or (0.0, 0.0)
    noticed = [when - begin for when, source in run.world.lost_sight if source is run.world.sources[0] and when >= begin]
    return [
        Figure("s until noticed", min(noticed, default=end - begin), 5.0),
        Figure("sends while dead", _sent(run, 0, begin, end)),
        Figure("s until full use", _back(run, end), 15.0),
    ]


def brownout(run: Run) -> list[Figure]:
    """A server becomes slow and then fast again: seconds until its full use."""
    return [Figure("s until full use", _back(run, run.specs[0].law.changes()[-1]))]


def outage(run: Run) -> list[Figure]:
    """All servers are away: requests per second sent to each meanwhile, and seconds until half of the capacity is used again."""
    begin, end = run.specs[0].away or (0.0, 0.0)
    most = max(_sent(run, place, begin, end) for place in range(len(run.specs))) / (end - begin)
    useful = [sum(each) for each in run.useful]
    full = sum(spec.capacity(run.work.mean)(end) for spec in run.specs)
    last = len(useful) - SPAN
    resumed = next((second - end for second in range(ceil(end), last) if useful[second + 1] - useful[second] >= full / 2), last - end)
    return [Figure("sends/s to each server", most, 2.0), Figure("s until resumed", resumed, 5.0)]


def online(run: Run) -> list[Figure]:
    """Urgent calls beside a batch: their p99 latency divided by its lower bound, and the loss of the batch.

    The lower bound is ``ttft`` plus the time of the p99 output length at the seconds per token under the batch. The loss is the missing
    share of the throughput, with the tokens of the calls included.
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
    """The cost of a million requests: wall seconds, decisions per second (sends and results), and the peak memory of the process in MB."""
    sent = sum(source.tally.sent for source in run.world.sources)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform.startswith("linux") else 1024**2)
    return [
        Figure("wall s", run.wall, 20.0),
        Figure("decisions/s", (sent + run.bulk.ended) / run.wall, 30_000.0, floor=True),
        Figure("RSS MB", peak, 150.0),
    ]


def poison(run: Run) -> list[Figure]:
    """Requests that no server can serve: servers removed from service, most attempts of one request, repeated attempts at one server.

    Also their cost for the others: time until the end, and until the last answer, divided by the makespan of the batch without them.
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
    """Large requests must not starve: the longest time of a request since it was read, and the longest latency of an answer."""
    return [Figure("longest s since read", run.bulk.longest), Figure("longest answer s", max(run.bulk.latencies, default=0.0))]


def _sent(run: Run, place: int, begin: float, end: float) -> float:
    """Requests sent to a server from ``begin`` to ``end``, rounded to whole seconds."""
    last = len(run.sent) - 1
    return float(run.sent[min(last, int(end))][place] - run.sent[min(last, ceil(begin))][place])


def _back(run: Run, change: float) -> float:
    capacity = run.specs[0].capacity(run.work.mean)
    return recovered([each[0] for each in run.useful], capacity, change, float(len(run.useful) - 1), FULL_USE)
