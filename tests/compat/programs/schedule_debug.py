"""Debug logging changes nothing of what a call returns."""

import asyncio

from qreward.utils import schedule

tries: list[int] = []


@schedule(debug=True, retry_times=5, retry_interval=0.01)
async def logged(number: int = 0) -> int:
    tries.append(number)
    if len(tries) < 2:
        raise BaseException("not this time")
    return number


if __name__ == "__main__":
    print(asyncio.run(logged(6)))
