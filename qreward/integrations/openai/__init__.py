"""The openai SDK, and other libraries built on it or on httpx, over a whole fleet.

``handler`` sends the requests of an SDK through a ``QRewardClient``, and ``responses`` builds the replies, errors and streams included.
Neither knows an HTTP library. ``transports`` connects them to httpx, httpx2 and the installed SDK.
"""

from qreward.integrations.openai.transports import (
    BASE_URL,
    Transport,
    async_http_client,
    async_openai_client,
    http_client,
    openai_client,
    transport,
)

__all__ = ["BASE_URL", "Transport", "async_http_client", "async_openai_client", "http_client", "openai_client", "transport"]
