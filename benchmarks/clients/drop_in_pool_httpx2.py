"""The openai SDK with its defaults: on ``httpx2``, over its own pools."""

from __future__ import annotations

from _drop_in import over_pools
from _harness import main

if __name__ == "__main__":
    main(over_pools(lambda: None))
