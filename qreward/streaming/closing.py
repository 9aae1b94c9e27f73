"""Closes streams that blocking code reads, from any thread, because Python may collect them in any thread. Knows no SDK."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from qreward.engine import portal
from qreward.errors import ClientClosed, QRewardError

_under_way: set[asyncio.Task[None]] = set()
"""Strong references to running tasks; an event loop keeps only weak ones."""


def leave(pieces: portal.BlockingIterator[Any], aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close a stream. The connection is closed when this returns.

    In the portal's own thread, which must not wait for itself, closing is only started.

    Args:
        pieces: the iterator that reads the stream.
        aclose: closes the stream, even if reading never started. It can be called repeatedly.
    """
    with contextlib.suppress(ClientClosed):  # the process is ending, and the portal has closed the stream
        here = portal.portal()
        with contextlib.suppress(Broken, QRewardError):  # the error of the stream concerns only its reader
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
    with contextlib.suppress(QRewardError):  # no caller is left to receive it
        await aclose()


class Broken(Exception):
    """Raised by a stream of server-sent events on the read after the event that reports its error."""
