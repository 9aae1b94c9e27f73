"""Leaving a stream that blocking code reads, wherever that happens: Python may collect it in any thread. Knows no SDK."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from qreward.engine import portal
from qreward.errors import ClientClosed, QRewardError

_under_way: set[asyncio.Task[None]] = set()
"""Which a loop alone would not keep."""


def leave(pieces: portal.BlockingIterator[Any], aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Leave; the connection is closed when this returns. In the portal's own thread, which must not wait for itself, that is only begun.

    Args:
        pieces: what reads it.
        aclose: closes what is read, even if it was never begun to be read. May be called again.
    """
    with contextlib.suppress(ClientClosed):  # the process ends, and the portal closed it
        here = portal.portal()
        with contextlib.suppress(Broken, QRewardError):  # what broke it off is for who reads so far
            pieces.close()
        if here.is_here():
            here.soon(lambda: _begin(aclose))
        else:
            here.call(aclose)


def _begin(aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.get_running_loop().create_task(_quietly(aclose))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _quietly(aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with contextlib.suppress(QRewardError):  # nobody is there to hear it
        await aclose()


class Broken(Exception):
    """What follows the event that says why."""
