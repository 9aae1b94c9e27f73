"""A value, None or a function of the arguments in place of any failure."""

import asyncio

from qreward.utils import schedule


async def fail(number: int = 0) -> int:
    await asyncio.sleep(0.01)
    raise asyncio.TimeoutError("never")


value = schedule(retry_times=3, retry_interval=0.01, default_result=0)(fail)
none = schedule(retry_times=3, retry_interval=0.01, default_result=None)(fail)


@schedule(retry_times=3, retry_interval=0.01, default_result=lambda num: num)
async def of_arguments(num: int = 0) -> int:
    return await fail(num)


@schedule(retry_times=1000, retry_interval=0.01, timeout=0.2, default_result=0)
async def within(num: int = 0) -> int:
    return await fail(num)


@schedule(retry_times=10, timeout=5, default_result=0, exception_types=(TimeoutError,))
async def not_retried(num: int = 0) -> int:
    tries.append(num)
    raise ValueError("not retried")


tries: list[int] = []

if __name__ == "__main__":
    print([asyncio.run(function(5)) for function in (value, none, of_arguments, within, not_retried)], tries)
