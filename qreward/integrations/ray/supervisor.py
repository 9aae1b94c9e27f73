"""Assigns batches to actors, and keeps the actors running."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from qreward.errors import ClientClosed, RequestTimeout
from qreward.integrations.ray.backends import CLOSE_TIMEOUT, ActorBackend, ActorDied, ActorLost, PoolConfig, Reply

FIRST_DELAY = 0.1
"""Seconds before the restart after the second death in a row. After the first death, the restart is immediate. With each death after the
second, the delay doubles until it is ``LONGEST_DELAY``."""
LONGEST_DELAY = 30.0
STARTS = 3
"""Maximum number of attempts to start an actor that fails to start. The number is small, because a constructor that raises will most likely
raise again."""
GRACE = 5.0
"""Seconds for which an actor may still work on a batch after the timeout of the batch. Then the actor is killed and restarted."""
LOOP_CHECK_INTERVAL = 0.1
"""Seconds between two checks in ``close`` of whether the event loops of other callers still run."""
_log = logging.getLogger("qreward")


@dataclass(eq=False, slots=True)
class Actor:
    handle: Any
    lost: asyncio.Future[ActorLost]
    load: int = 0
    alone: bool = False
    turn: int = 0
    finished: bool = False


class Supervisor:
    """Manages the actors of one pool in this process. ``name`` is the name of the scorer in error messages."""

    def __init__(self, backend: ActorBackend, config: PoolConfig, name: str) -> None:
        self.backend = backend
        self.ready: list[Actor] = []
        self.given_up = 0
        self.counts: Counter[str] = Counter()
        self.waiting: deque[tuple[asyncio.Future[Actor], bool]] = deque()
        self._config = config
        self._name = name
        self._turns = 0
        self._reason = "none was ever started"
        self._callers: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._abandoned = self._ended = False
        self._lock = threading.Lock()
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        threading.Thread(target=self._run, name="qreward-scorer-pool", daemon=True).start()

    # called in other threads

    def submit(self, work: Callable[[], Coroutine[Any, Any, Any]], caller: asyncio.AbstractEventLoop) -> Future[Any]:
        return self._post(self._run_for(caller, work))

    def close(self, drain: bool, caller: asyncio.AbstractEventLoop) -> Future[Any]:
        """Wait for the callers whose event loops still run, then stop the actors and end the thread."""
        return self._post(self._close(drain, caller))

    def stop(self) -> None:
        """End the thread and the actors at once, without waiting."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)

    def _post(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        with self._lock:
            if not self._ended:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise closed()

    # called in the supervisor's event loop

    async def run(self, columns: tuple[Any, ...], alone: bool, caller: asyncio.AbstractEventLoop) -> Any:
        """Score a batch on an actor, and return what the scorer returned. Raises ``ActorLost`` if the actor died.

        A batch that may have killed an actor must be ``alone``. Such a batch is assigned next, and shares its actor with no other batch.
        """
        actor = await self._assigned(alone)
        try:
            reply, cancel = self.backend.send(actor.handle, columns, caller)
        except BaseException as error:
            reply, cancel = asyncio.get_running_loop().create_future(), lambda: None
            reply.set_exception(error)
        self.counts["in_flight"] += 1
        reply.add_done_callback(partial(self._on_reply, actor, alone))
        try:
            await asyncio.wait([reply], timeout=self._config.batch_timeout)
        except asyncio.CancelledError:
            cancel()
            raise
        if not reply.done():
            cancel()
            asyncio.get_running_loop().call_later(GRACE, self.kill_if_busy, actor, reply)
            self.counts["timeouts"] += 1
            limit = f"{self._config.batch_timeout:g} s"
            raise RequestTimeout(f"{self._name} gave no result within the batch_timeout of {limit}; its batch was cancelled")
        ok, value = self._read(reply)
        if isinstance(value, ActorLost):  # the actor may have been killed because of another batch; the first loss says why
            raise actor.lost.result()
        if not ok:
            raise value
        return value

    def kill_if_busy(self, actor: Actor, reply: asyncio.Future[Reply]) -> None:
        if not reply.done():
            self._on_death(actor, ActorLost("it was killed, because it still worked on a batch after its batch_timeout", excused=True))

    async def _assigned(self, alone: bool) -> Actor:
        assigned: asyncio.Future[Actor] = asyncio.get_running_loop().create_future()
        (self.waiting.appendleft if alone else self.waiting.append)((assigned, alone))
        self._assign()
        try:
            return await assigned
        except asyncio.CancelledError:
            if (assigned, alone) in self.waiting:
                self.waiting.remove((assigned, alone))
            elif assigned.exception() is None:
                self._release(assigned.result(), alone)
            self._assign()
            raise

    def _assign(self) -> None:
        """Assign batches from the head of the queue. Each batch goes to the actor with the fewest batches."""
        if self.given_up == self._config.actors:
            for assigned, _ in self.waiting:
                if not assigned.done():
                    assigned.set_exception(ActorDied(f"no actor is left to score with; the last one was lost: {self._reason}"))
            self.waiting.clear()
        free = [actor for actor in self.ready if not actor.alone and actor.load < self._config.max_concurrent_batches]
        kept: list[tuple[asyncio.Future[Actor], bool]] = []
        while self.waiting and free:
            assigned, alone = self.waiting.popleft()
            actor = min(free, key=lambda actor: (actor.load, actor.turn))
            if assigned.done() or (alone and actor.load):  # a future that is done was cancelled, and its batch leaves the queue
                kept.append((assigned, alone))
                if not assigned.done():
                    free.remove(actor)
                continue
            self._turns += 1
            actor.load, actor.turn, actor.alone = actor.load + 1, self._turns, alone
            assigned.set_result(actor)
            if alone or actor.load == self._config.max_concurrent_batches:
                free.remove(actor)
        self.waiting.extendleft(reversed(kept))

    def _release(self, actor: Actor, alone: bool) -> None:
        actor.load -= 1
        actor.alone = actor.alone and not alone

    def _on_reply(self, actor: Actor, alone: bool, reply: asyncio.Future[Reply]) -> None:
        self.counts["in_flight"] -= 1
        self._release(actor, alone)
        _, value = self._read(reply)
        if isinstance(value, ActorLost):
            self._on_death(actor, value)
        else:
            actor.finished = True
            self.counts["batches"] += 1
            self._assign()

    def _read(self, reply: asyncio.Future[Reply]) -> Reply:
        error = reply.exception()
        return reply.result() if error is None else (False, self.backend.read(error))

    def _on_death(self, actor: Actor, loss: ActorLost) -> None:
        """Record the death of an actor. Further calls for the same actor do nothing."""
        if not actor.lost.done():
            actor.lost.set_result(loss)
            if actor in self.ready:
                self.ready.remove(actor)

    async def _keep_running(self, number: int) -> None:
        """Start an actor, and start it again when it has died, until it is given up."""
        deaths = failed_starts = 0
        while deaths <= self._config.max_restarts and failed_starts < STARTS:
            if deaths:
                await asyncio.sleep(delay_of(deaths))
            try:
                actor = await self._started()
            except ActorLost as error:
                loss = error
            else:
                loss = await actor.lost
                self.backend.kill(actor.handle)  # the actor may be unreachable instead of dead
                if actor.finished:
                    deaths = failed_starts = 0
            deaths += 1
            failed_starts += loss.never_started
            self.counts["deaths"] += 1
            self._reason = str(loss)
            _log.warning("actor %d died: %s", number, loss)
        self.given_up += 1
        self._assign()

    async def _started(self) -> Actor:
        timeout = self._config.start_timeout
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                actor = Actor(await self.backend.start(), asyncio.get_running_loop().create_future())
        except Exception as error:
            if limit.expired():
                reason = f"it was not ready within {timeout:g} s; are there the resources that it asks for?"
                raise ActorLost(reason, never_started=True) from None
            loss = self.backend.read(error)
            raise loss if isinstance(loss, ActorLost) else ActorLost(f"{type(loss).__name__}: {loss}", never_started=True) from error
        self.ready.append(actor)
        self._assign()
        return actor

    async def _run_for(self, caller: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._callers[task] = caller
        try:
            if self._abandoned:
                raise closed()
            return await work()
        except asyncio.CancelledError:
            if self._abandoned:
                raise closed() from None
            raise
        finally:
            del self._callers[task]

    async def _close(self, drain: bool, caller: asyncio.AbstractEventLoop) -> None:
        if self._ended:
            return
        if not drain:
            self._abandoned = True
            for task in self._callers:
                task.cancel()
        while any(loop.is_running() for loop in self._callers.values()):
            await asyncio.wait(self._callers, timeout=LOOP_CHECK_INTERVAL)
        async with self._closing:
            closings = (asyncio.wait_for(self.backend.close(actor.handle, caller), CLOSE_TIMEOUT) for actor in self.ready if drain)
            await asyncio.gather(*closings, return_exceptions=True)
            await self._stop_actors()
        self._stop.set()

    async def _stop_actors(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        while self.ready:
            self.backend.kill(self.ready.pop().handle)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._supervise())

    async def _supervise(self) -> None:
        self._keepers = [asyncio.create_task(self._keep_running(number)) for number in range(self._config.actors)]
        await self._stop.wait()
        await self._stop_actors()
        with self._lock:
            self._ended = self._abandoned = True
        for _ in range(2):  # coroutines that were submitted before become tasks, and these tasks begin and see that all has ended
            await asyncio.sleep(0)


def delay_of(deaths: int) -> float:
    return 0.0 if deaths < 2 else min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (deaths - 2))


def closed() -> ClientClosed:
    return ClientClosed("the pool of scorers is closed; make a new one")
