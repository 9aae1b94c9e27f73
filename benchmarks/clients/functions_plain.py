"""No decorator: the cost of the measurement itself."""

from __future__ import annotations

import asyncio

from _functions import main, nothing, nothing_blocking, one_after_another, one_after_another_blocking

if __name__ == "__main__":
    main(
        {
            "async": lambda calls: asyncio.run(one_after_another(nothing, calls)),
            "sync": lambda calls: one_after_another_blocking(nothing_blocking, calls),
        }
    )
