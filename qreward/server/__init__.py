"""The reward server: serves any scoring function over HTTP, in batches, with the APIs that trainers and the qreward client use."""

from __future__ import annotations

from qreward.server.app import RewardServer, create_app, run, serve
from qreward.server.config import ServerConfig

__all__ = ["RewardServer", "ServerConfig", "create_app", "run", "serve"]
