"""@batch and BatchQueue as a user writes them. Checked by mypy and pyright, never run."""

# pyright: strict
from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import assert_type

from qreward.batching import BatchQueue, QueueStats, batch


@batch
async def upper(texts: list[str]) -> list[bytes]:
    return [text.encode() for text in texts]


@batch(max_batch_size=32, batch_wait_timeout_s=0.01, max_queue_size=None, timeout=30)
async def pair(prompts: list[str], lengths: list[int]) -> Sequence[float]:
    return [float(length) for _, length in zip(prompts, lengths, strict=True)]


@batch()
def blocking(numbers: list[int]) -> list[str]:
    return [str(number) for number in numbers]


@batch
async def tokens(prompts: Sequence[str]) -> AsyncIterator[list[int]]:
    yield [len(prompt) for prompt in prompts]


@batch
async def loose(*columns: list[int], scale: list[float]) -> list[float]:
    return [sum(row) * by for *row, by in zip(*columns, scale, strict=True)]


@batch
async def checked(texts: list[str]) -> list[float | Exception]:
    return [float(text) if text else ValueError("empty") for text in texts]


class Judge:
    @batch
    async def score(self, answers: list[str]) -> list[float]:
        return [float(len(answer)) for answer in answers]

    @batch(max_batch_size=8)
    async def compare(self, answers: list[str], references: list[str]) -> list[bool]:
        return [answer == reference for answer, reference in zip(answers, references, strict=True)]

    @batch
    async def write(self, prompts: list[str]) -> AsyncIterator[list[str]]:
        yield prompts

    @batch
    async def rewrite(self, prompts: list[str], lengths: list[int]) -> AsyncIterator[list[str]]:
        yield [prompt[:length] for prompt, length in zip(prompts, lengths, strict=True)]

    @staticmethod
    @batch
    async def fixed(numbers: list[int]) -> list[int]:
        return numbers


async def functions() -> None:
    assert_type(await upper("a"), bytes)
    assert_type(await pair("a", 1), float)
    assert_type(await blocking(1), str)
    assert_type(await checked("1.5"), float)
    async for token in tokens("a"):
        assert_type(token, int)
    assert_type(await loose(1, 2, scale=0.5), float)
    upper.set_max_batch_size(4)
    upper.set_batch_wait_timeout_s(0.5)
    upper.set_max_concurrent_batches(2)
    upper.change(timeout=None)
    assert_type(upper.stats(), QueueStats)
    await upper.close()


async def methods(judge: Judge) -> None:
    assert_type(await judge.score("a"), float)
    assert_type(await judge.compare("a", "b"), bool)
    assert_type(await Judge.score(judge, "a"), float)
    assert_type(await Judge.fixed(1), int)
    async for text in judge.write("a"):
        assert_type(text, str)
    judge.score.set_max_batch_size(4)


async def queues() -> None:
    async def double(numbers: list[int]) -> list[float]:
        return [2.0 * number for number in numbers]

    async with BatchQueue(double, max_batch_size=32, timeout=1) as queue:
        assert_type(await queue.submit(1, priority=0, timeout=2.5), float)
        assert_type(await queue.submit_many([1, 2], priority=0), list[float | BaseException])
    assert_type(queue.stats(), QueueStats)


async def wrong(judge: Judge) -> None:
    await upper(1)  # type: ignore[arg-type]  # pyright: ignore
    await pair("a")  # type: ignore[call-arg]  # pyright: ignore
    await judge.score(["a"])  # type: ignore[arg-type]  # pyright: ignore
    judge.rewrite("a", "b")  # type: ignore[arg-type]  # pyright: ignore
    batch(max_batch=3)  # type: ignore[call-overload]  # pyright: ignore
    BatchQueue(len, max_batch=3)  # type: ignore[call-arg, arg-type]  # pyright: ignore
