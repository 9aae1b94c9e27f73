"""The openai SDK on ``httpx``, over pools of the same size as its default ones."""

from __future__ import annotations

import httpx
from _drop_in import over_pools
from _harness import main
from openai import DEFAULT_CONNECTION_LIMITS as SIZE

LIMITS = httpx.Limits(max_connections=SIZE.max_connections, max_keepalive_connections=SIZE.max_keepalive_connections)

if __name__ == "__main__":
    main(over_pools(lambda: httpx.AsyncClient(limits=LIMITS)))
