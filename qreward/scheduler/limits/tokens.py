"""Token accounting for sources with a token limit.

An estimate is reserved when a task is sent, and corrected when it is answered. The tokens of the prompt are estimated from its size, scaled
by the error of earlier estimates; the tokens of the output are the mean of earlier answers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.scheduler.outcome import Answer
    from qreward.scheduler.task import Attempt

FIRST_OUTPUT = 256.0
"""Number of output tokens that an answer is expected to have until the first answer has come."""


class TokenEstimator:
    def __init__(self, estimate: Callable[[Any], tuple[float, float]] | None) -> None:
        self._estimate = estimate
        self._scale = 1.0  # real prompt tokens divided by estimated prompt tokens, moving average
        self._output: float | None = None  # output tokens of an answer, moving average

    def reserve(self, now: float, attempt: Attempt) -> None:
        limit = attempt.source.tokens
        assert limit is not None
        prompt, most = self._estimate(attempt.task.payload) if self._estimate else (0.0, 0.0)
        expected = FIRST_OUTPUT if self._output is None else self._output
        reserved = attempt.source.reserved and most
        attempt.prompt = prompt
        attempt.cost = prompt * self._scale + (most if reserved else min(expected, most or inf))
        limit.take(now, attempt.cost)

    def settle(self, attempt: Attempt, answer: Answer | None) -> None:
        """Correct the charge of an ended attempt by the tokens that the answer reports. Without an answer, return the whole charge."""
        limit = attempt.source.tokens
        if limit is None or not attempt.cost:  # nothing was charged, because there was no limit when it was sent
            return
        limit.settle(attempt.cost, 0.0 if answer is None else self._used(attempt, answer), attempt.sent_at)

    def _used(self, attempt: Attempt, answer: Answer) -> float:
        """Return the tokens to charge for an answer, and update the estimates."""
        used_prompt, used_output = answer.prompt_tokens, answer.output_tokens
        if used_prompt is None or used_output is None:
            return attempt.cost
        self._output = used_output if self._output is None else self._output + 0.1 * (used_output - self._output)
        if attempt.prompt:
            self._scale += 0.1 * (used_prompt / attempt.prompt - self._scale)
        return attempt.cost if attempt.source.reserved else used_prompt + used_output
