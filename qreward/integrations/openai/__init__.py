"""The openai SDK, and other libraries built on it or on httpx, over a whole fleet.

``request`` parses a request of the SDK, ``handler`` sends it through a ``QRewardClient``, and ``responses`` builds the response, errors and
streams included. These three know no HTTP library. ``transports`` connects them to httpx and httpx2, and ``sdk`` makes clients of the
installed SDK. ``qreward.chat_namespace``, which provides ``client.chat.completions.create``, needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qreward.integrations.openai.sdk import async_http_client as async_http_client
    from qreward.integrations.openai.sdk import async_openai_client as async_openai_client
    from qreward.integrations.openai.sdk import http_client as http_client
    from qreward.integrations.openai.sdk import openai_client as openai_client
    from qreward.integrations.openai.transports import Transport as Transport
    from qreward.integrations.openai.transports import transport as transport

BASE_URL = "http://qreward/v1"
"""``base_url`` for an SDK. The host name is never resolved or connected to."""

_HOME_OF = dict.fromkeys(("Transport", "transport"), "transports")
_HOME_OF |= dict.fromkeys(("async_http_client", "async_openai_client", "http_client", "openai_client"), "sdk")

__all__ = ["BASE_URL", "Transport", "async_http_client", "async_openai_client", "http_client", "openai_client", "transport"]


def __getattr__(name: str) -> Any:
    """Import on first access: every client has ``client.chat``, but few need httpx."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
