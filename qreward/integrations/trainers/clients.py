"""One client a process and its configuration, whoever asks for it, closed in all its loops when the process ends.

So adapters that are set up twice (to train and to evaluate, say) keep the limits of a key together. Knows no trainer and no judge.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from contextlib import suppress

from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.settings.client import ClientConfig, config_from_env

GRACE = 2.0
"""Seconds for which the end of the process waits for another thread's loop to close what was opened there."""

_made: list[tuple[ClientConfig, QRewardClient]] = []
_inherited: list[object] = []
_lock = threading.Lock()


def shared_client(config: ClientConfig | None = None) -> QRewardClient:
    """The client of this process for this configuration, made when first asked for. Not to be closed by who asks.

    Args:
        config: None is what ``QRewardClient.from_env`` finds.

    Raises:
        ConfigError: nothing was given, and the environment names nothing.
    """
    wanted = config if config is not None else config_from_env()
    with _lock:
        for known, client in _made:
            if known == wanted and not client._engine.closed:
                return client
        _made.append((wanted, QRewardClient.from_config(wanted)))
        return _made[-1][1]


def close_clients() -> None:
    """Close all of them. The trainer's own loop, which may still run in another thread, is waited for, but not for long."""
    with _lock:
        clients = [client for _, client in _made]
        _made.clear()
    for client in clients:
        with suppress(Exception):  # the process ends in any case
            _close(client)


def _close(client: QRewardClient) -> None:
    """The client itself tells the loops of other threads to close, but does not wait for them."""
    engine = client._engine
    for loop in list(engine._shells):
        with suppress(Exception):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(engine.leave(), loop).result(GRACE)
            elif not loop.is_closed():
                loop.run_until_complete(asyncio.wait_for(engine.leave(), GRACE))
    portal().call(client.aclose)


def _after_fork() -> None:
    global _lock, _made  # the parent's, one of whose threads may have held the lock
    _inherited.append(_made)
    _lock, _made = threading.Lock(), []


atexit.register(close_clients)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
