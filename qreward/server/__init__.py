"""The reward server: serves any scoring function over HTTP, in batches, with the APIs that trainers and the qreward client use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.server.app import create_app as create_app
    from qreward.server.config import ServerConfig as ServerConfig
    from qreward.server.server import RewardServer as RewardServer
    from qreward.server.server import run as run
    from qreward.server.server import serve as serve

_HOMES = {"create_app": "app", "ServerConfig": "config", "RewardServer": "server", "run": "server", "serve": "server"}

__all__ = ["RewardServer", "ServerConfig", "create_app", "run", "serve"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; the reward server needs it: pip install 'qreward[server]'", name=error.name) from error
