"""The openai SDK on ``httpx2`` over our transport."""

from __future__ import annotations

import httpx2
from _drop_in import over_fleet
from _harness import main

if __name__ == "__main__":
    main(over_fleet(lambda transport: httpx2.AsyncClient(transport=transport)))
