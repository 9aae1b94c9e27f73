"""``KeyedTransport``: adds an API key that expires to each request."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from qreward.codecs.base import TransportError
from qreward.settings.base import check_header
from qreward.settings.policies import ApiKey
from qreward.transport.base import Body, ByteStream, HttpTransport

AHEAD = 0.1
"""Share (0 to 1) of the lifetime of a key. So long before its end, a new key is obtained."""
LONGEST = 60.0
"""Maximum number of seconds that a command may take."""


class KeyedTransport(HttpTransport):
    """Sends requests with the present key. A request that is refused (401) is sent once more if another key can be obtained."""

    def __init__(self, inner: HttpTransport, key: ApiKey) -> None:
        self._inner, self._key, self.cap = inner, key, inner.cap

    async def begin(self, method: str, path: str, body: Body, headers: Mapping[str, str] | None) -> ByteStream:
        def send(key: str) -> Coroutine[Any, Any, ByteStream]:
            return self._inner.begin(method, path, body, {"Authorization": f"Bearer {key}", **(headers or {})})

        stream = await send(key := await self._current())
        if stream.status == 401 and (body is None or isinstance(body, bytes)) and (new := await self._current(key)) != key:
            await stream.aclose()
            stream = await send(new)
        return stream

    async def _current(self, refused: str | None = None) -> str:
        try:
            return await current_key(self._key, refused)
        except Exception as error:  # its text may hold secrets
            failure = TransportError(f"no API key: {self._key!r} failed with {type(error).__name__}", sent=False)
        raise failure

    async def aclose(self) -> None:
        await self._inner.aclose()


async def current_key(key: ApiKey, refused: str | None = None) -> str:
    """Return the key, after it was obtained if needed, or if the server has ``refused`` it. Raises what the function raises."""
    state, before = key.state, key.state.count
    while True:
        with state.lock:
            if state.keys and monotonic() < state.until and (state.keys[-1] != refused or state.count > before):
                return state.keys[-1]
            pending, mine = state.pending, state.pending is None
            if pending is None:
                pending = state.pending = Future()
        if mine:
            await _obtain(key, pending)
            continue
        await asyncio.wait([asyncio.wrap_future(pending)])
        if (error := pending.exception()) is not None:
            raise error


async def _obtain(key: ApiKey, pending: Future[None]) -> None:
    """Obtain a key and end ``pending``. If the caller is cancelled, one of those that wait obtains the key."""
    state, source, failure, text = key.state, key.source, None, ""
    found: Any
    try:
        if callable(source):
            found = await asyncio.to_thread(source)  # the call of an async function only creates its coroutine
        else:
            run = partial(subprocess.run, capture_output=True, text=True, check=True, timeout=LONGEST, stdin=subprocess.DEVNULL)
            found = (await asyncio.to_thread(run, source)).stdout
        text = (await found if inspect.isawaitable(found) else found).strip()
        check_header("authorization", text or "\n")
    except Exception as error:
        text, failure = "", error
        raise
    finally:
        with state.lock:
            state.pending = None
            if text:
                state.keys.append(text)
                state.count += 1
                state.until = inf if key.seconds is None else monotonic() + (1 - AHEAD) * key.seconds
        pending.set_result(None) if failure is None else pending.set_exception(failure)
