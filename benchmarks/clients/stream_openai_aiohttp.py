"""The openai SDK on its aiohttp client, streaming."""

from __future__ import annotations

from _harness import main
from _openai import openai_client, streamed
from openai import DefaultAioHttpClient

if __name__ == "__main__":
    main(openai_client(DefaultAioHttpClient, streamed))
