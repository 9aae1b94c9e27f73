"""Our client for the CPU benchmarks: one endpoint for each port, each with its share of the calls in flight."""

from __future__ import annotations

from _harness import Job

from qreward import Endpoint, Limits, QRewardClient

MODEL = "judge"


def open_client(job: Job) -> QRewardClient:
    """Return a client over the endpoints of the job. Only the concurrency limit is set, because all other clients have the same."""
    limits = Limits(max_concurrency=max(1, job.concurrency // len(job.urls)), adaptive=False)
    return QRewardClient([Endpoint(url, name=f"endpoint-{index}", limits=limits) for index, url in enumerate(job.urls)])
