"""Clients of the installed openai SDK, of major version 2 or 3, over a ``QRewardClient``. The only file here that knows the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai

from qreward.integrations.openai import BASE_URL
from qreward.integrations.openai.transports import transport

if TYPE_CHECKING:
    from qreward.client import QRewardClient
    from qreward.sync_client import SyncQRewardClient


def async_openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.AsyncOpenAI:
    """An ``AsyncOpenAI`` whose requests go through a client; what is built on the SDK takes it as it takes any other.

    Args:
        client: it is not closed with what is made here.
        settings: ``priority``, ``hedge`` and ``tenant``, as in :func:`~qreward.integrations.openai.transport`.

    Example:
        >>> async def ask(client, messages):
        ...     async with async_openai_client(client) as sdk:
        ...         return await sdk.chat.completions.create(model="judge-7b", messages=messages)
    """
    return openai.AsyncOpenAI(base_url=BASE_URL, api_key=_KEY, http_client=async_http_client(client, **settings))


def openai_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> openai.OpenAI:
    """An ``OpenAI``, for code that does not await. See :func:`async_openai_client`."""
    return openai.OpenAI(base_url=BASE_URL, api_key=_KEY, http_client=http_client(client, **settings))


def async_http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """What the installed SDK takes as ``http_client``: an ``httpx.AsyncClient``, or from openai 3 on one of ``httpx2``.

    It sets no time limit, so that the ``timeout`` of the client is the one that counts, unless a request has its own.
    """
    return openai.DefaultAsyncHttpxClient(transport=transport(client, **settings), timeout=None)


def http_client(client: QRewardClient | SyncQRewardClient, **settings: Any) -> Any:
    """The same for code that does not await."""
    return openai.DefaultHttpxClient(transport=transport(client, **settings), timeout=None)


_KEY = "-"
"""The SDK wants one; the keys that are sent are those of the endpoints."""
