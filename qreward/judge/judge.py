"""``Judge``: what people call. Makes the questions, hands them to a bench, and gives back verdicts."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterable, Callable, Hashable, Iterable, Mapping, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from qreward import options as arguments
from qreward.client import QRewardClient
from qreward.engine import background as forks
from qreward.engine.driver import LoopDriver
from qreward.errors import ConfigError
from qreward.judge import config as given
from qreward.judge.cache import Cache
from qreward.judge.cache_lookup import recall, recalled
from qreward.judge.config import JudgeConfig, ResponseFormat, Settle
from qreward.judge.item_state import JudgeRequest, Outcome, PendingItem
from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict
from qreward.judge.prompts import Builder
from qreward.judge.requests import Extra, Questions, extra_of, fields_of, pair_extra_of, pair_fields_of
from qreward.judge.runner import JudgeBulk, SingleRunner
from qreward.judge.sampling import JudgeModel
from qreward.judge.singleflight import InflightRequest, Keep
from qreward.judge.types import Comparison, Item, Pair, Verdict
from qreward.judge.verdict_parser import VerdictParser, verdict_named
from qreward.options import DEFAULT
from qreward.results import BatchResult, Result
from qreward.scheduler.pool import Pool
from qreward.scheduler.request import RequestOptions
from qreward.settings.policies import Priority

if TYPE_CHECKING:
    from qreward.progress import Progress

PromptTemplate = str | Sequence[Mapping[str, Any]] | Builder


class Judge:
    """A model, or several, that say in words how good a response is, read into a score.

    Needs no running loop to be made, and may be used from several loops and threads at once. Pickles by its settings; after a fork the
    child starts anew with them.

    Args:
        client: over whose endpoints the models are asked. It stays the caller's, see ``owns_client``.
        model: who judges; several are several judges, all of which are asked.
        prompt: template of the user's message with ``{prompt}``, ``{response}``, ``{reference}`` and any other field of an item; a
            list of messages with such contents; or a function from an item's fields to messages. None is the judge's own prompt. How to
            answer is said at ``{answer_form}``, or at the end.
        system: template of a system message before it; None sends none.
        pair_prompt: as ``prompt``, for :meth:`compare`, with ``{first}`` and ``{second}``; they are to be called A and B.
        verdict: the form of an answer: a pydantic model whose ``score`` counts.
        scale: lowest and highest score that the judge is asked for; an answer outside is none. None is what the verdict's own field
            says (``ge`` and ``le``, or the numbers among which it chooses), else 0 to 10.
        range: what the ends of ``scale`` are as rewards; None leaves scores as they are.
        samples: answers of each model to each item, at most 100.
        settle: how several answers make one score: see :class:`~qreward.judge.aggregation.ScoreOf`.
        reasks: times that an answer which cannot be read is asked for again, within the item's time.
        response_format: how servers are asked for JSON: ``json_schema``, ``json_object`` or ``none``; ``auto`` finds out what each model's
            servers take. With ``none`` and a prompt of the user's, that says alone how to answer.
        score: the reward of a verdict, taken as it is; None says that it is no verdict.
        cache: path of a file that keeps answers over runs; None keeps none. See :class:`~qreward.judge.cache.Cache`.
        cache_namespace: answers are found again only under the namespace under which they were kept. Change it with whatever the
            requests do not show, such as the weights that a model name stands for.
        owns_client: close the client with this judge.
        params: sent with each request: ``temperature``, ``max_tokens``, anything; ``extra_headers``, ``extra_body`` and ``hedge`` as
            in :meth:`QRewardClient.chat_completion`. A ``seed`` is counted up from sample to sample.

    Raises:
        ConfigError: a setting is wrong.

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
        range: tuple[float, float] | None = (0.0, 1.0),  # noqa: A002 - the word of the settings
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
        self._client, self._hedge = client, arguments.terms(None, Priority.NORMAL, params.get("hedge", True), None).hedge
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
        self._points = Questions(prompt, form, self._config)
        if pair_prompt is not None:
            assert self._pairs  # made now, so that what is wrong with it is told now
        self._cache = None if cache is None else Cache(cache)
        self._begin_again()
        forks.watch(self, Judge._begin_again)

    @cached_property
    def _pairs(self) -> Questions:
        return Questions(self._given["pair_prompt"], VerdictParser(PreferenceVerdict), self._config, pairs=True)

    def _begin_again(self) -> object:
        """What belongs to this process."""
        inherited = self.__dict__.get("_tables")
        self._tables: weakref.WeakKeyDictionary[LoopDriver, dict[Hashable, InflightRequest]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        return inherited

    @classmethod
    def from_config(cls, client: QRewardClient, config: JudgeConfig | Mapping[str, Any], *, owns_client: bool = False) -> Judge:
        """A judge from its settings.

        Raises:
            ConfigError: they are wrong, or name a verdict that is not there.
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
            prompt: what was asked: a text, or messages.
            response: what is judged.
            reference: the right answer, if there is one.
            timeout: seconds in all: waiting, retries, all votes and asking again included; the client's by default, None waits for ever.
            priority, tenant: as in :meth:`QRewardClient.chat_completion`.
            fields: what else the prompt template names.

        Raises:
            InvalidResponse: no answer could be read as a verdict; it says why, and how the last one began.
            RequestError, NoEndpoint: as :meth:`QRewardClient.chat_completion` raises them.
            ConfigError: the response is None, a field that the template names is missing, or one is not known; nothing was sent.
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
        """Judge which of two responses is better. They are shown in both orders; if that changes the answer, it is a tie.

        Arguments and errors as in :meth:`score`.
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
        """Judge many responses, as fast as the endpoints can.

        Args:
            items: ``(prompt, response)``, ``(prompt, response, reference)`` or mappings of fields: a list, an iterator or an async
                iterator; read no faster than they are sent. Fields that the prompt does not name, such as an ``id``, are not sent; the
                item's result has all but these three as ``extra``.
            timeout: seconds per item, from when an endpoint takes its first request. When no endpoint of a model is alive for so long,
                all items that wait fail with ``RequestTimeout``.
            deadline: seconds for the whole batch; what is missing then comes back as ``DeadlineExceeded``.
            priority, tenant, on_result, progress, keep_results: as in :meth:`QRewardClient.batch_chat_completion`.

        Returns:
            Results in the order of the input; an item that fails is a ``Result`` with an error. Their ``latency`` is seconds from an
            item's first request to its verdict, ``attempts`` what went wrong on the way. The statistics count items, and at the
            endpoints requests.

        Raises:
            NoEndpoint, ConfigError: before anything is sent.
            BatchInterrupted: the input or ``on_result`` raised; it holds the results that are done.
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
        """Compare many pairs: ``(prompt, first, second)``, with ``reference`` as a fourth, or mappings. Else as :meth:`batch_score`."""
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
        """Write what the cache has not yet written, and close the client if it is owned. Else the judge may be used again."""
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

    # between the two

    async def _one(
        self,
        questions: Questions,
        fields: Mapping[str, Any],
        outcome: Outcome,
        timeout: float | None,
        priority: int | str,
        tenant: str | None,
    ) -> Any:
        born, terms, pools = self._client._clock(), self._terms(timeout, priority, tenant), self._pools(questions)
        asks = questions.asks(fields)
        known = () if self._cache is None else await recall(self._cache, asks)
        shell = self._client._engine.shell()
        desk = SingleRunner(shell, self._table(shell), terms, pools, self._keep, born)
        return outcome(*await desk.outcome(asks, questions.decide, known))

    async def _many(
        self,
        questions: Questions,
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
        listed, terms, pools = arguments.items("items", items), self._terms(timeout, priority, tenant), self._pools(questions)
        shell, client = self._client._engine.shell(), self._client

        def make(item: object) -> Sequence[JudgeRequest]:
            return questions.asks(read(item), extra=True)

        bulk = JudgeBulk(
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
            deadline=arguments.seconds("deadline", deadline),
            on_result=arguments.callback("on_result", on_result),
            keep=keep_results,
            **client._reporting(next(iter(pools.values())), ", ".join(self._config.model), listed, progress),
        )
        return await bulk.run()

    @property
    def _keep(self) -> Keep | None:
        return None if self._cache is None else self._cache.keep

    def _pools(self, questions: Questions) -> dict[JudgeModel, Pool]:
        return {juror: self._client._fleet.pool(juror.model) for juror in questions.jurors}

    def _terms(self, timeout: float | None, priority: int | str, tenant: str | None) -> RequestOptions:
        return self._client._terms(timeout, priority, self._hedge, tenant)

    def _table(self, shell: LoopDriver) -> dict[Hashable, InflightRequest]:
        table = self._tables.get(shell)
        if table is None:
            with self._lock:
                table = self._tables.setdefault(shell, {})
        return table


def _again(client: QRewardClient, config: JudgeConfig, others: Mapping[str, Any]) -> Judge:
    settings = {name: getattr(config, name) for name in config.model_fields_set - {"params"}}
    return Judge(client, **{**settings, **others}, **config.params)


def _verdict(poll: PendingItem, decided: tuple[float, Any]) -> Verdict:
    return Verdict(decided[0], decided[1], None, poll.usage, not poll.sent)


def _comparison(poll: PendingItem, decided: Comparison) -> Comparison:
    return Comparison(decided.preference, decided.score, decided.votes, poll.usage, not poll.sent)
