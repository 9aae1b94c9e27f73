"""Find the dialect of decisions of each endpoint of a model, with one small request to each endpoint.

A dialect is the form in which an API takes questions and returns answers. Concurrent calls share these requests, also in several event
loops and threads. This module does not depend on the format of a dialect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import Context
from math import inf
from typing import cast

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.dialects import PROBE, DialectTable
from qreward.codecs.decisions.operation import Decide
from qreward.engine.background import report_error
from qreward.engine.driver import LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.errors import ClientClosed
from qreward.scheduler.outcome import Answer, Failure, FailureKind
from qreward.scheduler.state import Pool, Task
from qreward.settings.policies import Endpoint

TIMEOUT = 10.0
"""Maximum seconds that a request waits for an answer. An endpoint that does not answer is assumed to have the dialect of another
endpoint."""
MOST_MODELS = 4096
"""Maximum number of models in ``DialectFinder.most``, and number of pairs of endpoint and model at which records of ended requests are
removed. There are limits because callers may use any number of names of models."""

NEEDS_LABELS = "generative_scoring"
"""Name of a dialect that is never assumed. An endpoint uses this dialect only if the settings of the endpoint name it."""

ANY = "openai"
"""The ``kind`` of an endpoint whose settings do not name its server software."""

Key = tuple[str, str, str]
"""Name and base URL of an endpoint, and a model."""


class DialectFinder:
    """Finds and stores the dialects of a client's endpoints.

    Attributes:
        table: the dialects that are known.
        decide: the codec of the client's decisions.
        most: model -> largest number of questions in a request that all endpoints of the model accept. A model is added after all its
            endpoints were asked.
    """

    def __init__(self) -> None:
        self.table = DialectTable()
        self.decide = Decide(self.table, self.changed)
        self.most: dict[str, int] = {}
        self._lock = threading.Lock()
        self._probes: dict[Key, Probe] = {}
        self._changes = 0

    def changed(self) -> None:
        """Forget ``most``, because endpoints, routes or known dialects have changed."""
        self._changes += 1
        self.most.clear()

    def most_questions(self, pool: Pool, model: str) -> int:
        """Return the largest number of questions in a request that every endpoint of a pool accepts."""
        known = self.most.get(model)
        return self._most(endpoints_of(pool), model) if known is None else known

    async def find(self, driver: LoopDriver, pool: Pool, model: str, seconds: float | None = None) -> None:
        """Ask each endpoint once. Then wait until the dialect of one endpoint is known, all requests have ended, or the time is over.

        Args:
            driver: runs the requests.
            pool: the endpoints.
            model: the model.
            seconds: maximum time to wait. A value above ``TIMEOUT``, or None, counts as ``TIMEOUT``.
        """
        changes, endpoints = self._changes, endpoints_of(pool)
        pending = self._ask(driver, endpoints, model)
        if pending and not self._known(endpoints, model):
            waits = {asyncio.wrap_future(probe.done) for probe in pending}
            until = driver.loop.time() + min(TIMEOUT, inf if seconds is None else seconds)
            while waits and not self._known(endpoints, model) and (left := until - driver.loop.time()) > 0:
                _, waits = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if self._assume(endpoints, model) and all(probe.done.done() for probe in pending):
            self._settle(endpoints, model, changes)

    def _ask(self, driver: LoopDriver, endpoints: Sequence[Endpoint], model: str) -> list[Probe]:
        """Start a probe for each endpoint that needs one. Returns the probes that have not ended."""
        pending = []
        with self._lock:
            known = self._known(endpoints, model)
            if len(self._probes) >= MOST_MODELS:
                self._probes = {key: probe for key, probe in self._probes.items() if not probe.done.done()}
            for endpoint in endpoints:
                if endpoint.decisions is not None or self.table.known(endpoint, model) is not None:
                    continue
                key = endpoint.name, endpoint.base_url, model
                probe = self._probes.get(key)
                if probe is None or (probe.unreached and probe.done.done() and not known):
                    probe = self._probes[key] = Probe(driver, endpoint, model, self.table)
                if not probe.done.done():
                    pending.append(probe)
        return pending

    def _known(self, endpoints: Sequence[Endpoint], model: str) -> bool:
        return any(endpoint.decisions is not None or self.table.known(endpoint, model) is not None for endpoint in endpoints)

    def _assume(self, endpoints: Sequence[Endpoint], model: str) -> bool:
        """Assume that an endpoint without a known dialect has the dialect of another endpoint of the same kind.

        If no endpoint of the same kind has a known dialect and the kind is ``ANY``, the dialect of an endpoint of another kind is assumed.
        Returns False if no endpoint has a known dialect.
        """
        known: dict[str, str] = {}  # kind -> dialect
        for endpoint in endpoints:
            found = self.table.known(endpoint, model)
            name = endpoint.decisions or (None if found is None else found.name)
            if name is not None:
                known.setdefault(endpoint.kind, name)
        for endpoint in endpoints:
            if endpoint.decisions is None and self.table.known(endpoint, model) is None:
                name = known.get(endpoint.kind) or (next(iter(known.values()), None) if endpoint.kind == ANY else None)
                if name is not None and name != NEEDS_LABELS:
                    self.table.assume(endpoint, model, name)
                    LOG.debug("endpoint %r, model %r: taken to speak the dialect %r of decisions", endpoint.name, model, name)
        return bool(known)

    def _settle(self, endpoints: Sequence[Endpoint], model: str, changes: int) -> None:
        """Store the largest number of questions for a model in ``most``, because all endpoints of the model were asked."""
        if len(self.most) >= MOST_MODELS:
            self.most.clear()
        if changes == self._changes:
            self.most[model] = self._most(endpoints, model)

    def _most(self, endpoints: Sequence[Endpoint], model: str) -> int:
        return self.table.limits(endpoints, model)[0] if endpoints else 1


class Probe:
    """Sends one small request that shows the dialect of an endpoint. It runs in a task of its own, so that no caller can cancel it.

    Attributes:
        done: a future that has a result when the request has ended.
        unreached: True if the endpoint could not be reached.
    """

    def __init__(self, driver: LoopDriver, endpoint: Endpoint, model: str, table: DialectTable) -> None:
        self._driver, self._endpoint, self._model, self._table = driver, endpoint, model, table
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # from now on no caller can cancel it
        self.unreached = False
        self._task = driver.loop.create_task(self._run(), context=Context())
        self._task.add_done_callback(report_error)
        self._task.add_done_callback(lambda _: self._end())
        driver.waiters[self] = None  # type: ignore[index]

    async def _run(self) -> None:
        dialect = self._table.expected(self._endpoint, self._model)
        call = WireRequest(dialect, self._model, PROBE, {}, None)
        try:
            async with asyncio.timeout(TIMEOUT):
                outcome = await self._driver.backend.send(self._endpoint, call)
        except TimeoutError:
            self._log(f"did not answer within {TIMEOUT:g} s")
            return
        if isinstance(outcome, Answer):
            self._remember(dialect.name, "answered")
        elif outcome.dialect is not None:
            self._remember(outcome.dialect, f"refused {dialect.name!r}")
        else:
            self.unreached = outcome.kind is FailureKind.UNREACHABLE and not isinstance(outcome.error, ClientClosed)
            self._log(_described(outcome))

    def _remember(self, name: str, why: str) -> None:
        self._table.remember(self._endpoint, self._model, name)
        LOG.debug("endpoint %r, model %r: speaks the dialect %r of decisions (%s)", self._endpoint.name, self._model, name, why)

    def _log(self, why: str) -> None:
        LOG.debug("endpoint %r, model %r: its dialect of decisions is not known: it %s", self._endpoint.name, self._model, why)

    def _end(self) -> None:
        self._driver.waiters.pop(self, None)  # type: ignore[call-overload]
        if not self.done.done():
            self.done.set_result(None)

    # called by the loop driver

    def close(self) -> None:
        """Cancel the request, because the client is closed."""
        self._task.cancel()

    def abandon(self) -> list[Task]:
        """End the probe, because its event loop was closed."""
        self._end()
        return []


def endpoints_of(pool: Pool) -> list[Endpoint]:
    """Return the endpoints of a pool."""
    return [cast("Endpoint", source.handle) for source in tuple(pool.sources)]


def _described(failure: Failure) -> str:
    """Return a description of a failure, without the text of the server's response."""
    status = getattr(failure.error, "status_code", None)
    return f"failed with {type(failure.error).__name__}" if status is None else f"answered {status}"
