"""The clients of the streaming benchmark. Their environments are those of the overhead benchmark."""

from __future__ import annotations

from overhead_clients import BARE, YARDSTICK, Client

SDK = "openai"

CLIENTS = (
    Client(BARE, "stream_bare.py"),
    Client("qreward-tokens", "stream_qreward_tokens.py"),
    Client("qreward-chunks", "stream_qreward_chunks.py"),
    Client("qreward-batch", "stream_qreward_batch.py"),
    Client(YARDSTICK, "stream_openai_aiohttp.py", "openai"),
    Client(SDK, "stream_openai_httpx2.py", "openai", share=0.6),
    Client("litellm-router", "stream_litellm_router.py", "litellm", share=0.4),
)
QUICK = (BARE, "qreward-tokens", "qreward-chunks", "qreward-batch")
