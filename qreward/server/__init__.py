"""The reward server: serves any scoring function over HTTP, in batches, with the APIs that trainers and the qreward client use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qreward.server.app import create_app
from qreward.server.config import ServerConfig

if TYPE_CHECKING:
    from qreward.server.server import RewardServer, run, serve

__all__ = ["RewardServer", "ServerConfig", "create_app", "run", "serve"]


def __getattr__(name: str) -> Any:
    if name not in ("RewardServer", "run", "serve"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from qreward.server import server  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; the reward server needs it: pip install 'qreward[server]'", name=error.name) from error
    return getattr(server, name)
