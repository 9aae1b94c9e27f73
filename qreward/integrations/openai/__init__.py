"""The openai SDK, and whatever is built on it or on httpx, over the whole fleet; and a client that looks like the SDK's.

``asked`` reads a request of the SDK, ``exchange`` puts it to a ``QRewardClient``, ``replies`` are what comes back, errors included, and
``events`` the answers that come in pieces: these four know no HTTP library. ``transports`` is where httpx and httpx2 plug in, ``sdk`` makes
clients of the installed SDK, and ``facade`` is ``client.chat.completions.create``, which needs neither.
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
"""What to give an SDK as ``base_url``. Nothing is looked up or connected to by this name."""

_HOME_OF = dict.fromkeys(("Transport", "transport"), "transports")
_HOME_OF |= dict.fromkeys(("async_http_client", "async_openai_client", "http_client", "openai_client"), "sdk")

__all__ = ["BASE_URL", "Transport", "async_http_client", "async_openai_client", "http_client", "openai_client", "transport"]


def __getattr__(name: str) -> Any:
    """Loaded when first asked for: every client has the facade, few need httpx."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
