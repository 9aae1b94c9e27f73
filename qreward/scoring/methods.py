"""The client's methods for rewards, labels, rankings, embeddings, legacy completions and moderations.

They validate the arguments, find the route and hand the items to a ``RequestMerger``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from qreward import options
from qreward.codecs.base import WireRequest
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.registry import CLASSIFY, COMPLETE, MODERATE, RERANK, SCORE
from qreward.engine.driver import Engine, LoopDriver
from qreward.engine.fleet import Fleet
from qreward.errors import ConfigError
from qreward.options import DEFAULT
from qreward.results import BatchResult, Result
from qreward.scheduler.scheduler import Scheduler
from qreward.scheduler.state import Pool, RequestOptions
from qreward.scoring.batch import MergedBatchWaiter
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
    """The methods of ``QRewardClient`` for rewards, labels, rankings and embeddings. Their items share requests."""

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
        """Score one response with a reward model.

        Calls with the same model and parameters that wait at the same time share a request, if the server accepts lists.

        Args:
            prompt: with ``response``, the prompt: a text or messages. Without it, a conversation whose last message is scored, a text
                ready for the model, or a dict with ``prompt``, ``response`` and optionally ``label``.
            response: the response to score.
            model: model name; selects the route.
            timeout, priority, hedge, tenant, extra_headers: as in :meth:`chat_completion`.
            extra_body, params: added to the JSON body.

        Returns:
            A float. Its ``attributes`` hold the server's other numbers.

        Raises:
            RequestError: the request failed; see its subclasses. A missing or non-numeric score is ``InvalidResponse``, never 0.0. A
                prompt or response that is None is ``BadRequest``, and nothing is sent.
            NoEndpoint: no route matches the model.
            ConfigError: an argument is invalid; nothing was sent.

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
        """Score many responses with a reward model.

        The responses are merged into requests that are as large as the servers accept and small enough to keep all endpoints busy.

        Args:
            pairs: a list, an iterator or an async iterator of ``(prompt, response)`` tuples, conversations, texts ready for the model, or
                dicts, as in :meth:`score`. It is read no faster than requests are sent.
            model: model name; selects the route.
            timeout, deadline, priority, hedge, tenant, on_result, progress, keep_results: as in :meth:`batch_chat_completion`.
            extra_headers, extra_body, params: as in :meth:`score`.

        Returns:
            Results in input order. An item that fails is a ``Result`` with an error; the other items of its request are not affected.

        Raises:
            NoEndpoint, ConfigError: before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised. The exception holds the finished results.

        Example:
            >>> async def rewards(client, prompts, responses):
            ...     batch = await client.batch_score(zip(prompts, responses), model="rm-7b")
            ...     return batch.scores(default=None)
        """
        asked = asking(SCORE, model, params, extra_headers, extra_body)
        items, terms = options.items("pairs", pairs), self._terms(timeout, priority, hedge, tenant)
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
        """Classify one item. Returns the probability of each label. Arguments and errors are those of :meth:`score`."""
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
        """Classify many items. Each result is the probability of each label. Arguments and errors are those of :meth:`batch_score`."""
        asked = asking(CLASSIFY, model, params, extra_headers, extra_body)
        given, terms = options.items("items", items), self._terms(timeout, priority, hedge, tenant)
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
        """Score how well each document answers the query.

        The documents go in one request, or in several if the server's limits require it. Other arguments and errors are those of
        :meth:`score`.

        Returns:
            One score per document, in the order of ``documents``.
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
        """Create embeddings of one input: a text, a list of texts, or token ids.

        Calls with the same parameters that wait at the same time share a request. Each receives its own response, as if it had been
        sent alone. Arguments and errors are those of :meth:`chat_completion`.
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
        """Create embeddings of many inputs, merged into shared requests.

        Each result is the response to one item of ``batch_input``. Arguments and errors are those of :meth:`batch_chat_completion`.
        """
        asked = asking_embeddings(model, params, extra_headers, extra_body)
        items, terms = options.items("batch_input", batch_input), self._terms(timeout, priority, hedge, tenant)
        return await self._merged_many(asked, items, model, terms, deadline, on_result, progress, keep_results)

    # merging

    async def _merged_one(self, asked: MergeSpec, item: Any, model: str, terms: RequestOptions) -> Any:
        (result,) = await self._merged(asked, [asked.call(item)], model, terms)
        return result.value

    async def _merged(self, asked: MergeSpec, calls: list[WireRequest], model: str, terms: RequestOptions) -> list[Result[Any]]:
        """Send the items of one call, all of one shape, and return their results."""
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
        bulk = MergedBatchWaiter(
            shell,
            pool,
            items,
            asked.call,
            asking=asked,
            find=lambda key: self._collector(shell, pool, asked, terms.tenant, key),
            terms=terms,
            deadline=options.seconds("deadline", deadline),
            on_result=options.callback("on_result", on_result),
            **self._reporting(pool, model, items, progress),
            keep=keep,
        )
        return await bulk.run()

    def _collector(self, shell: LoopDriver, pool: Pool, asked: MergeSpec, tenant: str | None, key: Hashable) -> RequestMerger:
        """The merger of items that may share a request. It is created for the first item and removed after the last."""
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
    """The methods of ``QRewardClient`` for legacy completions and moderations. Their items share requests."""

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
        """Complete a prompt with the legacy route ``/completions``, which accepts lists.

        Calls with the same parameters that wait at the same time share a request.

        Args:
            prompt: a text or its token ids.
            model: model name; selects the route.
            timeout, priority, hedge, tenant, extra_headers: as in :meth:`chat_completion`.
            extra_body, params: added to the JSON body: ``max_tokens``, ``n``, ``logprobs`` or any other member.

        Returns:
            ``n`` choices (1 by default) as openai's ``CompletionChoice``. Token usage is not included;
            :meth:`batch_text_completion` returns it in ``Result.usage``.

        Raises:
            RequestError, NoEndpoint, ConfigError: as in :meth:`chat_completion`.
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
        """Complete many prompts as :meth:`text_completion` does, merged into shared requests.

        Arguments and errors are those of :meth:`batch_chat_completion`.
        """
        asked = asking(COMPLETE, model, params, extra_headers, extra_body)
        given, terms = options.items("prompts", prompts), self._terms(timeout, priority, hedge, tenant)
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
        """Check whether a text or a list of parts should be flagged. Returns openai's ``Moderation``.

        Arguments and errors are those of :meth:`text_completion`.
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
        """Check many inputs as :meth:`moderation` does, merged into shared requests.

        Arguments and errors are those of :meth:`batch_chat_completion`.
        """
        asked = asking(MODERATE, model, params, extra_headers, extra_body)
        given, terms = options.items("inputs", inputs), self._terms(timeout, priority, hedge, tenant)
        return cast(
            "BatchResult[Moderation]", await self._merged_many(asked, given, model, terms, deadline, on_result, progress, keep_results)
        )
