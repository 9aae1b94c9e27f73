"""stamina: retries only, on top of tenacity; with a time limit after which it does not try again."""

from __future__ import annotations

import asyncio

import stamina
from _functions import main, nothing, nothing_blocking, one_after_another, one_after_another_blocking

if __name__ == "__main__":
    usual = stamina.retry(on=Exception, attempts=4, timeout=60.0)
    main(
        {
            "async": lambda calls: asyncio.run(one_after_another(usual(nothing), calls)),
            "sync": lambda calls: one_after_another_blocking(usual(nothing_blocking), calls),
        }
    )
