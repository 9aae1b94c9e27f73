"""What endpoints say of when to come back: heeded within reason, and no more believed than what they do."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from engine_tools import MODEL, FakeWire, Said, broken, chats, client_of, now

from qreward import Endpoint, Retry
from qreward.errors import ConnectionFailed, InvalidResponse, RateLimited
from qreward.scheduler.outcome import Answer, Failure, FailureKind, RateLimit, RateLimitInfo


def overloaded(hint: float | None, limits: RateLimitInfo | None = None) -> Failure:
    return Failure(FailureKind.OVERLOADED, RateLimited("slow down", status_code=429), retry_after=hint, limits=limits)


def endpoints(names: str) -> list[Endpoint]:
    return [Endpoint(f"http://{name}.example/v1", name=name) for name in names]


async def test_an_absurd_retry_after_holds_up_a_batch_for_a_minute_and_the_endpoint_says_so() -> None:
    for retry, most in ((Retry(), 60.0), (Retry(max_retry_after=5), 5.0)):
        turned_away = 0

        async def script(_: str, prompt: str) -> Any:
            nonlocal turned_away
            await asyncio.sleep(0.1)
            if prompt == "40" and not turned_away:
                turned_away += 1
                return overloaded(1e7)
            return f"re: {prompt}"

        began = now()
        async with client_of(FakeWire(script), endpoints("a"), retry=retry) as client:
            running = asyncio.ensure_future(client.batch_chat_completion(chats(100), MODEL, timeout=None))
            await asyncio.sleep(2)
            state = client.stats()["a"].state
            batch = await running
        assert state is not None
        assert state.obstacle == "it turned requests away; it asked for 1e+07 s, which max_retry_after shortens"
        assert batch.stats.ok == 100
        assert most < now() - began < most + 20


class Chaos:
    """Answers most requests; some are turned away, and some of these rejects say that no token is left for six minutes."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)

    async def __call__(self, name: str, prompt: str) -> Any:
        chance = self._rng.random()
        if chance < 0.05:
            await asyncio.sleep(0.005)
            told = RateLimitInfo(tokens=RateLimit(None, 0, 360.0)) if self._rng.random() < 0.7 else None
            return overloaded(1.0, told)
        if chance < 0.2:
            error = self._rng.choice([InvalidResponse("it is no JSON"), ConnectionFailed("the connection broke")])
            return broken(name) if self._rng.random() < 0.3 else Failure(FailureKind.TRANSIENT, error)
        await asyncio.sleep(0.05)
        return Answer(Said(f"re: {prompt}"), 10, 20)


async def test_rejects_that_say_nothing_is_left_do_not_stop_a_batch_that_the_server_goes_on_serving() -> None:
    """One in twenty is turned away for a second. It took 1,000 to 3,000 s."""

    seconds, words = [], set()
    for seed in range(7):
        began = now()
        async with client_of(FakeWire(Chaos(seed)), endpoints("a")) as client:
            running = asyncio.ensure_future(client.batch_chat_completion(chats(300), MODEL, timeout=None))
            while not running.done():
                await asyncio.sleep(0.5)
                state = client.stats()["a"].state
                assert state is not None
                words.add(state.obstacle)
            batch = await running
        assert len(batch.errors) <= 2  # an item may fail four times
        seconds.append(now() - began)
    assert sorted(seconds)[3] < 60
    assert max(seconds) < 120
    assert not [text for text in words if "inf" in text]
    assert "no tokens left, as it says itself" in words
