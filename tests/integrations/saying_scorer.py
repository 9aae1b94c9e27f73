"""A scorer that needs no network: it gives the number that a response says, and fails where it says none."""

from __future__ import annotations

import asyncio
from typing import Any

from qreward.errors import QRewardError, RateLimited
from qreward.integrations.trainers import RewardConfig, Rewarder
from qreward.judge.types import Verdict, Vote
from qreward.results import Usage


class SayingScorer:
    """Scores ``"0.5"`` as 0.5; any other text is an endpoint that limits. Remembers what it was asked.

    Args:
        attributes: of each verdict.
    """

    def __init__(self, attributes: dict[str, float] | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.closed = False
        self.in_flight = self.peak = 0
        self._attributes = attributes

    async def score(
        self, prompt: Any, response: Any, *, reference: Any = None, timeout: float = 0, priority: int = 0, **fields: Any
    ) -> Verdict:
        self.asked.append({"prompt": prompt, "response": response, "reference": reference, **fields})
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        try:
            score = float(response)
        except ValueError:
            raise self.error() from None
        return Verdict(score, (Vote(score, text=response),), self._attributes, Usage(total_tokens=7))

    def error(self) -> QRewardError:
        return RateLimited("429 at the endpoint 'judge'", endpoint="judge")

    async def aclose(self) -> None:
        self.closed = True


def made_of(scorer: Any, deadline: float = 5.0, **settings: Any) -> Rewarder:
    """A rewarder with these settings; who judges is the scorer, whatever they say."""
    config = RewardConfig(**({"reward_model": "rm"} if not {"judge", "reward_model"} & settings.keys() else {}), **settings)
    return Rewarder(scorer, deadline, config=config)
