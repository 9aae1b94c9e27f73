"""Ray: a scorer in a pool of actors or on Ray Serve, behind qreward's queue, and bulks of Datasets. The pool also works without Ray.

The queue stays in the caller's process, where batches fill while the actors are busy; Ray transports whole batches. ``supervisor`` assigns
batches to actors and restarts actors, ``backends`` starts and calls actors in Ray or in this process, ``pool`` is the public class,
``serving`` is Ray Serve, ``bulk`` sends the rows of Datasets, and ``limit_actor`` shares rate limits in a cluster.
"""

from __future__ import annotations

from qreward.integrations.ray.backends import ActorDied
from qreward.integrations.ray.bulk import BulkRequests, run
from qreward.integrations.ray.pool import PoolStats, ScorerPool
from qreward.integrations.ray.serving import deployment

__all__ = ["ActorDied", "BulkRequests", "PoolStats", "ScorerPool", "deployment", "run"]
