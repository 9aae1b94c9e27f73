"""The openai SDK as it comes (httpx2)."""

from __future__ import annotations

from _harness import main
from _openai import openai_client

if __name__ == "__main__":
    main(openai_client(lambda: None))
