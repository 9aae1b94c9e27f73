"""``SyncJudge``: the blocking interface of ``Judge``. It only forwards calls through the portal to the background thread."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.errors import ClientClosed
from qreward.judge.config import JudgeConfig
from qreward.judge.judge import Judge
from qreward.judge.types import Comparison, Item, Pair, Verdict
from qreward.options import DEFAULT
from qreward.results import BatchResult, Result
from qreward.settings.policies import Priority
from qreward.sync_client import SyncQRewardClient

if TYPE_CHECKING:
    from qreward.progress import Progress


class SyncJudge:
    """A judge whose methods block.

    Settings, results and errors are those of :class:`Judge`. See :class:`SyncQRewardClient` for the background thread that does the work
    and the effect of Ctrl-C.

    Args:
        client: the client that sends the requests.
        settings: the arguments of :class:`Judge`.

    Example:
        >>> from qreward import SyncQRewardClient
        >>> with SyncQRewardClient(["http://gpu-0:8000/v1"]) as client:
        ...     SyncJudge(client, model="judge-7b")
        <SyncJudge judge-7b>
    """

    def __init__(self, client: SyncQRewardClient | QRewardClient, **settings: Any) -> None:
        self._judge = Judge(_awaited(client), **settings)

    @classmethod
    def from_config(
        cls, client: SyncQRewardClient | QRewardClient, config: JudgeConfig | Mapping[str, Any], *, owns_client: bool = False
    ) -> SyncJudge:
        """Create a judge from its settings. See :meth:`Judge.from_config`."""
        return cls._over(Judge.from_config(_awaited(client), config, owns_client=owns_client))

    @classmethod
    def _over(cls, judge: Judge) -> SyncJudge:
        self = cls.__new__(cls)
        self._judge = judge
        return self

    def score(
        self,
        prompt: Any,
        response: Any,
        *,
        reference: Any = None,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Verdict:
        """Judge one response. See :meth:`Judge.score`."""
        return portal().call(
            self._judge.score, prompt, response, reference=reference, timeout=timeout, priority=priority, tenant=tenant, **fields
        )

    def compare(
        self,
        prompt: Any,
        first: Any,
        second: Any,
        *,
        reference: Any = None,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Comparison:
        """Judge which of two responses is better. See :meth:`Judge.compare`."""
        return portal().call(
            self._judge.compare, prompt, first, second, reference=reference, timeout=timeout, priority=priority, tenant=tenant, **fields
        )

    def batch_score(
        self,
        items: Iterable[Item] | AsyncIterable[Item],
        *,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        on_result: Callable[[Result[Verdict]], object] | None = None,
        progress: bool | Callable[[Progress], object] | None = None,
        keep_results: bool = True,
    ) -> BatchResult[Verdict]:
        """Judge many responses. See :meth:`Judge.batch_score`. The background thread reads the input and calls ``on_result``."""
        return portal().call(
            self._judge.batch_score,
            items,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
        )

    def batch_compare(
        self,
        pairs: Iterable[Pair] | AsyncIterable[Pair],
        *,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        on_result: Callable[[Result[Comparison]], object] | None = None,
        progress: bool | Callable[[Progress], object] | None = None,
        keep_results: bool = True,
    ) -> BatchResult[Comparison]:
        """Compare many pairs. See :meth:`Judge.batch_compare`. The background thread reads the input and calls ``on_result``."""
        return portal().call(
            self._judge.batch_compare,
            pairs,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
        )

    def close(self) -> None:
        """Close the judge's cache file, and the client if the judge owns it."""
        with contextlib.suppress(ClientClosed):  # at exit the portal has closed them already
            portal().call(self._judge.aclose)

    def __enter__(self) -> SyncJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # hidden from type checkers, so that they reject `async with`

        def __aenter__(self) -> None:
            raise TypeError("SyncJudge blocks: use `with`, or Judge with `async with`")

        __aexit__ = __aenter__

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncJudge._over, (self._judge,)

    def __repr__(self) -> str:
        return repr(self._judge).replace("<", "<Sync", 1)


def _awaited(client: SyncQRewardClient | QRewardClient) -> QRewardClient:
    return client._async if isinstance(client, SyncQRewardClient) else client
