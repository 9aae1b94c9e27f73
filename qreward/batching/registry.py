"""The queues of one batched function: one for a function, one for each instance or class of a method.

Instances are held weakly: their queues go when they go.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from typing import Any

from qreward.batching.binding import Binder
from qreward.batching.desk import Desk
from qreward.batching.queue import BatchQueue
from qreward.batching.settings import Settings
from qreward.batching.work import Work

RECEIVERS = ("self", "cls")
"""Names of a first parameter that is no list."""


class Registry:
    """Finds the queue and binds the arguments of each call of a batched function.

    Args:
        function: the batch function.
        settings: see :class:`~qreward.batching.Settings`.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        self._function = function
        self._binder: Binder | None = None
        self._queues: dict[int, tuple[weakref.ref[Any], BatchQueue[Any, Any]]] = {}
        self._lock = threading.Lock()
        self.work = Work(function, settings, call=self._call, first_of=self._first_of)
        self._shared = BatchQueue.of(self.work)
        self.public: Any = None
        if first_parameter(function) in RECEIVERS:
            self._binder = Binder(function, bound=True)
        elif not defined_in_class(function):
            self._binder = Binder(function, bound=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Registry, (self._function, self.work.settings)

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """What gives the result of a call."""
        queue, values, shape = self._place(args, kwargs)
        return queue.answer(values, shape)

    def answers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """What gives the stream of a call."""
        queue, values, shape = self._place(args, kwargs)
        return queue.answers(values, shape)

    def desks(self) -> list[Desk]:
        """Those of all queues."""
        queues = [self._shared, *(queue for _, queue in list(self._queues.values()))]
        return [desk for queue in queues for desk in queue.desks()]

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BatchQueue[Any, Any], Any, Hashable]:
        binder = self._binder or self._find_out(args)
        values, shape = binder.values(args, kwargs)
        if not binder.bound:
            return self._shared, values, shape
        found = self._queues.get(id(values[0]))
        queue = self._make(values[0]) if found is None else found[1]
        return queue, values, shape if queue is not self._shared else (id(values[0]), shape)

    def _make(self, instance: Any) -> BatchQueue[Any, Any]:
        """A queue for an instance. One that cannot be held weakly shares a queue with others, but no batch."""
        queues, key = self._queues, id(instance)
        try:
            held = weakref.ref(instance, lambda _: queues.pop(key, None))
        except TypeError:
            return self._shared
        with self._lock:
            return queues.setdefault(key, (held, BatchQueue.of(self.work)))[1]

    def _find_out(self, args: tuple[Any, ...]) -> Binder:
        """A function defined in a class, with a first parameter of an unusual name: a method, unless it is a static one."""
        with self._lock:
            if self._binder is None:
                self._binder = Binder(self._function, bound=bool(args) and self._belongs_to(args[0]))
            return self._binder

    def _belongs_to(self, thing: Any) -> bool:
        kind = thing if isinstance(thing, type) else type(thing)
        members = [value for base in kind.__mro__ for value in vars(base).values()]
        return any(value is self.public or (isinstance(value, classmethod) and value.__func__ is self.public) for value in members)

    def _call(self, rows: list[Any]) -> Any:
        assert self._binder is not None
        return self._binder.spread(rows)

    def _first_of(self, row: Any) -> Any:
        assert self._binder is not None
        return self._binder.first(row)


def first_parameter(function: Callable[..., Any]) -> str | None:
    """Its name."""
    code = getattr(function, "__code__", None)
    return code.co_varnames[0] if code is not None and code.co_argcount else None


def defined_in_class(function: Callable[..., Any]) -> bool:
    """Whether the definition stands in the body of a class."""
    outer = getattr(function, "__qualname__", "").rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>")
