"""Clients of the installed openai SDK, of major version 2 or 3, over a ``QRewardClient``. Only this module knows the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai

from qreward.integrations.openai import BASE_URL
from qreward.integrations.openai.transports import transport

if TYPE_CHECKING:
    from qreward.client import QRewardClient
    from qreward.sync_client import SyncQRewardClient


def async_openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.AsyncOpenAI:
    """Return an ``AsyncOpenAI`` whose requests go through a client. Libraries built on the SDK accept it like any other.

    Args:
        client: the client. Closing the SDK's client does not close it.
        settings: ``priority``, ``hedge`` and ``tenant``, as in :func:`~qreward.integrations.openai.transport`.

    Example:
        >>> async def ask(client, messages):
        ...     async with async_openai_client(client) as sdk:
        ...         return await sdk.chat.completions.create(model="judge-7b", messages=messages)
    """
    return openai.AsyncOpenAI(base_url=BASE_URL, api_key=_KEY, http_client=async_http_client(client, **settings))


def openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.OpenAI:
    """Return an ``OpenAI``, for blocking code. See :func:`async_openai_client`."""
    return openai.OpenAI(base_url=BASE_URL, api_key=_KEY, http_client=http_client(client, **settings))


def async_http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """Return an ``http_client`` for the installed SDK: an ``httpx.AsyncClient``, or from openai 3 on an ``httpx2.AsyncClient``.

    It sets no timeout, so the ``timeout`` of the client applies unless a request has its own.
    """
    return openai.DefaultAsyncHttpxClient(transport=transport(client, **settings), timeout=None)


def http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """Return the same as :func:`async_http_client`, for blocking code."""
    return openai.DefaultHttpxClient(transport=transport(client, **settings), timeout=None)


_KEY = "-"
"""The SDK requires a key. Requests are sent with the keys of the endpoints."""
