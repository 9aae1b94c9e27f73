"""Priorities of functions, by name and by number, and the queue by itself."""

import asyncio

from qreward.utils import schedule
from qreward.utils.scheduler import Priority, PriorityTaskQueue


@schedule(priority=Priority.HIGH, retry_times=0)
async def critical(number: int) -> str:
    return f"critical {number}"


@schedule(priority=7, retry_times=0)
async def background(number: int) -> str:
    return f"background {number}"


async def main() -> None:
    print(f"{Priority.HIGH} {Priority.NORMAL} {Priority.LOW}")
    print(await asyncio.gather(background(1), critical(1), background(2)))


def direct() -> None:
    queue = PriorityTaskQueue(starvation_threshold=60.0)
    queue.put("low", priority=Priority.LOW)
    queue.put("normal", priority=Priority.NORMAL)
    queue.put("normal, later")
    queue.put("high", priority=Priority.HIGH)
    print(queue.queue_size, end=": ")
    while not queue.is_empty:
        print(queue.get(), end="; ")
    print(queue.get(), queue.is_empty)


if __name__ == "__main__":
    asyncio.run(main())
    direct()
