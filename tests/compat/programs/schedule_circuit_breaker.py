"""The breaker opens after failures, rejects calls with a ``RuntimeError``, and lets one through after a while."""

import asyncio

from qreward.utils import schedule

service = {"up": False}


@schedule(circuit_breaker_threshold=3, circuit_breaker_recovery=0.3, retry_times=0, default_result="fallback")
async def call(number: int) -> str:
    if not service["up"]:
        raise ConnectionError("not available")
    return f"success {number}"


async def main() -> None:
    for number in range(5):
        try:
            print(await call(number))
        except RuntimeError:
            print("blocked")
    service["up"] = True
    await asyncio.sleep(0.4)
    print(await call(99))


if __name__ == "__main__":
    asyncio.run(main())
