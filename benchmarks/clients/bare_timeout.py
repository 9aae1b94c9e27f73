"""Bare aiohttp + msgspec with ``asyncio.timeout`` around each call, as in most programs."""

from __future__ import annotations

from _harness import main
from bare import bare

if __name__ == "__main__":
    main(bare(timeout=600.0))
