"""The calls of the client for legacy completions and moderations, whose items are merged on the wire as those for rewards are."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from qreward import arguments
from qreward.arguments import DEFAULT
from qreward.core.task import Terms
from qreward.policies import Priority
from qreward.results import BatchResult, Result
from qreward.rewards.asking import asking
from qreward.wire.rewards.dialects import COMPLETE, MODERATE

if TYPE_CHECKING:
    from openai.types import CompletionChoice, Moderation

    from qreward.progress import Progress

    OnResult = Callable[[Result[Any]], object] | None
    OnProgress = bool | Callable[[Progress], object] | None


class TextCalls:
    """The part of ``QRewardClient`` for texts that are no conversations."""

    _terms: Callable[..., Terms]
    _merged_one: Callable[..., Any]
    _merged_many: Callable[..., Any]

    async def text_completion(
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
        """What a model writes after a prompt, by the legacy route ``/completions``, which takes lists.

        Calls with the same parameters that wait at the same time share a request.

        Args:
            prompt: a text, or its token ids.
            model: chooses the route.
            timeout, priority, hedge, tenant, extra_headers: as in :meth:`chat_completion`.
            extra_body, params: go into the JSON body: ``max_tokens``, ``n``, ``logprobs``, anything.

        Returns:
            The choices, as many as ``n`` says (1 by default): openai's ``CompletionChoice``. What they used is in ``Result.usage`` of
            :meth:`batch_text_completion`.

        Raises:
            RequestError, NoEndpoint, ConfigError: as :meth:`chat_completion`.
        """
        asked = asking(COMPLETE, model, params, extra_headers, extra_body)
        return cast("list[CompletionChoice]", await self._merged_one(asked, prompt, model, self._terms(timeout, priority, hedge, tenant)))

    async def batch_text_completion(
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
        """The same for many prompts, merged on the wire. Arguments and errors as in :meth:`batch_chat_completion`."""
        asked = asking(COMPLETE, model, params, extra_headers, extra_body)
        given, terms = arguments.items("prompts", prompts), self._terms(timeout, priority, hedge, tenant)
        return cast(
            "BatchResult[list[CompletionChoice]]",
            await self._merged_many(asked, given, model, terms, deadline, on_result, progress, keep_results),
        )

    async def moderation(
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
        """Whether a text, or a list of parts, is to be flagged: openai's ``Moderation``.

        Arguments and errors as in :meth:`text_completion`.
        """
        asked = asking(MODERATE, model, params, extra_headers, extra_body)
        return cast("Moderation", await self._merged_one(asked, input, model, self._terms(timeout, priority, hedge, tenant)))

    async def batch_moderation(
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
        """The same for many inputs, merged on the wire. Arguments and errors as in :meth:`batch_chat_completion`."""
        asked = asking(MODERATE, model, params, extra_headers, extra_body)
        given, terms = arguments.items("inputs", inputs), self._terms(timeout, priority, hedge, tenant)
        return cast(
            "BatchResult[Moderation]", await self._merged_many(asked, given, model, terms, deadline, on_result, progress, keep_results)
        )
