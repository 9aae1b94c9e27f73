"""The calls of the client for rewards, labels, rankings and vectors. Validates, finds the route, hands the items to be merged.

The calls of the client for legacy completions and moderations, whose items are merged on the wire as those for rewards are.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from qreward import options as arguments
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.registry import CLASSIFY, COMPLETE, MODERATE, RERANK, SCORE
from qreward.engine.driver import Engine, LoopDriver
from qreward.engine.fleet import Fleet
from qreward.errors import ConfigError
from qreward.options import DEFAULT
from qreward.results import BatchResult, Result
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import RequestOptions
from qreward.scheduler.scheduler import Scheduler
from qreward.scoring.batch import MergedBulk
from qreward.scoring.endpoint_limits import KnownLists
from qreward.scoring.formats import MergeSpec, asking, asking_embeddings
from qreward.scoring.items import ItemWaiter, MergedItem
from qreward.scoring.merger import RequestMerger
from qreward.settings.client import ClientConfig
from qreward.settings.policies import Priority

if TYPE_CHECKING:
    from openai.types import CompletionChoice, CreateEmbeddingResponse, Moderation

    from qreward.progress import Progress

if TYPE_CHECKING:
    OnResult = Callable[[Result[Any]], object] | None
    OnProgress = bool | Callable[[Progress], object] | None


class RewardCalls:
    """The part of ``QRewardClient`` whose items are merged on the wire."""

    _config: ClientConfig
    _engine: Engine[Scheduler]
    _fleet: Fleet
    _terms: Callable[..., RequestOptions]
    _reporting: Callable[..., dict[str, Any]]
    _collectors: dict[Hashable, RequestMerger]
    _lists: KnownLists

    async def score(
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
        """The reward of one response, from a reward model.

        Scores that wait for the same route and model at the same time share a request, as far as the server takes lists.

        Args:
            prompt: with ``response`` the prompt, a text or messages; without it a conversation whose last message is judged, a text that
                is ready for the model, or a dict with ``prompt``, ``response`` and perhaps ``label``.
            response: what is judged.
            model: chooses the route.
            timeout, priority, hedge, tenant, extra_headers: as in :meth:`chat_completion`.
            extra_body, params: go into the JSON body.

        Returns:
            A float, with the server's other numbers in ``attributes``.

        Raises:
            RequestError: see its subclasses. A score that is missing or no number is ``InvalidResponse``, never 0.0; a prompt or a
                response that is None is ``BadRequest``, and nothing is sent.
            NoEndpoint: no route matches the model.
            ConfigError: an argument is wrong; nothing was sent.

        Example:
            >>> async def reward(client, prompt, response):
            ...     return await client.score(prompt, response, model="rm-7b")
        """
        asked = asking(SCORE, model, params, extra_headers, extra_body)
        item = prompt if response is DEFAULT else (prompt, response)
        return cast("Score", await self._merged_one(asked, item, model, self._terms(timeout, priority, hedge, tenant)))

    async def batch_score(
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
        """The rewards of many responses, merged into requests as long as the servers take and the fleet can share.

        Args:
            pairs: ``(prompt, response)``, conversations, texts that are ready, or dicts, as in :meth:`score`: a list, an iterator or an
                async iterator; read no faster than they are sent.
            model: chooses the route.
            timeout, deadline, priority, hedge, tenant, on_result, progress, keep_results: as in :meth:`batch_chat_completion`.
            extra_headers, extra_body, params: as in :meth:`score`.

        Returns:
            Results in the order of the input; an item that fails is a ``Result`` with an error, and sinks none of those it was sent with.

        Raises:
            NoEndpoint, ConfigError: before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised; it holds the results that are done.

        Example:
            >>> async def rewards(client, prompts, responses):
            ...     batch = await client.batch_score(zip(prompts, responses), model="rm-7b")
            ...     return batch.scores(default=None)
        """
        asked = asking(SCORE, model, params, extra_headers, extra_body)
        items, terms = arguments.items("pairs", pairs), self._terms(timeout, priority, hedge, tenant)
        return await self._merged_many(asked, items, model, terms, deadline, on_result, progress, keep_results)

    async def classify(
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
        """Probabilities by label of one item. Arguments and errors as in :meth:`score`."""
        asked = asking(CLASSIFY, model, params, extra_headers, extra_body)
        item = prompt if response is DEFAULT else (prompt, response)
        return cast("dict[str, float]", await self._merged_one(asked, item, model, self._terms(timeout, priority, hedge, tenant)))

    async def batch_classify(
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
        """Probabilities by label of many items. Arguments and errors as in :meth:`batch_score`."""
        asked = asking(CLASSIFY, model, params, extra_headers, extra_body)
        given, terms = arguments.items("items", items), self._terms(timeout, priority, hedge, tenant)
        return await self._merged_many(asked, given, model, terms, deadline, on_result, progress, keep_results)

    async def rerank(
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
        """How well each document answers the query, in the order of the documents.

        They go in one request, or in as many as the server's limits make of them. Other arguments and errors as in :meth:`score`.
        """
        if isinstance(documents, str | Mapping) or not isinstance(documents, Sequence):
            raise ConfigError(f"documents must be a list of texts, not a {type(documents).__name__}")
        asked = asking(RERANK, model, {**params, "query": query}, extra_headers, extra_body)
        terms = self._terms(timeout, priority, hedge, tenant)
        results = await self._merged(asked, asked.calls("documents", documents), model, terms)
        return [result.value for result in results]

    async def embeddings(
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
        """Embeddings of one input: a text, a list of texts, or tokens. Arguments and errors as in :meth:`chat_completion`.

        Calls with the same parameters that wait at the same time share a request; each gets its own answer, as if it had gone alone.
        """
        asked = asking_embeddings(model, params, extra_headers, extra_body)
        return cast("CreateEmbeddingResponse", await self._merged_one(asked, input, model, self._terms(timeout, priority, hedge, tenant)))

    async def batch_embeddings(
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
        """An answer for each item of ``batch_input``, merged on the wire. Arguments and errors as in :meth:`batch_chat_completion`."""
        asked = asking_embeddings(model, params, extra_headers, extra_body)
        items, terms = arguments.items("batch_input", batch_input), self._terms(timeout, priority, hedge, tenant)
        return await self._merged_many(asked, items, model, terms, deadline, on_result, progress, keep_results)

    # between the two

    async def _merged_one(self, asked: MergeSpec, item: Any, model: str, terms: RequestOptions) -> Any:
        (result,) = await self._merged(asked, [asked.call(item)], model, terms)
        return result.value

    async def _merged(self, asked: MergeSpec, calls: list[WireRequest], model: str, terms: RequestOptions) -> list[Result[Any]]:
        """The results of a few items, which have one shape."""
        pool = self._fleet.pool(model)
        if not calls:
            return []
        shell = self._engine.shell()
        caller = ItemWaiter(shell)
        members = [MergedItem(call, pool, terms, caller, index) for index, call in enumerate(calls)]
        return await caller.results(self._collector(shell, pool, asked, terms.tenant, asked.key(calls[0])), members)

    async def _merged_many(
        self,
        asked: MergeSpec,
        items: Iterable[Any] | AsyncIterable[Any],
        model: str,
        terms: RequestOptions,
        deadline: float | None,
        on_result: OnResult,
        progress: OnProgress,
        keep: bool,
    ) -> BatchResult[Any]:
        pool, shell = self._fleet.pool(model), self._engine.shell()
        bulk = MergedBulk(
            shell,
            pool,
            items,
            asked.call,
            asking=asked,
            find=lambda key: self._collector(shell, pool, asked, terms.tenant, key),
            terms=terms,
            deadline=arguments.seconds("deadline", deadline),
            on_result=arguments.callback("on_result", on_result),
            **self._reporting(pool, model, items, progress),
            keep=keep,
        )
        return await bulk.run()

    def _collector(self, shell: LoopDriver, pool: Pool, asked: MergeSpec, tenant: str | None, key: Hashable) -> RequestMerger:
        """Where items wait that may share a request; made when the first comes, gone when the last has its answer."""
        collectors = self._collectors
        place = (shell, pool, tenant, key)
        found = collectors.get(place)
        if found is None:
            found = collectors[place] = RequestMerger(
                shell,
                pool,
                asked.listing,
                self._lists,
                asked.blank,
                attempts=self._config.retry.attempts,
                most_waiting=self._config.max_queued,
                idle=lambda: collectors.pop(place, None),
            )
        return found


class TextCalls:
    """The part of ``QRewardClient`` for texts that are no conversations."""

    _terms: Callable[..., RequestOptions]
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
