"""The budget of a judge, and what the judge has spent: tokens, US dollars, and attempts whose cost no server reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from pydantic import BeforeValidator, model_validator

from qreward.engine import background
from qreward.errors import BudgetExceeded, ConfigError
from qreward.records import AttemptRecord, Usage
from qreward.results import dollars
from qreward.settings.base import Number, Policy

_log = logging.getLogger("qreward")

REPORTED = ("ok", "unreadable")
"""Outcomes of attempts whose tokens the server reported, if it reports tokens."""
UNPAID = ("overloaded", "quota", "unreachable", "unsuitable", "unsendable", "refused", "local")
"""Outcomes of attempts that no server has processed."""


class Budget(Policy):
    """The limits of what a judge may spend, in one process.

    Args:
        cost: US dollars, which needs ``Endpoint(price=...)``; None for no limit. An endpoint without a price costs nothing.
        tokens: prompt and completion tokens together; None for no limit.
    """

    cost: Annotated[float, BeforeValidator(Number(above=0))] | None = None
    tokens: Annotated[int, BeforeValidator(Number(whole=True, least=1))] | None = None

    @model_validator(mode="after")
    def _limited(self) -> Budget:
        if self.cost is None and self.tokens is None:
            raise ValueError("set cost (US dollars) or tokens")
        return self


class Spending:
    """Counts what a judge, which ``judge`` names, spends. Any thread may use it."""

    def __init__(self, judge: str, budget: Budget | None, prices: Mapping[str, tuple[float, float]]) -> None:
        if budget is not None and budget.cost is not None and not prices:
            raise ConfigError(
                "budget: a limit in US dollars needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, "
                "completion tokens)), or a budget of tokens"
            )
        self._judge, self.budget, self._prices = judge, budget, prices
        self._prompt = self._completion = self._tokens = self._unreported = self._answers = 0
        self._cost: float | None = None
        self._logged, self._silent = False, ""
        self._reset_lock()
        background.watch(self, Spending._reset_lock)

    def _reset_lock(self) -> object:
        """Make the lock, also in a forked child, where another thread may have held it."""
        self._lock = threading.Lock()
        return None

    @property
    def total(self) -> Usage:
        return Usage(self._prompt, self._completion, self._tokens, cost=self._cost, unreported=self._unreported)

    def paid(self, usage: Usage | None, endpoint: str | None, attempts: Sequence[AttemptRecord] | None = None) -> Usage | None:
        """Count an answer of an endpoint, or None, and the failed attempts before it, and return its usage with the cost."""
        if endpoint is not None and usage is None:
            self._silent = endpoint
        elif usage is not None and (price := self._prices.get(endpoint or "")) is not None:
            cost = dollars(price, usage.prompt_tokens or 0, usage.completion_tokens or 0)
            usage = msgspec.structs.replace(usage, cost=cost)
        if attempts and (lost := sum(each.outcome not in REPORTED and each.outcome not in UNPAID for each in attempts)):
            usage = msgspec.structs.replace(usage or Usage(), unreported=lost)
        if usage is not None:
            with self._lock:
                self._prompt += usage.prompt_tokens or 0
                self._completion += usage.completion_tokens or 0
                self._tokens += usage.tokens
                self._unreported += usage.unreported
                self._answers += usage.prompt_tokens is not None
                if usage.cost is not None:
                    self._cost = (self._cost or 0.0) + usage.cost
        return usage

    def exceeded(self) -> BudgetExceeded | None:
        """Return the error of a request that may not be sent any more; None while the budget lasts.

        An attempt whose cost was not reported counts as much as the mean answer.
        """
        if self.budget is None:
            return None
        share = 1 + self._unreported / max(1, self._answers)
        cost, tokens, said = (self._cost or 0.0) * share, self._tokens * share, ""
        if self.budget.cost is not None and cost >= self.budget.cost:
            said = f"${cost:.4g} of ${self.budget.cost:g}"
        elif self.budget.tokens is not None and tokens >= self.budget.tokens:
            said = f"{tokens:.0f} of {self.budget.tokens} tokens"
        why = f"the budget of the judge {self._judge} is spent ({said}), so no request is sent; raise budget"
        if self._silent:
            why = f"endpoint {self._silent!r} reported no tokens, so the budget of the judge {self._judge} cannot be kept; leave out budget"
        elif not said:
            return None
        error = BudgetExceeded(why)
        if not self._logged:
            self._logged = True
            _log.warning("%s", error)
        return error
