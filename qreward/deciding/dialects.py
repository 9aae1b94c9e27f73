"""Find the dialect of decisions of each endpoint of a model, by asking the endpoint a small decision in one dialect after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import Context
from math import inf
from typing import cast

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import Dialect
from qreward.codecs.decisions.chat import ChatDialect, label_ids, tokenize_call
from qreward.codecs.decisions.operation import NO_SUCH_PATH, OTHER_BODY, PROBE, TIMEOUT, Decide, key_of
from qreward.engine.background import report_error
from qreward.engine.driver import LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.errors import InvalidResponse
from qreward.scheduler.outcome import Answer, Failure
from qreward.scheduler.pool import Pool
from qreward.scheduler.task import Task
from qreward.settings.policies import Endpoint

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
        """Ask each endpoint once. Then wait until the dialect of one endpoint is known, all requests have ended, or the time is over."""
        changes, endpoints = self._changes, endpoints_of(pool)
        pending = self._ask(driver, endpoints, model)
        if pending and not self._any_known(endpoints, model):
            waits = {asyncio.wrap_future(probe.done) for probe in pending}
            until = driver.loop.time() + min(TIMEOUT, inf if seconds is None else seconds)
            while waits and not self._any_known(endpoints, model) and (left := until - driver.loop.time()) > 0:
                _, waits = await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if changes == self._changes and self._any_known(endpoints, model) and all(probe.done.done() for probe in pending):
            if len(self.most) >= MOST_MODELS:
                self.most.clear()
            self.most[model] = self.decide.most_questions(endpoints, model)

    def _ask(self, driver: LoopDriver, endpoints: Sequence[Endpoint], model: str) -> list[Probe]:
        """Start a probe for each endpoint that needs one. Returns the probes that have not ended."""
        pending = []
        with self._lock:
            any_known = self._any_known(endpoints, model)
            if len(self._probes) >= MOST_MODELS:
                self._probes = {key: probe for key, probe in self._probes.items() if not probe.done.done()}
            for endpoint in endpoints:
                if self.decide.is_certain(endpoint, model):
                    continue
                key = key_of(endpoint, model)
                probe = self._probes.get(key)
                if probe is None or (probe.done.done() and not any_known):
                    probe = self._probes[key] = Probe(driver, endpoint, model, self.decide)
                if not probe.done.done():
                    pending.append(probe)
        return pending

    def _any_known(self, endpoints: Sequence[Endpoint], model: str) -> bool:
        return any(self.decide.is_certain(endpoint, model) for endpoint in endpoints)


class Probe:
    """Asks one endpoint a small decision, in one dialect after the other, until it answers. It runs in a task of its own, so that no caller
    can cancel it."""

    def __init__(self, driver: LoopDriver, endpoint: Endpoint, model: str, decide: Decide) -> None:
        self._driver, self._endpoint, self._model, self._decide = driver, endpoint, model, decide
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # from now on no caller can cancel it
        self._key = key_of(endpoint, model)
        decide.pending[self._key] = self.done
        self._task = driver.loop.create_task(self._run(), context=Context())
        self._task.add_done_callback(report_error)
        self._task.add_done_callback(lambda _: self.abandon())
        driver.waiters[self] = None  # type: ignore[index]

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                why = await self._ask_all()
        except TimeoutError:
            why = f"did not answer within {TIMEOUT:g} s"
        if why:
            LOG.debug("endpoint %r, model %r: its dialect of decisions is not known: it %s", self._endpoint.name, self._model, why)

    async def _ask_all(self) -> str:
        """Remember the first dialect in which the endpoint answers. Returns why there is none; ``""`` if there is one."""
        missing: set[str] = set()  # paths that the server does not have
        why = ""
        for dialect in (rows := self._decide.to_try(self._endpoint)):
            if dialect.path in missing:
                continue
            self._decide.remember(self._endpoint, self._model, dialect, known=False)  # the next decision is sent in this dialect
            if isinstance(dialect, ChatDialect) and self._endpoint.kind == "vllm":
                exact = await self._exact(dialect)
                if exact is not None:
                    return self._found(exact)
            outcome = await self._send(WireRequest(dialect, self._model, PROBE, {}, None))
            if isinstance(outcome, Answer):
                return self._found(dialect)
            status = getattr(outcome.error, "status_code", None)
            why = f"failed with {type(outcome.error).__name__}" if status is None else f"answered {status}"
            if isinstance(dialect, ChatDialect) and (fewer := dialect.after(outcome.error)):
                rows.append(fewer)
            elif status in NO_SUCH_PATH:
                missing.add(dialect.path)
            elif status not in OTHER_BODY and not isinstance(outcome.error, InvalidResponse):
                return why
        self._decide.refused(self._endpoint, self._model)
        return why

    async def _exact(self, dialect: ChatDialect) -> ChatDialect | None:
        """Return the dialect with the ids of the labels' tokens, if the server tells the ids and the log probabilities of these tokens."""
        told = await self._send(tokenize_call(self._model))
        ids = label_ids(told.value.body) if isinstance(told, Answer) else {}
        exact = dialect.exact(ids)
        outcome = await self._send(WireRequest(exact, self._model, PROBE, {}, None)) if ids else None
        return exact if isinstance(outcome, Answer) and not outcome.value.table.errors else None

    async def _send(self, call: WireRequest) -> Answer | Failure:
        return await self._driver.backend.send(self._endpoint, call)

    def _found(self, dialect: Dialect) -> str:
        self._decide.remember(self._endpoint, self._model, dialect)
        LOG.debug("endpoint %r, model %r: speaks the dialect %r of decisions (answered)", self._endpoint.name, self._model, dialect.name)
        return ""

    # called by the loop driver

    def close(self) -> None:
        """Cancel the requests, because the client is closed."""
        self._task.cancel()

    def abandon(self) -> list[Task]:
        """End the probe, because its task has ended or its event loop was closed."""
        self._driver.waiters.pop(self, None)  # type: ignore[call-overload]
        self._decide.pending.pop(self._key, None)
        if not self.done.done():
            self.done.set_result(None)
        return []


def endpoints_of(pool: Pool) -> list[Endpoint]:
    """Return the endpoints of a pool."""
    return [cast("Endpoint", source.handle) for source in tuple(pool.sources)]
