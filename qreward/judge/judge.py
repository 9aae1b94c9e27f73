"""``Judge``, the public class. It builds the requests for an item, runs them, and returns verdicts.

The sending itself is done by ``runner``, the reading of answers by ``verdict_parser``.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from qreward import options
from qreward.client import QRewardClient
from qreward.engine import background
from qreward.engine.driver import LoopDriver
from qreward.errors import ConfigError
from qreward.judge import config as given
from qreward.judge.cache import Cache
from qreward.judge.cache_lookup import recall, recalled
from qreward.judge.config import JudgeConfig, ResponseFormat, Settle
from qreward.judge.item_state import JudgeItem, JudgeRequest, Outcome
from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict
from qreward.judge.prompts import Builder
from qreward.judge.requests import Extra, RequestBuilder, extra_of, fields_of, pair_extra_of, pair_fields_of
from qreward.judge.runner import BatchRunner, SingleRunner
from qreward.judge.sampling import JudgeModel
from qreward.judge.singleflight import InflightRequest, Keep
from qreward.judge.types import Comparison, Item, Pair, Verdict
from qreward.judge.verdict_parser import VerdictParser, verdict_named
from qreward.options import DEFAULT
from qreward.results import BatchResult, Result
from qreward.runtime import runtime_of
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import RequestOptions
from qreward.settings.policies import Priority

if TYPE_CHECKING:
    from qreward.progress import Progress

PromptTemplate = str | Sequence[Mapping[str, Any]] | Builder


class Judge:
    """Score responses with one or more LLM judges.

    Each model is prompted with an item, and its answer is parsed into a verdict with a score. A judge can be created without a running
    event loop, and used from several event loops and threads at once. Pickling keeps the settings and the client. A forked child starts
    with the same settings and no requests in flight.

    Args:
        client: the client that sends the requests. It stays open after :meth:`aclose` unless ``owns_client`` is set.
        model: name of the judge model. With several names, every model judges every item.
        prompt: template of the user message, with ``{prompt}``, ``{response}``, ``{reference}`` and any other field of an item; or a
            list of messages whose contents are templates; or a function from an item's fields to messages. None uses the built-in
            prompt. The instruction how to answer replaces ``{answer_form}``, or is appended if the template has no such placeholder.
        system: template of a system message that precedes the prompt. None sends none.
        pair_prompt: the same as ``prompt``, for :meth:`compare`, with ``{first}`` and ``{second}``. The template must call them A and B.
        verdict: the pydantic model that an answer is parsed into. Its ``score`` is the score.
        scale: lowest and highest score that a judge may give. An answer outside the scale is rejected. None takes the limits of the
            verdict's own field (``ge`` and ``le``, or the numbers of its literal or enum), else 0 to 10.
        range: lowest and highest reward, to which the ends of ``scale`` are mapped linearly. None returns scores unchanged.
        samples: requests per model and item, at most 100.
        settle: how several answers are aggregated into one score: ``majority``, ``mean`` or ``median``. See
            :class:`~qreward.judge.aggregation.ScoreAggregator`.
        reasks: how often a request is sent again after an answer that cannot be parsed, within the item's timeout.
        response_format: how servers are asked for JSON: ``json_schema``, ``json_object`` or ``none``. ``auto`` finds out what the
            servers of each model accept. With ``none`` and a custom prompt no instruction is appended: the prompt must say how to answer.
        score: a function from a verdict to its reward, which is used as it is: ``scale`` and ``range`` do not apply to it. It returns None
            for an answer that is not a verdict.
        cache: path of a file that keeps answers across runs. None disables the cache. See :class:`~qreward.judge.cache.Cache`.
        cache_namespace: answers are found only under the namespace under which they were stored. Change it when something changes that
            requests do not show, such as the weights behind a model name.
        owns_client: close the client when this judge is closed.
        params: parameters of each request, such as ``temperature`` and ``max_tokens``. ``extra_headers``, ``extra_body`` and ``hedge``
            work as in :meth:`QRewardClient.chat_completion`. A ``seed`` is increased by one for each sample.

    Raises:
        ConfigError: a setting is invalid.

    Example:
        >>> from qreward import QRewardClient
        >>> judge = Judge(QRewardClient(["http://gpu-0:8000/v1"]), model="judge-7b", scale=(1, 5), temperature=0)
        >>> async def reward(prompt, response):
        ...     return (await judge.score(prompt, response)).score
    """

    def __init__(
        self,
        client: QRewardClient,
        *,
        model: str | Iterable[str],
        prompt: PromptTemplate | None = None,
        system: str | None = None,
        pair_prompt: PromptTemplate | None = None,
        verdict: type[BaseModel] = ScoreVerdict,
        scale: tuple[float, float] | None = None,
        range: tuple[float, float] | None = (0.0, 1.0),  # noqa: A002 - the name in the settings
        samples: int = 1,
        settle: Settle = "majority",
        reasks: int = 1,
        response_format: ResponseFormat = "auto",
        score: Callable[[Any], float | None] | None = None,
        cache: str | Path | None = None,
        cache_namespace: str = "",
        owns_client: bool = False,
        **params: Any,
    ) -> None:
        if not isinstance(client, QRewardClient):
            raise ConfigError(f"client must be a QRewardClient, not a {type(client).__name__}; for SyncQRewardClient use SyncJudge")
        given.check_params(params)
        self._client, self._hedge = client, options.request_options({"hedge": params.get("hedge", True)}, None).hedge
        form = VerdictParser(verdict, scale=scale, range=range, score=score)
        self._config = JudgeConfig(
            model=given.models(model),
            system=system,
            scale=form.scale,
            range=range,
            samples=samples,
            settle=settle,
            reasks=reasks,
            response_format=response_format,
            cache=given.cache_path(cache),
            cache_namespace=cache_namespace,
            params=params,
        )
        self._given = {"prompt": prompt, "pair_prompt": pair_prompt, "verdict": verdict, "score": score, "owns_client": owns_client}
        self._points = RequestBuilder(prompt, form, self._config)
        if pair_prompt is not None:
            assert self._pairs  # created now, so that an invalid pair_prompt raises here
        self._cache = None if cache is None else Cache(cache)
        self._reset_process_state()
        background.watch(self, Judge._reset_process_state)

    @cached_property
    def _pairs(self) -> RequestBuilder:
        return RequestBuilder(self._given["pair_prompt"], VerdictParser(PreferenceVerdict), self._config, pairs=True)

    def _reset_process_state(self) -> object:
        """Create the state that belongs to one process. Returns the parent's after a fork."""
        inherited = self.__dict__.get("_tables")
        self._tables: weakref.WeakKeyDictionary[LoopDriver, dict[Hashable, InflightRequest]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        return inherited

    @classmethod
    def from_config(cls, client: QRewardClient, config: JudgeConfig | Mapping[str, Any], *, owns_client: bool = False) -> Judge:
        """Create a judge from its settings.

        Raises:
            ConfigError: a setting is invalid, or ``verdict`` names a model that does not exist.
        """
        wanted = given.config_of(config)
        settings = {name: getattr(wanted, name) for name in wanted.model_fields_set - {"params", "verdict"}}
        return cls(client, verdict=verdict_named(wanted.verdict), owns_client=owns_client, **settings, **wanted.params)

    async def score(
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
        """Judge one response.

        Args:
            prompt: the task that the response answers: a text, or messages.
            response: the response to judge.
            reference: the correct answer, if there is one.
            timeout: seconds for the whole call, including queueing, retries, all votes and repeated requests. The client's by default;
                None waits for ever.
            priority, tenant: as in :meth:`QRewardClient.chat_completion`.
            fields: the other fields that the prompt template names.

        Returns:
            The aggregated verdict with its votes.

        Raises:
            InvalidResponse: no answer could be parsed as a verdict. The message states the reason and the beginning of the last answer.
            RequestError, NoEndpoint: as in :meth:`QRewardClient.chat_completion`.
            ConfigError: the response is None, a field that the template names is missing, or a field is unknown. Nothing was sent.
        """
        item = {**fields, "prompt": prompt, "response": response, "reference": reference}
        verdict: Verdict = await self._one(self._points, item, _verdict, timeout, priority, tenant)
        return verdict

    async def compare(
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
        """Judge which of two responses is better.

        Each judge sees the responses in both orders. If its preference changes with the order, it counts as a tie. Arguments and errors
        are those of :meth:`score`.
        """
        pair = {**fields, "prompt": prompt, "first": first, "second": second, "reference": reference}
        comparison: Comparison = await self._one(self._pairs, pair, _comparison, timeout, priority, tenant)
        return comparison

    async def batch_score(
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
        """Judge many responses, as fast as the endpoints allow.

        Args:
            items: a list, an iterator or an async iterator of ``(prompt, response)``, ``(prompt, response, reference)`` or mappings of
                fields. Items are read no faster than they are sent. Fields that the prompt does not name, such as an ``id``, are not
                sent. The result of a mapping has all fields but ``prompt``, ``response`` and ``reference`` in ``extra``.
            timeout: seconds per item, counted from when an endpoint takes its first request. If no endpoint of a model is alive for
                this long, all queued items fail with ``RequestTimeout``.
            deadline: seconds for the whole batch. Items that are not done by then fail with ``DeadlineExceeded``.
            priority, tenant, on_result, progress, keep_results: as in :meth:`QRewardClient.batch_chat_completion`.

        Returns:
            Results in the order of the input; an item that fails is a ``Result`` with an error. The ``latency`` of a result is the
            seconds from its first request to its verdict, its ``attempts`` are the failures on the way. The statistics count items;
            the statistics of an endpoint count requests.

        Raises:
            NoEndpoint, ConfigError: before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised. The error holds the results that are done.
        """
        return await self._many(
            self._points,
            items,
            fields_of,
            extra_of,
            _verdict,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
        )

    async def batch_compare(
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
        """Compare many pairs. Arguments, result and errors are those of :meth:`batch_score`.

        Args:
            pairs: ``(prompt, first, second)``, ``(prompt, first, second, reference)`` or mappings of fields.
        """
        return await self._many(
            self._pairs,
            pairs,
            pair_fields_of,
            pair_extra_of,
            _comparison,
            timeout=timeout,
            deadline=deadline,
            priority=priority,
            tenant=tenant,
            on_result=on_result,
            progress=progress,
            keep_results=keep_results,
        )

    async def aclose(self) -> None:
        """Write pending cache entries, and close the client if the judge owns it. Otherwise the judge can be used again."""
        if self._cache is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._cache.close)
        if self._given["owns_client"]:
            await self._client.aclose()

    async def __aenter__(self) -> Judge:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._client, self._config, self._given)

    def __repr__(self) -> str:
        return f"<Judge {', '.join(self._config.model)}>"

    async def _one(
        self,
        questions: RequestBuilder,
        fields: Mapping[str, Any],
        outcome: Outcome,
        timeout: float | None,
        priority: int | str,
        tenant: str | None,
    ) -> Any:
        born, terms, pools = runtime_of(self._client).clock(), self._terms(timeout, priority, tenant), self._pools(questions)
        asks = questions.asks(fields)
        known = () if self._cache is None else await recall(self._cache, asks)
        shell = runtime_of(self._client).driver()
        desk = SingleRunner(shell, self._table(shell), terms, pools, self._keep, born)
        return outcome(*await desk.outcome(asks, questions.decide, known))

    async def _many(
        self,
        questions: RequestBuilder,
        items: Iterable[Any] | AsyncIterable[Any],
        read: Callable[[Any], Mapping[str, Any]],
        extra: Extra,
        outcome: Outcome,
        *,
        timeout: float | None,
        deadline: float | None,
        priority: int | str,
        tenant: str | None,
        on_result: Callable[[Result[Any]], object] | None,
        progress: bool | Callable[[Progress], object] | None,
        keep_results: bool,
    ) -> BatchResult[Any]:
        listed, terms, pools = options.batch_items("items", items), self._terms(timeout, priority, tenant), self._pools(questions)
        runtime = runtime_of(self._client)
        shell = runtime.driver()

        def make(item: object) -> Sequence[JudgeRequest]:
            return questions.asks(read(item), extra=True)

        bulk = BatchRunner(
            shell,
            listed if self._cache is None else recalled(self._cache, listed, make, extra),
            asks=make,
            extra=extra,
            decide=questions.decide,
            outcome=outcome,
            table=self._table(shell),
            pools=pools,
            keep_answer=self._keep,
            terms=terms,
            per_item=questions.per_item,
            size=len(listed) if isinstance(listed, Sized) else None,
            **runtime.collecting(
                {"deadline": deadline, "on_result": on_result, "progress": progress, "keep_results": keep_results},
                next(iter(pools.values())),
                listed,
                ", ".join(self._config.model),
            ),
        )
        return await bulk.run()

    @property
    def _keep(self) -> Keep | None:
        return None if self._cache is None else self._cache.keep

    def _pools(self, questions: RequestBuilder) -> dict[JudgeModel, Pool]:
        return {judge_model: runtime_of(self._client).pool(judge_model.model) for judge_model in questions.judge_models}

    def _terms(self, timeout: float | None, priority: int | str, tenant: str | None) -> RequestOptions:
        return runtime_of(self._client).request_options({"timeout": timeout, "priority": priority, "hedge": self._hedge, "tenant": tenant})

    def _table(self, shell: LoopDriver) -> dict[Hashable, InflightRequest]:
        table = self._tables.get(shell)
        if table is None:
            with self._lock:
                table = self._tables.setdefault(shell, {})
        return table


def _again(client: QRewardClient, config: JudgeConfig, others: Mapping[str, Any]) -> Judge:
    settings = {name: getattr(config, name) for name in config.model_fields_set - {"params"}}
    return Judge(client, **{**settings, **others}, **config.params)


def _verdict(poll: JudgeItem, decided: tuple[float, Any]) -> Verdict:
    return Verdict(decided[0], decided[1], None, poll.usage, not poll.sent)


def _comparison(poll: JudgeItem, decided: Comparison) -> Comparison:
    return Comparison(decided.preference, decided.score, decided.votes, poll.usage, not poll.sent)
