"""What a bulk run may cost. What is in flight is reserved at the most that it can cost, so that the limit is never passed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qreward.codecs.base import WireRequest
from qreward.codecs.chat import most_output
from qreward.errors import ConfigError
from qreward.results import Usage, dollars

MESSAGE_TOKENS = 16
"""Tokens that a chat template adds to a message, at most. OpenAI's adds 3, Llama 3's 5, with names and special tokens up to twice that."""

Price = tuple[float, float]
"""US dollars for a million prompt tokens and a million completion tokens."""


class Spent(NamedTuple):
    """Tokens, and US dollars (0.0 where no endpoint has a price)."""

    tokens: int = 0
    cost: float = 0.0


class SpendingLimit:
    """The limits of a run, what it has spent, and what is reserved.

    Args:
        max_cost: US dollars; None for no limit.
        max_tokens: prompt and completion tokens; None for no limit.
        price: the highest price of the endpoints; needed for ``max_cost``.

    Example:
        >>> budget = SpendingLimit(max_tokens=100)
        >>> budget.reserve(Spent(80)), budget.reserve(Spent(80))
        (True, False)
        >>> budget.settle(Spent(80), Spent(30))
        >>> budget.reserve(Spent(70)), budget.spent.tokens
        (True, 30)
    """

    def __init__(self, max_cost: float | None = None, max_tokens: int | None = None) -> None:
        self._max_cost, self._max_tokens = max_cost, max_tokens
        self.spent, self._reserved = Spent(), Spent()

    @property
    def is_limited(self) -> bool:
        return self._max_cost is not None or self._max_tokens is not None

    @property
    def is_idle(self) -> bool:
        """True if nothing is reserved, so that a request that does not fit now never will."""
        return self._reserved.tokens <= 0

    def reserve(self, most: Spent) -> bool:
        """Reserve what a request can cost at most. Returns False, and reserves nothing, if it might pass a limit."""
        tokens, cost = (spent + held + more for spent, held, more in zip(self.spent, self._reserved, most, strict=True))
        if (self._max_tokens is not None and tokens > self._max_tokens) or (self._max_cost is not None and cost > self._max_cost):
            return False
        self._reserved = Spent(self._reserved.tokens + most.tokens, self._reserved.cost + most.cost)
        return True

    def settle(self, reserved: Spent, spent: Spent) -> None:
        """Replace what was reserved for a request with what it cost."""
        self._reserved = Spent(self._reserved.tokens - reserved.tokens, self._reserved.cost - reserved.cost)
        self.spent = Spent(self.spent.tokens + spent.tokens, self.spent.cost + spent.cost)


def most_of(call: WireRequest, price: Price | None) -> Spent:
    """Return the most that one attempt of a request can cost. A token is at least one byte of text.

    Raises:
        ConfigError: the request does not limit its output.
    """
    output = most_output(call.params)
    if isinstance(call.inputs, list) and not output:
        raise ConfigError("it sets no max_tokens, so its cost has no limit; set max_tokens in the line, or for all lines with params")
    prompt = _bytes(call.inputs) + _bytes(call.params)
    return Spent(prompt + int(output), 0.0 if price is None else dollars(price, prompt, int(output)))


def _bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        return MESSAGE_TOKENS + sum(_bytes(key) + _bytes(each) for key, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return sum(map(_bytes, value))
    return 1


def spent_by(usage: Usage | None, price: Price | None, otherwise: Spent) -> Spent:
    """Return what a response cost by its usage; ``otherwise`` if the server reported none."""
    if usage is None or usage.prompt_tokens is None:
        return otherwise
    prompt, completion = usage.prompt_tokens, usage.completion_tokens or 0
    return Spent(prompt + completion, 0.0 if price is None else dollars(price, prompt, completion))
