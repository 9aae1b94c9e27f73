"""Ray: scorers in a pool of actors or on Ray Serve, and bulk runs over Datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qreward.integrations.ray.pool import ActorDied, PoolStats, ScorerPool
from qreward.integrations.ray.serving import deployment

if TYPE_CHECKING:
    from qreward.integrations.ray.bulk import BulkRequests, run

__all__ = ["ActorDied", "BulkRequests", "PoolStats", "ScorerPool", "deployment", "run"]


def __getattr__(name: str) -> Any:
    if name in ("BulkRequests", "run"):
        from qreward.integrations.ray import bulk  # noqa: PLC0415 - a pool needs neither bulk runs nor their imports

        return getattr(bulk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
