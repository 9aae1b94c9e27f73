"""Find the dialect of decisions of each endpoint of a model, by asking the endpoint a small decision in one dialect after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, cast

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput
from qreward.codecs.decisions.chat import ChatDialect, label_ids, tokenize_call
from qreward.codecs.decisions.operation import PROBE, Decide, key_of
from qreward.engine.background import report_error
from qreward.engine.driver import LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.scheduler.outcome import Answer, Failure
from qreward.scheduler.pool import Pool
from qreward.scheduler.task import Task
from qreward.settings.policies import Endpoint

TIMEOUT = 10.0
"""Maximum seconds in which an endpoint is asked which dialect it uses."""
MOST_MODELS = 4096
"""Maximum number of models in ``DialectFinder.most``, and number of pairs of endpoint and model at which records of ended requests are
removed. There are limits because callers may use any number of names of models."""


class DialectFinder:
    """Finds the dialects of a client's endpoints."""

    def __init__(self) -> None:
        self.decide = Decide(self.changed)
        self.most: dict[str, int] = {}
        self._lock = threading.Lock()
        self._probes: dict[tuple[str, ...], Probe] = {}
        self._changes = 0

    def changed(self) -> None:
        """Forget ``most``, because endpoints, routes or known dialects have changed."""
        self._changes += 1
        self.most.clear()

    def most_questions(self, pool: Pool, model: str) -> int:
        """Return the largest number of questions in a request that every endpoint of a pool accepts."""
        known = self.most.get(model)
        return self.decide.most_questions(endpoints_of(pool), model) if known is None else known

    async def find(self, driver: LoopDriver, pool: Pool, model: str, seconds: float | None = None) -> None:
        """Ask each endpoint once, and wait until one has shown its dialect, all requests have ended, or the time is over: ``seconds``, but
        at most ``TIMEOUT``. If no endpoint has shown its dialect, later calls ask again."""
        changes, endpoints, probes = self._changes, endpoints_of(pool), list[Probe]()
        with self._lock:
            any_known = self._any_known(endpoints, model)
            if len(self._probes) >= MOST_MODELS:
                self._probes = {key: probe for key, probe in self._probes.items() if not probe.done.done()}
            for endpoint in endpoints:
                if not self.decide.is_certain(endpoint, model):
                    probe = self._probes.get(key := key_of(endpoint, model))
                    if probe is None or (probe.done.done() and not any_known):
                        probe = self._probes[key] = Probe(driver, endpoint, model, self.decide)
                    probes.append(probe)
        waits = {asyncio.wrap_future(probe.done) for probe in probes}
        until = driver.loop.time() + min(TIMEOUT, inf if seconds is None else seconds)
        while waits and not self._any_known(endpoints, model) and (left := until - driver.loop.time()) > 0:
            _, waits = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if changes == self._changes and self._any_known(endpoints, model) and all(probe.done.done() for probe in probes):
            if len(self.most) >= MOST_MODELS:
                self.most.clear()
            self.most[model] = self.decide.most_questions(endpoints, model)

    def _any_known(self, endpoints: Sequence[Endpoint], model: str) -> bool:
        return any(self.decide.is_certain(endpoint, model) for endpoint in endpoints)


class Probe:
    """Sends one endpoint a small decision, which shows its dialect. It runs in a task of its own, so that no caller can cancel it. ``done``
    has a result when the last request has ended."""

    def __init__(self, driver: LoopDriver, endpoint: Endpoint, model: str, decide: Decide) -> None:
        self._driver, self._endpoint, self._model, self._decide = driver, endpoint, model, decide
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # from now on no caller can cancel it
        self._task = driver.loop.create_task(self._run(), context=Context())
        self._task.add_done_callback(report_error)
        self._task.add_done_callback(lambda _: self.abandon())
        driver.waiters[self] = None  # type: ignore[index]

    async def _run(self) -> None:
        told = f"did not answer within {TIMEOUT:g} s"
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                outcome = await self._send(self._decide, PROBE)
                dialect = self._decide.known(self._endpoint, self._model)
                if isinstance(dialect, ChatDialect) and self._endpoint.kind == "vllm":
                    await self._find_label_ids(dialect)
                told = f"speaks the dialect {dialect.name!r}" if dialect else f"failed with {_named(outcome)}"
        LOG.debug("endpoint %r, model %r: asked for its dialect of decisions, it %s", self._endpoint.name, self._model, told)

    async def _find_label_ids(self, dialect: ChatDialect) -> None:
        """Remember the dialect with the ids of the labels' tokens, if the server tells the ids and their log probabilities."""
        told = await self._driver.backend.send(self._endpoint, tokenize_call(self._model))
        ids = label_ids(told.value.body) if isinstance(told, Answer) else {}
        exact = dialect.exact(ids)
        outcome = await self._send(exact, PROBE) if ids else None
        if isinstance(outcome, Answer) and not outcome.value.table.errors:
            self._decide.remember(self._endpoint, self._model, exact)

    async def _send(self, codec: Any, inputs: DecisionInput) -> Answer | Failure:
        return await self._driver.backend.send(self._endpoint, WireRequest(codec, self._model, inputs, {}, None))

    # called by the loop driver

    def close(self) -> None:
        """Cancel the requests, because the client is closed."""
        self._task.cancel()

    def abandon(self) -> list[Task]:
        """End the probe, because its task has ended or its event loop was closed."""
        self._driver.waiters.pop(self, None)  # type: ignore[call-overload]
        if not self.done.done():
            self.done.set_result(None)
        return []


def endpoints_of(pool: Pool) -> list[Endpoint]:
    return [cast("Endpoint", source.handle) for source in tuple(pool.sources)]


def _named(outcome: Answer | Failure) -> str:
    error = outcome.error if isinstance(outcome, Failure) else None
    return f"{type(error).__name__} ({getattr(error, 'status_code', None)})"
