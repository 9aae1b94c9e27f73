"""One client per process and client configuration. The client is closed in all of its event loops when the process ends.

If an adapter is set up twice, for example for training and for evaluation, both setups share this client and the limits of its API keys.
This module depends on no trainer and no judge.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from contextlib import suppress

from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.runtime import runtime_of
from qreward.settings.client import ClientConfig, config_from_env

GRACE = 2.0
"""Seconds to wait, when the process ends, for the event loop of another thread to close its connections."""

_made: list[tuple[ClientConfig, QRewardClient]] = []
_inherited: list[object] = []
_lock = threading.Lock()


def shared_client(config: ClientConfig | None = None) -> QRewardClient:
    """Return the client of this process for a configuration. The first call creates the client. The caller must not close the client.

    Args:
        config: the client's settings. None takes the settings that ``QRewardClient.from_env`` finds.

    Raises:
        ConfigError: ``config`` is None and the environment names no configuration.
    """
    wanted = config if config is not None else config_from_env()
    with _lock:
        for known, client in _made:
            if known == wanted and not runtime_of(client).closed:
                return client
        _made.append((wanted, QRewardClient.from_config(wanted)))
        return _made[-1][1]


def close_clients() -> None:
    """Close all shared clients. An event loop that still runs in another thread gets ``GRACE`` seconds to close its connections."""
    with _lock:
        clients = [client for _, client in _made]
        _made.clear()
    for client in clients:
        with suppress(Exception):  # the process is ending
            _close(client)


def _close(client: QRewardClient) -> None:
    """Close a client, and wait until it is closed in the event loops of other threads. ``aclose`` does not wait for these loops."""
    engine = runtime_of(client).engine
    for loop in [driver.loop for driver in engine.drivers()]:
        with suppress(Exception):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(engine.leave(), loop).result(GRACE)
            elif not loop.is_closed():
                loop.run_until_complete(asyncio.wait_for(engine.leave(), GRACE))
    portal().call(client.aclose)


def _after_fork() -> None:
    global _lock, _made  # a thread of the parent may have held the lock
    _inherited.append(_made)
    _lock, _made = threading.Lock(), []


atexit.register(close_clients)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
