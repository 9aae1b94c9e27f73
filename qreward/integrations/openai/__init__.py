"""Sends the requests of the openai SDK, and of libraries built on it or on httpx, to all endpoints of a client.

The module ``handler`` sends the requests of an SDK through a ``QRewardClient``. ``responses`` builds the replies, including errors and
streams. These two modules import no HTTP library. ``transports`` connects them to httpx, httpx2 and the installed SDK.
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
