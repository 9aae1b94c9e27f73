"""One client per process and client configuration. The client is closed in all of its event loops when the process ends.

If an adapter is set up twice, for example for training and for evaluation, both setups share this client and the limits of its API keys.
The file from which its settings were read is watched, so that a client takes over new settings while the trainer runs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.functions.watcher import ConfigWatcher
from qreward.integrations.trainers.settings import load_reward_config
from qreward.runtime import runtime_of
from qreward.settings.client import CONFIG_VARIABLE, ClientConfig, config_from_env

GRACE = 2.0
"""Seconds to wait, when the process ends, for the event loop of another thread to close its connections."""


class _Shared(NamedTuple):
    config: ClientConfig  # the settings with which the client was made
    client: QRewardClient
    watcher: ConfigWatcher | None  # applies changes of the file


_made: list[_Shared] = []
_inherited: list[object] = []
_lock = threading.Lock()


def shared_client(config: ClientConfig | None = None, file: str | Path | None = None) -> QRewardClient:
    """Return the client of this process for a configuration. The first call creates the client. The caller must not close the client.

    Args:
        config: the client's settings. None takes the settings that ``QRewardClient.from_env`` finds.
        file: settings file of an adapter that contains ``config``. When the file changes, its ``client`` is applied to the client; a fault
            in the file is logged, and changes nothing. Without ``config``, the file that ``QREWARD_CONFIG`` names is watched.

    Raises:
        ConfigError: ``config`` is None and the environment names no configuration.
    """
    wanted = config if config is not None else config_from_env()
    with _lock:
        for known in _made:
            if wanted in (known.config, known.client.config) and not runtime_of(known.client).closed:
                return known.client
        client = QRewardClient.from_config(wanted)
        _made.append(_Shared(wanted, client, _watcher_of(client, file if config is not None else None)))
    return client


def _watcher_of(client: QRewardClient, file: str | Path | None) -> ConfigWatcher | None:
    named = os.environ.get(CONFIG_VARIABLE) if file is None else None
    if named:
        watcher = ConfigWatcher(client, file=named)
    elif file is not None and Path(file).is_file():
        read: Any = lambda: load_reward_config(file).client  # noqa: E731
        watcher = ConfigWatcher(client, callback=read)
    else:
        return None
    watcher.start()
    return watcher


def close_clients() -> None:
    """Close all shared clients. An event loop that still runs in another thread gets ``GRACE`` seconds to close its connections."""
    with _lock:
        closing = list(_made)
        _made.clear()
    for shared in closing:
        with suppress(Exception):  # the process is ending
            if shared.watcher is not None:
                shared.watcher.stop()
            _close(shared.client)


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
    for shared in _made:
        if shared.watcher is not None:
            shared.watcher.stop()  # the child makes clients of its own
    _inherited.append(_made)
    _lock, _made = threading.Lock(), []


atexit.register(close_clients)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
