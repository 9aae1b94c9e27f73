"""The calls for rewards, labels, rankings and vectors, for code that does not await. What they mean stands with ``calls``."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qreward.arguments import DEFAULT
from qreward.engine.portal import portal
from qreward.policies import Priority
from qreward.results import BatchResult
from qreward.wire.rewards.answers import Score

if TYPE_CHECKING:
    from openai.types import CreateEmbeddingResponse

    from qreward.client import OnProgress, OnResult, QRewardClient


class SyncRewardCalls:
    """The part of ``SyncQRewardClient`` whose items are merged on the wire."""

    _client: QRewardClient

    def score(
        self,
        prompt: Any,
        response: str = DEFAULT,
        *,
        model: str,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> Score:
        """The reward of one response. See :meth:`QRewardClient.score`."""
        return portal().call(
            self._client.score,
            prompt,
            response,
            model=model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_score(
        self,
        pairs: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[Score]:
        """The rewards of many responses. See :meth:`QRewardClient.batch_score`, and for the input :meth:`batch_chat_completion`."""
        return portal().call(
            self._client.batch_score,
            pairs,
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

    def classify(
        self,
        prompt: Any,
        response: str = DEFAULT,
        *,
        model: str,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> dict[str, float]:
        """Probabilities by label of one item. See :meth:`QRewardClient.classify`."""
        return portal().call(
            self._client.classify,
            prompt,
            response,
            model=model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def batch_classify(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[dict[str, float]]:
        """Probabilities by label of many items. See :meth:`QRewardClient.batch_classify`."""
        return portal().call(
            self._client.batch_classify,
            items,
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

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> list[float]:
        """How well each document answers the query. See :meth:`QRewardClient.rerank`."""
        return portal().call(
            self._client.rerank,
            query,
            documents,
            model,
            timeout=timeout,
            priority=priority,
            hedge=hedge,
            tenant=tenant,
            extra_headers=extra_headers,
            extra_body=extra_body,
            **params,
        )

    def embeddings(
        self,
        input: str | Iterable[Any],  # noqa: A002 - the API's name
        model: str,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        hedge: bool = True,
        tenant: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **params: Any,
    ) -> CreateEmbeddingResponse:
        """Embeddings of one input. See :meth:`QRewardClient.embeddings`."""
        return portal().call(
            self._client.embeddings,
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

    def batch_embeddings(
        self,
        batch_input: Iterable[Any] | AsyncIterable[Any],
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
    ) -> BatchResult[CreateEmbeddingResponse]:
        """Many embedding requests. See :meth:`QRewardClient.batch_embeddings`, and for the input :meth:`batch_chat_completion`."""
        return portal().call(
            self._client.batch_embeddings,
            batch_input,
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
