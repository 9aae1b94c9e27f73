"""The openai SDK with its default client (httpx2)."""

from __future__ import annotations

from _harness import main
from _openai import openai_client

if __name__ == "__main__":
    main(openai_client(lambda: None))
