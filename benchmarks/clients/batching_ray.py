"""Ray Serve's ``@serve.batch`` in one process, without a cluster.

Outside of a replica the first call of the queue raises, because the queue reads one number from the replica's context for a warning. So
this module makes such a context, with the function that Ray's own unit tests use. If ``metrics`` is False, no metrics are recorded.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from _batching import Body, Job, Queue, main
from ray import serve
from ray.serve import batching, context
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.config import DeploymentConfig
from ray.serve.schema import ReplicaRank

ENOUGH = 1_000_000  # ongoing requests, so that Ray logs no warning


class NoMetric:
    """Has the methods of a metric, and records nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        self.set = self.observe = self.inc = self._ignore

    def _ignore(self, *_: object, **__: object) -> None:
        pass


def pretend_to_be_in_a_replica() -> None:
    """Give Ray the context that it looks for."""
    context._set_internal_replica_context(
        replica_id=ReplicaID("one", DeploymentID("batching", "benchmark")),
        servable_object=None,
        _deployment_config=DeploymentConfig(max_ongoing_requests=ENOUGH),
        rank=ReplicaRank(rank=0, node_rank=0, local_rank=0),
        world_size=1,
    )


def opens(body: Body, job: Job) -> Queue:
    if not job.get("metrics", True):
        batching.Counter = batching.Gauge = batching.Histogram = NoMetric
    if job["case"] == "loads":  # its timer reads the wall clock, which does not advance in virtual time
        batching.time = SimpleNamespace(time=asyncio.get_running_loop().time)
    settings: dict[str, Any] = {"max_batch_size": job["max_batch"], "max_concurrent_batches": job["slots"]}
    if job["wait"] is not None:
        settings["batch_wait_timeout_s"] = job["wait"]
    return Queue(serve.batch(**settings)(body))


if __name__ == "__main__":
    pretend_to_be_in_a_replica()
    main(opens)
