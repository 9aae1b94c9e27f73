"""Anything at once, from a seed: callers who leave, times that end, batches given up, answers that fail. Nothing is lost or made up."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

from judge_tools import JudgeBackend, Sent, broken, endpoint, judging, overloaded, refused, score
from scale import seeds

from qreward.errors import QRewardError
from qreward.judge import Judge
from qreward.results import BatchInterrupted

KINDS = 7


class Chaos:
    """What happens is drawn from a seed; the score of a candidate is the number that it is."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.takes_schema = self.rng.random() < 0.7
        self.seen: Counter[str] = Counter()

    async def answer(self, sent: Sent) -> Any:
        rng = self.rng
        await asyncio.sleep(rng.choice([0.0, 0.1, 1.0, rng.expovariate(1.0), 30.0 if rng.random() < 0.1 else 0.5]))
        if "response_format" in sent.params and not self.takes_schema:
            return refused("response_format is not supported")
        drawn = rng.random()
        if drawn < 0.1:
            return "no verdict"
        if drawn < 0.2:
            return rng.choice([broken(), overloaded(), overloaded(0.5), refused("no")])
        return score(int(sent.question.split("Candidate answer:\n```\n")[1].split("\n")[0]))

    def item(self) -> tuple[str, str]:
        return "q", str(self.rng.randrange(KINDS))

    async def single(self, judge: Judge) -> None:
        prompt, response = self.item()
        timeout = self.rng.choice([None, 0.5, 3.0, 60.0])
        try:
            verdict = await judge.score(prompt, response, timeout=timeout)
        except QRewardError as error:
            self.seen[type(error).__name__] += 1
        else:
            assert verdict.score == int(response) / 10, (verdict, response)
            self.seen["verdict"] += 1

    async def batch(self, judge: Judge) -> None:
        items = [self.item() for _ in range(self.rng.randrange(1, 40))]
        timeout, deadline = self.rng.choice([None, 2.0, 60.0]), self.rng.choice([None, None, 1.0, 20.0])
        clumsy = self.rng.random() < 0.2

        def told(_result: Any) -> None:
            if clumsy and self.rng.random() < 0.2:
                raise LookupError("clumsy")

        try:
            batch: Any = await judge.batch_score(items, timeout=timeout, deadline=deadline, on_result=told)
            assert len(batch) == len(items)
        except BatchInterrupted as error:
            batch = error.results
        for result in batch:
            assert not result.ok or result.value.score == int(items[result.index][1]) / 10
            self.seen["verdict" if result.ok else type(result.error).__name__] += 1

    async def run(self, judge: Judge) -> None:
        rng = self.rng
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(self.batch(judge) if rng.random() < 0.15 else self.single(judge)))
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.05, 0.5]))
            if rng.random() < 0.2:
                rng.choice(tasks).cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome


def test_whatever_happens_each_gets_its_own_verdict_or_error_and_nothing_is_left() -> None:
    for seed in seeds(20):
        chaos = Chaos(seed)
        backend, rng = JudgeBackend(chaos.answer), chaos.rng
        fleet = [endpoint(name, slots=rng.randrange(1, 6), models=models) for name, models in (("a", ["m*"]), ("b", ["m*"]), ("n", ["n"]))]
        models = rng.choice([("m1",), ("m1", "m2"), ("m1", "n")])
        try:
            judging(
                backend, chaos.run, *fleet, model=models, samples=rng.randrange(1, 4), settle=rng.choice(["majority", "mean", "median"])
            )
            assert backend.now == 0
            assert chaos.seen["verdict"] > 0
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
