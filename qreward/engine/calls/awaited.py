"""A caller that awaits an async function: its first try runs in the caller's own task, as an undecorated call would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from qreward.core.calls.call import Call
from qreward.core.calls.outcome import Raised
from qreward.core.outcome import Answer
from qreward.core.task import Attempt, Task
from qreward.engine.single import Single

Judge = Callable[[Exception], Raised]
"""Says what an exception of the function means."""


class Awaited(Single):
    """The sink of one call.

    Args:
        body: begins a try of the function.
        judge: see :data:`Judge`.
        tell: is shown the call when something was decided.
    """

    __slots__ = ("_body", "_judge", "_tell", "outcome")

    def __init__(self, shell: Any, body: Callable[[], Awaitable[Any]], judge: Judge, tell: Callable[[Call], None] | None = None) -> None:
        super().__init__(shell)
        self._body = body
        self._judge = judge
        self._tell = tell

    async def carry(self, _attempt: Attempt) -> Answer | Raised:  # type: ignore[override]
        """Try once. Only cancellation gets out, which is for the shell to sort out."""
        try:
            return Answer(await self._body())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            return self._judge(error)
        except BaseException as error:  # an exit or an interrupt in the caller's own code
            return Raised(error, again=False)

    def start(self, attempt: Attempt) -> None:
        super().start(attempt)
        if self._tell is not None:
            self._tell(attempt.task)  # type: ignore[arg-type]

    def finish(self, task: Task, outcome: Any, *_: Any) -> None:
        self._result = outcome
        self._wake()
        if self._tell is not None:
            self._tell(task)  # type: ignore[arg-type]
