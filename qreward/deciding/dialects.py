"""Find the dialect of decisions of the endpoints of a model, before the first decision is sent to them."""

from __future__ import annotations

import asyncio
from contextvars import Context
from math import inf
from typing import cast

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import Dialect
from qreward.codecs.decisions.operation import PROBE, Decide
from qreward.engine.background import report_error
from qreward.engine.driver import LoopDriver
from qreward.engine.instrumentation import LOG
from qreward.engine.single import Single
from qreward.errors import BadRequest, InvalidResponse
from qreward.options import request_options
from qreward.scheduler.pool import Pool
from qreward.settings.policies import Endpoint

TIMEOUT = 10.0
"""Maximum seconds for the small decision that shows a dialect."""
MOST_MODELS = 4096
"""Maximum number of models in ``DialectFinder.most``. There is a limit because callers may use any number of names of models."""


class DialectFinder:
    """Finds and remembers the dialects of a client's endpoints. ``most`` has the largest number of questions in a request that all
    endpoints of a model accept, and ``works`` whether its servers answer with probabilities, as far as it is known."""

    def __init__(self) -> None:
        self.decide = Decide(self._learned)
        self.most: dict[str, int] = {}
        self.works: dict[str, bool] = {}
        self._asked: dict[tuple[LoopDriver, str], asyncio.Task[None]] = {}

    def changed(self) -> None:
        """Forget what is known of models, because endpoints or routes have changed."""
        self.most.clear()
        self.works.clear()

    def _learned(self, endpoint: Endpoint, model: str, dialect: Dialect) -> None:
        self.most.clear()
        LOG.debug("endpoint %r, model %r: speaks the dialect %r of decisions", endpoint.name, model, dialect.name)

    def most_questions(self, pool: Pool, model: str) -> int:
        known = self.most.get(model)
        return self.decide.most_questions(_endpoints_of(pool), model) if known is None else known

    async def find(self, driver: LoopDriver, pool: Pool, model: str, seconds: float | None = None, *, works: bool = False) -> None:
        """Send a small decision, unless an endpoint has shown its dialect, and wait for it, at most ``seconds`` or ``TIMEOUT``. Concurrent
        calls share it. The other endpoints show their dialect with their first decision. ``works`` sends it until ``works`` is known."""
        endpoints, key = _endpoints_of(pool), (driver, model)
        if (works and model not in self.works) or not any(self.decide.is_certain(endpoint, model) for endpoint in endpoints):
            if key not in self._asked:
                task = self._asked[key] = driver.loop.create_task(self._ask(driver, pool, model), context=Context())
                task.add_done_callback(report_error)
                task.add_done_callback(lambda _: self._asked.pop(key, None))
            await asyncio.wait([self._asked[key]], timeout=min(TIMEOUT, inf if seconds is None else seconds))
        if any(self.decide.is_certain(endpoint, model) for endpoint in endpoints):
            if len(self.most) >= MOST_MODELS:
                self.most.clear()
            self.most[model] = self.decide.most_questions(endpoints, model)

    async def _ask(self, driver: LoopDriver, pool: Pool, model: str) -> None:
        waiter, options = Single(driver), request_options({}, TIMEOUT)
        result = await waiter.result(options.task(WireRequest(self.decide, model, PROBE, {}, None), pool, waiter, 0))
        if len(self.works) >= MOST_MODELS:
            self.works.clear()
        if result.error is None or isinstance(result.error, BadRequest | InvalidResponse):
            self.works[model] = result.ok and not result.value.errors
            LOG.info("model %r: its servers %s decisions with probabilities", model, "answer" if self.works[model] else "do not answer")


def _endpoints_of(pool: Pool) -> list[Endpoint]:
    return [cast("Endpoint", source.handle) for source in tuple(pool.sources)]
