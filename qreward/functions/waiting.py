"""A switch for tests: nothing waits. Knows nothing of what would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Switch:
    """``off`` while functions are to wait for nothing."""

    off = False


@contextmanager
def no_waiting() -> Iterator[None]:
    """While it holds, decorated functions retry at once, ignore rate limits and are never hedged. All else is as it is set.

    For tests of code that uses decorated functions. It holds in all threads, for calls that begin meanwhile.

    Example:
        >>> from qreward import schedule
        >>> tries = []
        >>> @schedule(retry_times=3, retry_interval=60.0)
        ... def flaky():
        ...     tries.append(1)
        ...     return 1 / (len(tries) - 1)
        >>> with no_waiting():
        ...     flaky()
        1.0
    """
    before, Switch.off = Switch.off, True
    try:
        yield
    finally:
        Switch.off = before
