"""What a batched function has in a replica of Ray Serve: request contexts, a warning, and the accessors that Ray's users call."""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qreward.errors import InvalidResponse

_log = logging.getLogger("qreward")


def serve_context() -> Any:
    """Return the module ``ray.serve.context``, or None if this process does not use Ray Serve, or a version without request contexts."""
    module = sys.modules.get("ray.serve.context")
    return module if hasattr(module, "_set_batch_request_context") else None


def replica() -> Any:
    """Return the context of the replica in which this process runs, or None."""
    module = serve_context()
    return None if module is None else module._get_internal_replica_context()


def invalid_length(message: str) -> InvalidResponse:
    """Return the error of a list of the wrong length. In a process with Ray Serve, it is a ``RayServeException`` as well."""
    exceptions = sys.modules.get("ray.serve.exceptions")
    return InvalidResponse(message) if exceptions is None else _both(exceptions.RayServeException)(message)


@cache
def _both(base: type[Exception]) -> type[InvalidResponse]:
    return type("InvalidResponse", (InvalidResponse, base), {})


def warn_of_ongoing_requests(name: str, size: int, slots: int) -> None:
    """Log a warning if the replica does not receive enough requests at once to fill the batches."""
    context = replica()
    most = None if context is None else context._deployment_config.max_ongoing_requests
    if most is not None and most < size * slots:
        _log.warning(
            "%s: `max_batch_size` (%d) * `max_concurrent_batches` (%d) is larger than `max_ongoing_requests` (%d), so the replica never "
            "receives enough requests at once to fill its batches; set `max_ongoing_requests` to at least %d",
            *(name, size, slots, most, size * slots),
        )


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The times at which the running batches began, in seconds since the epoch."""

    start_times: Sequence[float]

    @property
    def num_requests(self) -> int:
        """The number of running batches."""
        return len(self.start_times)

    @property
    def min_start_time(self) -> float | None:
        return min(self.start_times, default=None)

    @property
    def mean_start_time(self) -> float | None:
        return sum(self.start_times) / len(self.start_times) if self.start_times else None

    @property
    def max_start_time(self) -> float | None:
        return max(self.start_times, default=None)


class Inspection:
    """The accessors that Ray Serve gives to a batched function, for one queue. They become attributes of the function."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def _get_max_batch_size(self) -> int:
        return self._queue.settings.max_batch_size  # type: ignore[no-any-return]

    def _get_batch_wait_timeout_s(self) -> float:
        return self._queue.settings.batch_wait_timeout_s  # type: ignore[no-any-return]

    def _get_curr_iteration_start_times(self) -> StartTimes:
        now = time.time()
        return StartTimes([now - (worker.clock() - batch.sent_at) for worker, batch in self._running()])

    async def _is_batching_task_alive(self) -> bool:
        """Return True until the queue is closed. No task can die: each batch has a task of its own."""
        return not self._queue.closed

    async def _get_handling_task_stack(self) -> str:
        """Return the stacks of the running batches."""
        text = io.StringIO()
        for _, batch in self._running():
            batch.task.print_stack(file=text)
        return text.getvalue()

    def _running(self) -> list[tuple[Any, Any]]:
        return [(worker, batch) for worker in self._queue.loop_workers() for batch in list(worker.batches)]


ACCESSORS = tuple(name for name in vars(Inspection) if name.startswith(("_get", "_is")))
