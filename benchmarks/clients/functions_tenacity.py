"""tenacity: retries only."""

from __future__ import annotations

import asyncio

from _functions import main, nothing, nothing_blocking, one_after_another, one_after_another_blocking
from tenacity import retry, stop_after_attempt, wait_random_exponential

if __name__ == "__main__":
    usual = retry(stop=stop_after_attempt(4), wait=wait_random_exponential(multiplier=1, max=60), reraise=True)
    main(
        {
            "async": lambda calls: asyncio.run(one_after_another(usual(nothing), calls)),
            "sync": lambda calls: one_after_another_blocking(usual(nothing_blocking), calls),
        }
    )
