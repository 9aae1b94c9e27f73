"""``Judge`` and ``SyncJudge``. ``requests`` makes the calls, ``loop`` sends them, ``calls`` evaluates the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from pydantic import BaseModel

from qreward.callables import load_object
from qreward.client import QRewardClient
from qreward.decisions import MIN_LABEL_MASS
from qreward.engine.portal import BlockingTwin, blocking
from qreward.errors import ConfigError, DeadlineExceeded, RequestTimeout
from qreward.judge import config as settings_of
from qreward.judge.cache import Cache
from qreward.judge.calibration import Calibration, Calibrator, JudgeIdentity, identity_of, range_to_calibrate
from qreward.judge.config import Budget, JudgeConfig, Method, ResponseFormat, Settle
from qreward.judge.loop import CallContext, Invalid, ItemBatch, Running, Spending
from qreward.judge.parsing import NAMED, ScoreVerdict, VerdictParser
from qreward.judge.parsing.forms import Answer, forms_of
from qreward.judge.prompts import Builder
from qreward.judge.ranking import GROUP_NAMES, Ranking, ResponseGroup, Responses, budget_of
from qreward.judge.requests import PAIR_NAMES, POINT_NAMES, QuestionLimits, RequestBuilder, prepared
from qreward.judge.rubric import Rubric
from qreward.judge.types import Closing, Comparison, Item, Pair, Verdict
from qreward.options import DEFAULT, JudgeBatchOptions, batch_items, check_batch_options, request_options
from qreward.results import BatchResult, Usage
from qreward.runtime import runtime_of
from qreward.settings.policies import Priority
from qreward.sync_client import SyncQRewardClient

_PASSED_ON = JudgeConfig.model_fields.keys() - {"prompt", "pair_prompt", "verdict", "scale", "answer", "preset", "params"}
"""Arguments of a judge that its ``JudgeConfig`` takes unchanged."""
PromptTemplate = str | Sequence[Mapping[str, Any]] | Builder


class Judge(Closing):
    """Scores responses with one or more LLM judges.

    Each model is asked about each item, and the answer is parsed into a verdict with a score. A judge can be created without a running
    event loop, and used from several event loops and threads at once. A pickled judge keeps its settings and its client. In a forked
    process, a judge keeps its settings, and starts without requests in flight.

    Args:
        client: the client that sends the requests. The client stays open after :meth:`aclose`, unless ``owns_client`` is set.
        model: name of the judge model. With several names, every model judges every item.
        prompt, pair_prompt: a template, as in :class:`~qreward.judge.config.JudgeConfig`; or a list of messages whose contents are
            templates; or a function from an item's fields to messages.
        verdict: the pydantic model of an answer. The score is the field ``score`` of this model, the property ``score``, or the only
            required field that is a number or a bool.
        system, scale, range, method, rubric, rubric_column, min_label_mass, samples, settle: as in
            :class:`~qreward.judge.config.JudgeConfig`.
        reasks, finish_reasons, response_format, preset, calibration, budget, cache, cache_namespace: as there.
        answer: as in :class:`~qreward.judge.config.JudgeConfig`; or a pattern with one group, which holds the value; or a function from
            the text of an answer to its value, an instance of ``verdict``, or None for no verdict.
        score: a function from a verdict to its reward. ``scale`` and ``range`` do not change this reward. The function returns None to
            reject an answer.
        owns_client: True if the client is closed when this judge is closed.
        params: parameters of each request, such as ``temperature`` and ``max_tokens``. ``extra_headers``, ``extra_body`` and ``hedge``
            work as in :meth:`QRewardClient.chat_completion`. A ``seed`` is increased by one for each sample.

    Raises:
        ConfigError: a setting is invalid, or the calibration was made for another judge.

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
        method: Method = "write",
        rubric: Rubric | Sequence[Any] | Mapping[str, Any] | str | Path | None = None,
        rubric_column: str | None = None,
        min_label_mass: float = MIN_LABEL_MASS,
        samples: int = 1,
        settle: Settle = "majority",
        reasks: int = 1,
        finish_reasons: Sequence[str] = (),
        response_format: ResponseFormat = "auto",
        answer: Answer | None = None,
        preset: str | None = None,
        score: Callable[[Any], float | None] | None = None,
        calibration: Calibration | str | Path | None = None,
        budget: Budget | Mapping[str, Any] | float | None = None,
        cache: str | Path | None = None,
        cache_namespace: str = "",
        owns_client: bool = False,
        **params: Any,
    ) -> None:
        settings: dict[str, Any] = {name: value for name, value in locals().items() if name in _PASSED_ON}
        if not isinstance(client, QRewardClient):
            raise ConfigError(f"client must be a QRewardClient, or for SyncJudge a SyncQRewardClient, not a {type(client).__name__}")
        settings_of.check_params(params)
        self._client, self._hedge = client, request_options({"hedge": params.get("hedge", True)}, None).hedge
        known = {} if preset is None else settings_of.preset_of(preset)
        given: dict[str, Any] = {"prompt": prompt, "pair_prompt": pair_prompt, "scale": scale, "answer": answer}
        prompt, pair_prompt, scale, answer = (known.get(name) if value is None else value for name, value in given.items())
        criteria = rubric if rubric is not None else rubric_column
        own_verdict = None if verdict is ScoreVerdict else verdict
        settings_of.check_rubric(criteria, verdict=own_verdict, scale=scale, score=score, answer=answer)
        of = "answer" if preset is None or answer != known["answer"] else f"the form of answers that preset {preset!r} sets"
        form, pair_form = forms_of(answer, (prompt, pair_prompt), response_format, method, finds=criteria is None, of=of)
        parser = VerdictParser(verdict, scale=scale, range=range, score=score, form=form)
        settings |= {} if criteria is not None else {"scale": parser.scale}
        self._config = JudgeConfig(**settings, params=params)
        prompts = {"prompt": prompt, "pair_prompt": pair_prompt}
        self._given: dict[str, Any] = {**prompts, "verdict": verdict, "score": score, "owns_client": owns_client, "answer": answer}
        self._answer = (pair_form if prompt is None and pair_prompt is not None else form).name
        self._schema, config = parser.schema, self._config
        self._ends = (config.range or (0.0, 1.0)) if config.has_criteria else parser.ends
        self._calibrator, calibrate = Calibrator(), None
        if calibration is not None:
            ends = range_to_calibrate(config.method, self._ends)
            calibrate = self._calibrator.use(Calibration.load(calibration), self.identity, ends)
        decide, prices = runtime_of(client).dialects, runtime_of(client).prices
        self._requests = RequestBuilder(config, {**self._given, "pair_answer": pair_form}, parser, decide, calibrate)
        self._spending = Spending(", ".join(map(repr, config.model)), config.budget, prices)
        self._cache = None if config.cache is None else Cache(config.cache)
        self._running: Running = {}

    @property
    def answer(self) -> str:
        """The form of the answers: as declared, or as the prompt shows it, or ``json``. With a prompt for pairs only, of those on pairs."""
        return self._answer

    @classmethod
    def from_config(cls, client: QRewardClient, config: JudgeConfig | Mapping[str, Any], *, owns_client: bool = False) -> Judge:
        """Create a judge from its settings.

        Raises:
            ConfigError: a setting is invalid, or ``verdict`` names a class that does not exist.
        """
        wanted = settings_of.config_of(config)
        settings = {name: getattr(wanted, name) for name in wanted.model_fields_set - {"params", "verdict"}}
        verdict = NAMED.get(wanted.verdict) or load_object(wanted.verdict, "verdict", "my_verdicts:Correct")
        return cls(client, verdict=verdict, owns_client=owns_client, **settings, **wanted.params)

    async def score(
        self,
        /,
        prompt: Any,
        response: Any,
        reference: Any = None,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Verdict:
        """Judge one response.

        Args:
            prompt: the task that the response answers: a text, or messages. Images, sounds and files in messages are sent to the judge.
            response: the response to judge.
            reference: the correct answer. None, NaN and a blank text mean that there is no correct answer.
            timeout: seconds for the whole call, including queueing, retries, all votes and repeated requests. The default is the timeout
                of the client. None waits for ever.
            priority, tenant: as in :meth:`QRewardClient.chat_completion`.
            fields: the other fields that the prompt template names.

        Returns:
            The aggregated verdict with its votes.

        Raises:
            InvalidResponse: no answer could be parsed as a verdict. The message states the reason and the beginning of the last answer.
            RequestError, NoEndpoint: as in :meth:`QRewardClient.chat_completion`.
            ConfigError: the response is None, a field that the template names is missing, or a field is unknown. Nothing was sent.
            BadRequest: a field cannot be written into a prompt, such as an image in an unknown form. Nothing was sent.
        """
        item = {**fields, "prompt": prompt, "response": response, "reference": reference}
        verdict: Verdict = await self._one(item, {"timeout": timeout, "priority": priority, "tenant": tenant})
        return verdict

    async def compare(
        self,
        /,
        prompt: Any,
        first: Any,
        second: Any,
        reference: Any = None,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Comparison:
        """Judge which of two responses is better.

        Each judge model sees the responses in both orders. If a model prefers different responses in the two orders, its preference is a
        tie.

        Args:
            prompt, reference, timeout, priority, tenant, fields: as in :meth:`score`.
            first, second: the responses.

        Raises:
            InvalidResponse, RequestError, NoEndpoint, ConfigError: as in :meth:`score`.
        """
        pair = {**fields, "prompt": prompt, "first": first, "second": second, "reference": reference}
        comparison: Comparison = await self._one(pair, {"timeout": timeout, "priority": priority, "tenant": tenant}, pairs=True)
        return comparison

    async def batch_score(self, items: Iterable[Item] | AsyncIterable[Item], **options: Unpack[JudgeBatchOptions]) -> BatchResult[Verdict]:
        """Judge many responses, as fast as the endpoints allow.

        Args:
            items: a list, an iterator or an async iterator of ``(prompt, response)``, ``(prompt, response, reference)`` or mappings of
                fields. Items are read no faster than their requests are sent. Fields that the prompt does not name, such as an ``id``, are
                not sent. ``extra`` of a result has all fields of a mapping except ``prompt``, ``response`` and ``reference``.
            timeout: seconds for one item, from the moment when an endpoint takes the first request of the item. If no endpoint of a model
                is alive for this time, all queued items fail with ``RequestTimeout``.
            deadline: seconds for the whole batch. Items that are not judged by the deadline fail with ``DeadlineExceeded``.
            priority, tenant, on_result, progress, keep_results: as in :meth:`QRewardClient.batch_chat_completion`.

        Returns:
            The results in the order of the input. The result of an item that failed has an ``error``. ``latency`` is the time in seconds
            from the first request of the item to its verdict. ``attempts`` has the failed attempts of all requests of the item. ``stats``
            counts items, except in the statistics of an endpoint, which count requests.

        Raises:
            NoEndpoint, ConfigError: no endpoint serves a model, or an option is invalid. Nothing was sent.
            BatchInterrupted: the input or ``on_result`` raised an exception. The error holds the results so far.
        """
        return await self._many(items, options)

    async def batch_compare(
        self, pairs: Iterable[Pair] | AsyncIterable[Pair], **options: Unpack[JudgeBatchOptions]
    ) -> BatchResult[Comparison]:
        """Compare many pairs.

        Args:
            pairs: ``(prompt, first, second)``, ``(prompt, first, second, reference)`` or mappings of fields.
            options: as in :meth:`batch_score`, which also describes the results and errors.
        """
        return await self._many(pairs, options, pairs=True)

    def check_item(self, item: Item) -> None:
        """Raise ``ConfigError`` or ``BadRequest`` if an item cannot be judged, as :meth:`batch_score` would. Nothing is sent.

        Example:
            >>> judge.check_item({"prompt": "6 * 7?", "response": "42"})
        """
        make = partial(self._requests.item, limits=self._requests.checked, pairs=False, strict=False)
        if isinstance(found := prepared(POINT_NAMES, make, item), Invalid):
            raise found.error

    @property
    def method(self) -> Method:
        """``write``, ``decide`` or ``auto``."""
        return self._config.method

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the scores; None for a judge without a calibration."""
        return self._calibrator.calibration

    @property
    def identity(self) -> JudgeIdentity:
        """The settings on which the scores depend, and the weights that have answered so far."""
        others = {name: self._given[name] for name in ("prompt", "score", "answer")}
        verdict = [self._given["verdict"], self._schema] if not self._config.has_criteria else None
        return identity_of(self._config, {**others, "verdict": verdict}, self._calibrator.weights)

    @property
    def spent(self) -> Usage:
        """The tokens and US dollars that this judge has spent in this process, also on answers that could not be read."""
        return self._spending.total

    @property
    def verdict_settings(self) -> list[Any]:
        """The settings on which verdicts depend, as :func:`~qreward.judge.types.described` uses them."""
        identity, config, calibration = self.identity, self._config, self.calibration
        calibrated = None if calibration is None else calibration.model_dump()
        return [identity.models, identity.settings, config.range, config.min_label_mass, config.reasks, calibrated]

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The lowest and the highest score; None with a ``score`` function, whose limits are not known."""
        return self._ends

    async def rank(
        self,
        /,
        prompt: Any,
        responses: Sequence[Any],
        reference: Any = None,
        *,
        comparisons: int | None = None,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Ranking:
        """Rank the responses to one prompt, by comparing pairs of responses.

        Each pair is compared in both orders, as in :meth:`compare`. Identical responses share a rank and are not compared with each other.
        A comparison that fails is left out, and counted in ``failed``. With fewer than two different responses no request is sent.

        Args:
            prompt, reference, priority, tenant, fields: as in :meth:`score`.
            responses: the responses, of which at most 64 differ.
            comparisons: number of pairs to compare, at least ``n - 1`` for ``n`` different responses. The default is about
                ``n * log2(n)``, or all pairs if there are fewer.
            timeout: seconds for all rounds together, including queueing. The default is the timeout of the client. None waits for ever.

        Raises:
            InvalidResponse: some comparisons failed, and the successful comparisons do not connect all responses.
            RequestTimeout: the timeout passed before the last round ended.
            RequestError: at most half of the comparisons succeeded. If all errors have the same class, the raised error has this class.
            NoEndpoint: no endpoint serves a model. Nothing was sent.
            ConfigError: a response is None, ``comparisons`` is too small, or a field is missing or unknown. Nothing was sent.
        """
        item = {**fields, "prompt": prompt, "responses": responses, "reference": reference}
        make = partial(self._requests.item, limits=self._requests.written, pairs=True, strict=True)
        group = ResponseGroup(item, None, comparisons, make)  # made here, so that an invalid group raises now
        limit = runtime_of(self._client).request_options({"timeout": timeout}).timeout
        options = {"timeout": timeout, "priority": priority, "tenant": tenant, "deadline": limit, "progress": False}
        (result,) = await self._many([item], options, pairs=True, group=group.using)
        if isinstance(result.error, DeadlineExceeded):
            late = RequestTimeout(f"no ranking within {limit:g} s; model {', '.join(self._config.model)!r}")
            late.usage = result.error.usage
            raise late
        return result.value  # type: ignore[no-any-return]

    async def batch_rank(
        self,
        groups: Iterable[Responses] | AsyncIterable[Responses],
        *,
        comparisons: int | None = None,
        **options: Unpack[JudgeBatchOptions],
    ) -> BatchResult[Ranking]:
        """Rank many groups of responses at the same time. A group does not wait for the rounds of other groups.

        Args:
            groups: ``(prompt, responses)``, ``(prompt, responses, reference)`` or mappings of fields. ``extra`` of a result has all other
                fields of a mapping.
            comparisons: as in :meth:`rank`, for each group.
            options: as in :meth:`batch_score`. ``timeout`` is the number of seconds for each comparison. A group that is not ranked by the
                ``deadline`` fails with ``DeadlineExceeded``.

        Returns:
            One result for each group, in the order of the input. The progress and ``stats`` count groups.

        Raises:
            NoEndpoint, ConfigError, BatchInterrupted: as in :meth:`batch_score`.
        """
        budget_of(1, comparisons)
        return await self._many(groups, options, pairs=True, group=partial(ResponseGroup, comparisons=comparisons))

    async def aclose(self) -> None:
        """Write pending cache entries, and close the client if the judge owns it.

        A judge that does not own its client can be used again.
        """
        if self._cache is not None:
            try:
                closing = asyncio.get_running_loop().run_in_executor(None, self._cache.close)
            except RuntimeError:  # the process is ending, and no thread can be started
                self._cache.close()
            else:
                await closing
        if self._given["owns_client"]:
            await self._client.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {name: getattr(self._config, name) for name in self._config.model_fields_set - {"params"}}
        return partial(Judge, self._client, **settings, **self._config.params, **self._given), ()

    def __repr__(self) -> str:
        return f"<Judge {', '.join(self._config.model)}>"

    async def _one(self, fields: Mapping[str, Any], options: Mapping[str, Any], *, pairs: bool = False) -> Any:
        born, common = runtime_of(self._client).clock(), self._call_context(options)
        limits = self._requests.written if self._config.method == "write" else await self._limits(common, common.options.timeout)
        return await self._requests.item(fields, limits=limits, pairs=pairs).judged(common, born)

    async def _many(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        options: Mapping[str, Any],
        *,
        pairs: bool = False,
        group: Callable[..., ResponseGroup] | None = None,
    ) -> BatchResult[Any]:
        check_batch_options(options)
        runtime, what = runtime_of(self._client), "items" if group is None else "groups"
        began, items, common = runtime.clock(), batch_items(what, items), self._call_context(options)
        settings = runtime.result_settings(options, next(iter(common.pools.values())), items, ", ".join(self._config.model))
        limits = self._requests.written if self._config.method == "write" else await self._limits(common, settings.deadline)
        make: Callable[..., Any] = partial(self._requests.item, limits=limits, pairs=pairs, strict=False)
        if group is None:
            names, calls = PAIR_NAMES if pairs else POINT_NAMES, self._requests.counts(common.pools.values(), limits, pairs=pairs)
        else:
            names, calls = GROUP_NAMES, dict.fromkeys(common.pools.values())
            make = partial(group, make=make)
        read = partial(prepared, names, make)
        return await ItemBatch(common, items, read, settings, tasks_per_item=calls, unit=what, waited=runtime.clock() - began).run()

    async def _limits(self, common: CallContext, timeout: float | None) -> QuestionLimits:
        """Return the limits of requests for decisions. First, the dialects of the servers are found, in at most ``timeout`` seconds."""
        dialects, pools = runtime_of(self._client).dialects, common.pools
        auto, works = self._config.method == "auto", dialects.works
        asked = [model for model in pools if (model not in works if auto else model not in dialects.most)]
        await asyncio.gather(*(dialects.find(common.driver, pools[model], model, timeout, works=auto) for model in asked))
        return tuple(0 if auto and works.get(model) is False else dialects.most_at(pool, model) for model, pool in pools.items())

    def _call_context(self, options: Mapping[str, Any]) -> CallContext:
        runtime = runtime_of(self._client)
        pools = dict(zip(self._config.model, map(runtime.fleet.pool, self._config.model), strict=True))
        request_options = runtime.request_options({**options, "hedge": self._hedge})
        return CallContext(runtime.engine.driver(), self._running, self._calibrator, self._spending, self._cache, request_options, pools)


class SyncJudge(BlockingTwin[Judge]):
    """Judges as :class:`Judge` does, with the same settings, results and errors, but with methods that block.

    A background thread does the work; :class:`SyncQRewardClient` describes it.

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
        self._async = Judge(_async_client(client), **settings)

    @classmethod
    def from_config(
        cls, client: SyncQRewardClient | QRewardClient, config: JudgeConfig | Mapping[str, Any], *, owns_client: bool = False
    ) -> SyncJudge:
        """Create a judge from its settings. See :meth:`Judge.from_config`."""
        twin = cls.__new__(cls)
        twin._async = Judge.from_config(_async_client(client), config, owns_client=owns_client)
        return twin

    def check_item(self, item: Item) -> None:
        """Check an item. See :meth:`Judge.check_item`."""
        self._async.check_item(item)

    score = blocking(Judge.score)
    compare = blocking(Judge.compare)
    batch_score = blocking(Judge.batch_score)
    batch_compare = blocking(Judge.batch_compare)
    rank = blocking(Judge.rank)
    batch_rank = blocking(Judge.batch_rank)


def _async_client(client: SyncQRewardClient | QRewardClient) -> QRewardClient:
    return client._async if isinstance(client, SyncQRewardClient) else client
