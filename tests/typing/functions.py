"""What type checkers see of decorated functions: their own signatures, and what they can be asked. Checked, not run."""

from __future__ import annotations

from typing import assert_type

from qreward import ConfigWatcher, ScheduleConfig, ScheduleStats, schedule


@schedule(retry_times=3)
async def judge(answer: str, *, weight: float = 1.0) -> float:
    return len(answer) * weight


@schedule
def score(answer: str) -> int:
    return len(answer)


@schedule(ScheduleConfig(timeout=5.0))
def timed(answer: str) -> int:
    return len(answer)


class Verifier:
    @schedule(max_concurrency=2)
    async def verify(self, answer: str) -> bool:
        return bool(answer)

    @schedule(max_concurrency=2)
    def check(self, answer: str) -> bool:
        return bool(answer)


async def use() -> None:
    assert_type(await judge("42", weight=2.0), float)
    assert_type(score("42"), int)
    assert_type(timed("42"), int)
    assert_type(await Verifier().verify("42"), bool)
    assert_type(Verifier().check("42"), bool)
    assert_type(judge.stats(), ScheduleStats)
    assert_type(judge.config, ScheduleConfig)
    judge.reset()
    ConfigWatcher(judge, file="judge.yaml").poll_once()


async def misuse() -> None:
    await judge(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    score()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Verifier().check(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
