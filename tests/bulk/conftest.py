"""Bulks read and write files in threads, which know no virtual time. In these tests they do so in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    async def to_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return function(*arguments)

    if request.node.get_closest_marker("real_time") is None:
        monkeypatch.setattr(asyncio, "to_thread", to_thread)
