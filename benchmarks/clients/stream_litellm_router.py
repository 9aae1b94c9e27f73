"""litellm's ``Router``, streaming, with one deployment for each endpoint and its default strategy (``simple-shuffle``)."""

from __future__ import annotations

from _harness import main
from litellm_router import router, streamed

if __name__ == "__main__":
    main(router(streamed))
