"""A blocking function is retried as an async one is."""

import time

from qreward.utils import schedule

tries: list[int] = []


@schedule(retry_times=5, retry_interval=0.01)
def basic_retry(number: int = 0) -> int:
    time.sleep(0.01)
    tries.append(number)
    if len(tries) < 3:
        raise BaseException("not this time")
    return number


if __name__ == "__main__":
    print(basic_retry(5), len(tries) >= 3)
