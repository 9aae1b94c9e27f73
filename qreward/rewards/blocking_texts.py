"""The calls for legacy completions and moderations, for code that does not await. What they mean stands with ``texts``."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qreward.arguments import DEFAULT
from qreward.engine.portal import portal
from qreward.policies import Priority
from qreward.results import BatchResult

if TYPE_CHECKING:
    from openai.types import CompletionChoice, Moderation

    from qreward.client import OnProgress, OnResult, QRewardClient


class SyncTextCalls:
    """The part of ``SyncQRewardClient`` for texts that are no conversations."""

    _client: QRewardClient

    def text_completion(
        self,
        prompt: str | Iterable[int],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> list[CompletionChoice]:
        """See :meth:`QRewardClient.text_completion`."""
        return portal().call(
            self._client.text_completion,
            prompt,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_text_completion(
        self,
        prompts: Iterable[Any] | AsyncIterable[Any],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        on_result: OnResult = None,
        progress: OnProgress = None,
        keep_results: bool = True,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> BatchResult[list[CompletionChoice]]:
        """See :meth:`QRewardClient.batch_text_completion`."""
        return portal().call(
            self._client.batch_text_completion,
            prompts,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def moderation(
        self,
        input: str | list[Any],  # noqa: A002 - the API's name
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Moderation:
        """See :meth:`QRewardClient.moderation`."""
        return portal().call(
            self._client.moderation,
            input,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_moderation(
        self,
        inputs: Iterable[Any] | AsyncIterable[Any],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        deadline: float | None = None,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        on_result: OnResult = None,
        progress: OnProgress = None,
        keep_results: bool = True,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> BatchResult[Moderation]:
        """See :meth:`QRewardClient.batch_moderation`."""
        return portal().call(
            self._client.batch_moderation,
            inputs,
            model,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )
