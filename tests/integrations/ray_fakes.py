"""A Ray of threads: actors that can be killed at any moment, so that what a pool makes of it is tested without a cluster."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

NAMES: tuple[str, ...] = ("NodeDiedError", "WorkerCrashedError", "OutOfMemoryError", "ObjectLostError", "LocalRayletDiedError")
NAMES += ("RuntimeEnvSetupError", "ActorUnschedulableError", "TaskCancelledError")


class RayActorError(Exception):
    def __init__(self, text: str = "", actor_init_failed: bool = False, preempted: bool = False) -> None:
        super().__init__(text)
        self.actor_init_failed, self.preempted = actor_init_failed, preempted


ERRORS = SimpleNamespace(RayActorError=RayActorError, **{name: type(name, (Exception,), {}) for name in NAMES})
_HERE: ContextVar[FakeActor] = ContextVar("_HERE")


def here() -> FakeActor:
    """The actor whose call this is."""
    return _HERE.get()


class Reference:
    """An ObjectRef."""

    def __init__(self, actor: FakeActor, name: str) -> None:
        self.actor, self.name = actor, name
        self.outcome: Future[Any] = Future()
        self.task: asyncio.Task[Any] | None = None

    def future(self) -> Future[Any]:
        return self.outcome

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        if not self.outcome.done():
            if error is None:
                self.outcome.set_result(value)
            else:
                self.outcome.set_exception(error)


class FakeActor:
    """A process, as far as anybody can tell from outside."""

    def __init__(self, ray: FakeRay, kind: type, options: dict[str, Any], args: tuple[Any, ...]) -> None:
        self.ray, self.kind, self.options = ray, kind, options
        self.number = len(ray.actors)
        self.open: set[Reference] = set()
        self.death: RayActorError | None = None
        self.lock = threading.RLock()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._turn, daemon=True).start()
        ray.actors.append(self)
        self.host: Any = None
        self.made = threading.Event()
        threading.Thread(target=self._make, args=(args,), daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    @property
    def busy(self) -> int:
        """Batches on it."""
        with self.lock:
            return sum(reference.name == "run" and reference.task is not None for reference in self.open)

    def die(self, text: str = "", **how: Any) -> None:
        """Be gone, now, with all that was under way."""
        with self.lock:
            if self.death is not None:
                return
            self.death = RayActorError(f"The actor died.\n  pid: 7\n{text or 'its worker process has died.'}", **how)
            lost, self.open = self.open, set()
        for reference in lost:
            reference.settle(error=self.death)
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _make(self, args: tuple[Any, ...]) -> None:
        try:
            self.ray.gate.wait(60)
            self.host = self.kind(*args)
        except Exception as error:
            self.die(f"{type(error).__name__}: {error}", actor_init_failed=True)
        self.made.set()

    def _turn(self) -> None:
        self.loop.run_forever()
        while tasks := asyncio.all_tasks(self.loop):  # a batch in a thread ends with the thread
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.close()

    def _call(self, name: str, args: tuple[Any, ...]) -> Reference:
        args = pickle.loads(pickle.dumps(args)) if name == "run" else args
        reference = Reference(self, name)
        with self.lock:
            if self.death is not None:
                reference.settle(error=self.death)
                return reference
            self.open.add(reference)
        threading.Thread(target=self._begin, args=(reference, name, args), daemon=True).start()
        return reference

    def _begin(self, reference: Reference, name: str, args: tuple[Any, ...]) -> None:
        self.made.wait(60)
        _HERE.set(self)
        with self.lock:
            if self.death is not None:
                return
            self.loop.call_soon_threadsafe(self._run, reference, getattr(self.host, name), args)

    def _run(self, reference: Reference, call: Any, args: tuple[Any, ...]) -> None:
        reference.task = self.loop.create_task(call(*args))
        reference.task.add_done_callback(lambda task: self._ended(reference, task))

    def _ended(self, reference: Reference, task: asyncio.Task[Any]) -> None:
        with self.lock:
            self.open.discard(reference)
            if self.death is not None:
                return
        if task.cancelled():
            reference.settle(error=ERRORS.TaskCancelledError("cancelled"))
        elif (error := task.exception()) is not None:
            reference.settle(error=error)
        else:
            reference.settle(task.result())


class FakeRay(ModuleType):
    """The module.

    Attributes:
        actors: all that were ever made.
        gate: no actor is ready before it is set.
        cancelled: references that were asked to be cancelled.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = ERRORS
        self.actors: list[FakeActor] = []
        self.cancelled: list[Reference] = []
        self.connected = True
        self.gate = threading.Event()
        self.gate.set()

    def is_initialized(self) -> bool:
        return self.connected

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            return SimpleNamespace(remote=lambda *args: FakeActor(self, kind, given, args))

        return SimpleNamespace(options=options)

    def kill(self, actor: FakeActor) -> None:
        actor.die("it was killed by ray.kill")

    def cancel(self, reference: Reference) -> None:
        self.cancelled.append(reference)
        if reference.task is not None:
            reference.actor.loop.call_soon_threadsafe(reference.task.cancel)

    @property
    def living(self) -> list[FakeActor]:
        return [actor for actor in self.actors if actor.death is None]


def installed(monkeypatch: Any) -> Iterator[FakeRay]:
    """Ray, for the time of a test."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.cloudpickle", pickle)
    yield ray
    ray.gate.set()
    for actor in ray.actors:
        actor.made.wait(60)
        actor.die("the test is over")
