"""Retries of any exception, of named exceptions, and several tries of a call at once."""

import asyncio

from qreward.utils import schedule

tries: list[str] = []


@schedule(retry_times=5, retry_interval=0.01)
async def any_exception(number: int) -> int:
    tries.append("any")
    if tries.count("any") < 3:
        raise BaseException("not this time")
    return number


@schedule(retry_times=30, exception_types=(asyncio.TimeoutError, TimeoutError), retry_interval=0.01, speed_up_max_multiply=0)
async def named(number: int) -> int:
    tries.append("named")
    if tries.count("named") < 4:
        raise asyncio.TimeoutError("not this time")
    return number


@schedule(retry_times=30, default_result=0, retry_interval=0.01)
async def never(number: int) -> int:
    tries.append("never")
    await asyncio.sleep(0.02)
    raise BaseException("never")


@schedule(retry_times=1, retry_interval=0.01)
async def gives_up() -> None:
    raise BaseException("the last word")


if __name__ == "__main__":
    print(asyncio.run(any_exception(1)), asyncio.run(named(2)), asyncio.run(never(3)))
    print({name: tries.count(name) for name in ("any", "named", "never")})
    try:
        asyncio.run(gives_up())
    except BaseException as error:
        print(type(error).__name__, error)
