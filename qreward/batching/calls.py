"""One caller's item as the shell holds it: what it waits for, and the batch it is in.

Knows futures, but neither queues nor functions.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any

from qreward.batching.backlog import OVER, Item
from qreward.errors import RequestError

if TYPE_CHECKING:
    from qreward.batching.running import Run

_ENDINGS = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


class Call(Item):
    """An item whose caller waits for one result.

    Attributes:
        future: done when the caller is; cancelled when the caller left.
        run: the batch it is in; not before it is in one.
        context: what was current when it was submitted; only with ``carry_contexts``.
    """

    __slots__ = ("context", "future", "run")
    future: asyncio.Future[Any]
    run: Run
    context: Context

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, unless it has something already or has left."""
        self.place = OVER
        if not self.future.done():
            self.future.set_exception(error)


def caller_error(error: BaseException, name: str) -> BaseException:
    """What a caller may be given for an exception: not one that would end the caller's own task, loop or iteration."""
    told: Exception
    if isinstance(error, StopIteration | StopAsyncIteration):
        told = RuntimeError(f"{name} raised {type(error).__name__}")
    elif isinstance(error, _ENDINGS):
        told = RequestError(f"the batch was not finished: {type(error).__name__} in {name}; the item may be submitted again")
    else:
        return error
    told.__cause__ = error
    return told
