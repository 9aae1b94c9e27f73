"""What the sinks of streams share: attempts carried out piece by piece, and one consumer who takes what has come.

Knows attempts and events; knows nothing of what an event is, or of when there is room for more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from qreward.core.outcome import Outcome
from qreward.core.task import Attempt
from qreward.engine.flow import Flow, Receiver
from qreward.engine.shell import Shell


class Signal:
    """Wakes all who wait for it: any number of them, and one reader.

    What its methods return is to be awaited at once. They are no coroutines themselves: a reader waits for each token.

    Attributes:
        read: a reader waits.
    """

    __slots__ = ("_loop", "_reader", "_waiters", "read")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.read = False

    def wait_alone(self) -> asyncio.Future[None]:
        """Wait as the one reader of a stream, who sets ``read`` back when it is awake."""
        self.check_loop()
        if self.read:
            raise RuntimeError("a stream can be read by only one task at a time")
        self.read = True
        reader = self._reader = self._loop.create_future()
        return reader

    def wait(self) -> asyncio.Future[None]:
        self.check_loop()
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def check_loop(self) -> None:
        """Raise ``RuntimeError`` in another loop, where nothing would ever come."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a stream must be read in the event loop that began it, not in another thread or a forked process")

    def give(self) -> None:
        reader = self._reader
        if reader is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class Carrier:
    """A sink whose attempts are streams."""

    __slots__ = ("_busy", "_events", "_there", "shell")

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._events: deque[Any] = deque()  # have come, and were not taken
        self._there = Signal(shell.loop)
        self._busy = 0  # attempts that have not ended

    # the consumer's side

    async def take(self) -> Any:
        """The next event; None at the end. Raises what ended it, if anything did, once all that came is taken."""
        there = self._there
        while not self._events:
            if self.ended():
                return None
            something = there.wait_alone()
            try:
                await something
            finally:
                there.read = False
        event = self._events.popleft()
        self.took()
        return event

    def ended(self) -> bool:
        """Nothing more comes. Raises the error, if that is because of one."""
        raise NotImplementedError

    def took(self) -> None:
        """There is an event less."""
        raise NotImplementedError

    async def ends(self) -> Any:
        """Wait for the end, and return what it came to."""
        raise NotImplementedError

    def leave(self) -> None:
        """Want no more: what is under way is stopped. In the loop's own thread."""
        raise NotImplementedError

    def over(self) -> bool:
        """There is nothing to leave."""
        raise NotImplementedError

    async def idle(self) -> None:
        """Wait until the connections of what was stopped are closed."""
        while self._busy:
            await self._there.wait()

    # the shell's side

    def carry(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        self._busy += 1
        return Flow(attempt, cast("Receiver", self)).run()  # as all that extend it are

    # the flow's side

    def gone(self) -> None:
        self._busy -= 1
        self._there.give()
