"""Ray: a scorer in a pool of actors, and a scorer on Ray Serve, both behind our own queue. It works without Ray, too, in this process.

The queue stays in the caller's process, where batches fill while the actors are busy; Ray carries whole batches. ``roster`` decides
and is pure; ``office`` carries out, ``crews`` calls Ray, ``host`` is what runs in an actor, ``pool`` is what people use.
"""

from __future__ import annotations

from qreward.integrations.ray.backends import ActorDied, PoolStats
from qreward.integrations.ray.pool import ScorerPool
from qreward.integrations.ray.serving import deployment

__all__ = ["ActorDied", "PoolStats", "ScorerPool", "deployment"]
