"""``Cascade`` uses several scorers in turn. If a scorer is not sure of an item, the next scorer scores the item."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from dataclasses import replace
from functools import partial, reduce
from typing import Annotated, Any, NamedTuple, Unpack, cast

from pydantic import BeforeValidator, Field, TypeAdapter, field_validator

from qreward.callables import load_object
from qreward.engine.batch import size_of
from qreward.engine.portal import BlockingTwin, blocking
from qreward.errors import STOPPED, ClientClosed, ConfigError, DeadlineExceeded, InvalidResponse, NoEndpoint, QRewardError, RequestTimeout
from qreward.judge.config import JudgeConfig
from qreward.judge.parsing import ScoreFunctionError, called, finite
from qreward.judge.parsing.text import is_number
from qreward.judge.types import AnyScorer, Closing, Item, JudgeAnswer, Scorer, Verdict, check_finite, described, one_by_one, unblocked
from qreward.options import DEFAULT, JudgeBatchOptions, batch_items, callback, check_batch_options, keeps_results, seconds
from qreward.progress import start_progress
from qreward.records import added
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result, merged_stats
from qreward.runtime import runtime_of
from qreward.settings.base import Finite, Policy, faults_at, shown, wrong


class CascadeConfig(Policy):
    """Holds the settings of a :class:`Cascade`, without the clients.

    Args:
        stages: the scorers, as in :class:`Cascade`. Each is given as the settings of a judge or as the name of a reward model.
        min_confidence: as in :class:`Cascade`.
        confidence: name of a stage -> ``module:function``, a function from a verdict to its confidence.

    Example:
        >>> CascadeConfig(stages=("rm-7b", JudgeConfig(model="judge-70b")), confidence={"rm-7b": "my_rewards:distance"}).min_confidence
        0.8
    """

    stages: tuple[JudgeConfig | str, ...] | dict[str, JudgeConfig | str] = Field(min_length=2)
    min_confidence: float | tuple[float, ...] = 0.8
    confidence: dict[str, str] = Field(default_factory=dict)

    @field_validator("stages", mode="before")
    @classmethod
    def _read_stages(cls, value: object) -> object:
        if not isinstance(value, list | tuple | Mapping):
            raise ValueError("must be a list of stages, the cheapest first, or a mapping from their names")
        return (_BY_NAME if isinstance(value, Mapping) else _IN_ORDER).validate_python(value)

    @field_validator("min_confidence", mode="before")
    @classmethod
    def _read_numbers(cls, value: object) -> object:
        return (_NUMBERS if isinstance(value, list | tuple) else _NUMBER).validate_python(value)


def _stage(value: object) -> object:
    """Return a stage in its settings, which is validated here, because pydantic would report an error for each possible type."""
    if isinstance(value, Mapping):
        try:
            return JudgeConfig.from_content(value)
        except ConfigError as error:
            raise wrong(*faults_at((), error)) from None
    if not isinstance(value, JudgeConfig) and not (isinstance(value, str) and value.strip()):
        raise ValueError(f"must be the settings of a judge, or the name of a reward model, not {shown(value)}")
    return value


_Stage = Annotated[Any, BeforeValidator(_stage)]
_IN_ORDER, _BY_NAME = TypeAdapter(tuple[_Stage, ...]), TypeAdapter(dict[str, _Stage])
_NUMBER, _NUMBERS = TypeAdapter(Finite), TypeAdapter(tuple[Finite, ...])

Confidence = Callable[[Verdict], float | None]
"""A function from a verdict to its confidence. None means that the stage is not sure."""

Outcome = Verdict | QRewardError

_FINAL = (ConfigError, NoEndpoint, *STOPPED)
"""Types of errors that end an item at any stage: the settings, the item or the program is the cause, or the time of the batch is over."""


class Stage(NamedTuple):
    """Holds one scorer of a cascade. ``min_confidence`` is None for the last stage, all of whose outcomes are final."""

    name: str
    scorer: Scorer
    min_confidence: float | None
    confidence: Confidence | None

    def judged(self, outcome: Outcome) -> tuple[Outcome, bool]:
        """Return the outcome of an item at this stage, and whether it is final. A verdict with an invalid number becomes an error."""
        if isinstance(outcome, QRewardError):
            return outcome, self.min_confidence is None or isinstance(outcome, _FINAL)
        where, sure = f"the confidence function of stage {self.name!r}", outcome.confidence
        try:
            check_finite(outcome)
            if self.min_confidence is None:
                return outcome, True
            if self.confidence is not None:
                sure = called(where, self.confidence, outcome)
                sure = None if sure is None else finite(sure, where)
        except InvalidResponse as error:
            return error, True
        except ScoreFunctionError as fault:
            invalid = InvalidResponse(f"{fault}; the fault is in your code (see __cause__); return None where it is not sure")
            invalid.__cause__, invalid.usage = fault.__cause__, outcome.usage
            return invalid, True
        return outcome, sure is not None and sure >= self.min_confidence


def completed(before: Sequence[tuple[str, Outcome]], stage: str, outcome: Outcome) -> Outcome:
    """Return the final outcome of an item, with the usage and the errors of the stages ``before``, each with its name."""
    usage = reduce(added, [*(earlier.usage for _, earlier in before), outcome.usage], None)
    if isinstance(outcome, QRewardError):
        outcome.usage = usage
        for name, error in before:
            if isinstance(error, QRewardError):
                outcome.add_note(f"stage {name!r} failed before: {type(error).__name__}: {error}")
        return outcome
    cached = outcome.cached and all(isinstance(earlier, Verdict) and earlier.cached for _, earlier in before)
    inner = f"{stage}/{outcome.decided_by}" if outcome.decided_by else stage
    return replace(outcome, usage=usage, cached=cached, decided_by=inner)


class Cascade(Closing):
    """Scores responses with several scorers in turn, until one scorer is sure. A cascade is a ``Scorer`` too.

    A verdict is final if its confidence is at least ``min_confidence``. If the confidence is lower or None, the next scorer scores the
    item. The next scorer also scores an item that failed, for example with ``InvalidResponse``, a rate limit, a timeout or a dead endpoint.
    A verdict or error of the last scorer is final. A ``ConfigError``, ``NoEndpoint``, ``BatchCancelled``, ``ClientClosed`` or
    ``DeadlineExceeded`` of any scorer is final.

    A cascade can be created without a running event loop, used from several event loops and threads, and pickled.

    Args:
        stages: two or more scorers, the cheapest first, or a mapping from names to scorers. Without a mapping, a stage has the name of its
            model. A stage may be a ``SyncJudge``.
        min_confidence: one number from 0 to 1 for all stages, or one number for each stage except the last stage. A stage with a
            ``confidence`` function may have any finite number. The default is the threshold at which 199 of 201 answers of a decision model
            were right, according to the makers of the model.
        confidence: a function from a verdict to its confidence, for stages whose verdicts have no confidence, such as a reward model. Pass
            one function for all stages except the last stage, or a list with a function or None for each of these stages.

    Raises:
        ConfigError: an argument is invalid.

    Example:
        >>> from qreward import Judge, QRewardClient, RewardModelScorer
        >>> client = QRewardClient(["http://gpu-0:8000/v1"])
        >>> small, strong = RewardModelScorer(client, "rm-7b"), Judge(client, model="judge-70b")
        >>> Cascade([small, strong], confidence=lambda verdict: min(1, abs(verdict.score)))
        <Cascade rm-7b -> judge-70b>
    """

    def __init__(
        self,
        stages: Sequence[AnyScorer] | Mapping[str, AnyScorer],
        *,
        min_confidence: float | Sequence[float] = 0.8,
        confidence: Confidence | Sequence[Confidence | None] | None = None,
    ) -> None:
        self._given: dict[str, Any] = {"min_confidence": min_confidence, "confidence": confidence}
        if not isinstance(stages, Mapping | list | tuple) or len(stages) < 2:
            raise ConfigError(f"stages must be a list of two or more scorers, or a mapping of names to them, not {stages!r}")
        named = _by_name(stages, lambda stage: unblocked(stage, "a stage"))
        functions, least = (_each(what, self._given[what], len(named) - 1) for what in ("confidence", "min_confidence"))
        for name, number, function in zip(named, [*least, 0], [*functions, None], strict=True):
            of = f"of stage {name!r} must be"
            if not isinstance(name, str) or not name:
                raise ConfigError(f"the name of a stage must be a text, not {name!r}")
            if function is not None and not callable(function):
                raise ConfigError(f"confidence {of} a function from a verdict to a number, not {function!r}")
            if not is_number(number):
                raise ConfigError(f"min_confidence {of} a number, not {number!r}")
            if function is None and not 0 <= number <= 1:
                raise ConfigError(f"min_confidence {of} from 0 to 1, as the confidence of a verdict is, not {number:g}")
        self._stages = tuple(map(Stage, named, named.values(), [*least, None], [*functions, None]))

    @classmethod
    def from_config(cls, config: CascadeConfig, make: Callable[[JudgeConfig | str], Scorer]) -> Cascade:
        """Create a cascade from its settings.

        Args:
            config: the settings.
            make: makes the scorer of a stage, as :func:`~qreward.judge.reward_model.make_scorer` does.

        Raises:
            ConfigError: a setting is invalid, or ``confidence`` names a function or a stage that does not exist.
        """
        stages = _by_name(config.stages, make)
        early = [*stages][:-1]
        for name in config.confidence:
            if name not in early:
                raise ConfigError(f"confidence: {name!r} must be one of the stages before the last: {', '.join(map(repr, early))}")
        functions = {name: load_object(path, "confidence", "my_rewards:distance") for name, path in config.confidence.items()}
        return cls(stages, min_confidence=config.min_confidence, confidence=[functions.get(name) for name in early])

    async def score(
        self,
        prompt: Any,
        response: Any,
        reference: Any = None,
        *,
        timeout: float | None = DEFAULT,
        **others: Any,
    ) -> Verdict:
        """Score one response.

        Args:
            prompt, response, reference: as in :meth:`Judge.score`.
            timeout: seconds for all stages together. The default is the timeout of the first stage's client; None waits for ever. Each
                stage except the last stage uses at most half of the time that is left, so that a dead endpoint leaves time for the next
                stage.
            others: ``priority``, ``tenant`` and the fields of the item, which are passed to each stage.

        Returns:
            The verdict of the first stage that is sure; if no stage is sure, the verdict of the last stage. ``decided_by`` is the name of
            the stage that gave the verdict. ``usage`` has the tokens of all stages.

        Raises:
            QRewardError: the error of the last stage, or a final error of an earlier stage. The notes of the error list the errors of
                earlier stages.
        """
        limit = self._limit(timeout)
        clock = asyncio.get_running_loop().time
        until = None if limit is None or limit is DEFAULT else clock() + limit
        before: list[tuple[str, Outcome]] = []
        for stage in self._stages:
            left: Any = limit
            if until is not None and (left := until - clock()) <= 0:
                late = RequestTimeout(f"no sure verdict within {limit:g} s; the time was over before stage {stage.name!r}")
                raise cast("QRewardError", completed(before, stage.name, late))
            if until is not None and stage.min_confidence is not None:
                left /= 2
            outcome: Outcome
            try:
                outcome = await stage.scorer.score(prompt, response, reference=reference, timeout=left, **others)
            except QRewardError as error:
                outcome = error
            outcome, is_final = stage.judged(outcome)
            if not is_final:
                before.append((stage.name, outcome))
                continue
            whole = completed(before, stage.name, outcome)
            if isinstance(whole, QRewardError):
                raise whole from whole.__cause__
            return whole
        raise AssertionError("an outcome of the last stage is always final")

    def _limit(self, timeout: float | None) -> Any:
        """Return the seconds for an item; None for no limit; ``DEFAULT`` if the default is not known."""
        if timeout is not DEFAULT:
            return seconds("timeout", timeout)
        first = self._stages[0].scorer
        if isinstance(first, Cascade):
            return first._limit(timeout)
        client = getattr(first, "_client", None)
        return DEFAULT if client is None else runtime_of(client).request_options({}).timeout

    async def batch_score(self, items: Iterable[Item] | AsyncIterable[Item], **options: Unpack[JudgeBatchOptions]) -> BatchResult[Verdict]:
        """Score many responses. When a stage has scored all its items, the next stage scores those of which it is not sure.

        Args:
            items, options: as in :meth:`Judge.batch_score`. ``timeout`` is for all stages together, as in :meth:`score`. ``deadline`` is
                for the whole batch.

        Returns:
            The results in the order of the input. ``latency`` and ``attempts`` of a result cover all stages. ``stats.decided_by`` counts
            the items that each stage decided.

        Raises:
            NoEndpoint, ConfigError, BatchInterrupted: as in :meth:`Judge.batch_score`.
        """
        check_batch_options(options)
        limit = self._limit(options.get("timeout", DEFAULT))
        self._check_routes()
        return await _Batch(self._stages, batch_items("items", items), options, limit).run()

    def _check_routes(self) -> None:
        for stage in self._stages:
            if isinstance(stage.scorer, Cascade):
                stage.scorer._check_routes()
            elif (client := getattr(stage.scorer, "_client", None)) is not None:
                for model in models_of(stage.scorer):
                    runtime_of(client).fleet.pool(model)

    async def aclose(self) -> None:
        """Close all stages."""
        for stage in self._stages:
            await stage.scorer.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Cascade, {stage.name: stage.scorer for stage in self._stages}, **self._given), ()

    @property
    def verdict_settings(self) -> list[Any]:
        """The settings on which verdicts depend, as :func:`~qreward.judge.types.described` uses them."""
        return [[stage.name, described(stage.scorer), stage.min_confidence, stage.confidence] for stage in self._stages]

    def __repr__(self) -> str:
        return f"<Cascade {' -> '.join(stage.name for stage in self._stages)}>"


class _Batch:
    """Scores the items of one batch: one stage after the other, each with the items of which no earlier stage is sure."""

    def __init__(self, stages: Sequence[Stage], items: Iterable[Any] | AsyncIterable[Any], options: Mapping[str, Any], limit: Any) -> None:
        self._stages, self._input, self._limit = stages, items, limit
        self._given = {name: options[name] for name in ("priority", "tenant") if name in options}
        self._deadline = seconds("deadline", options.get("deadline"))
        self._receivers: list[Callable[[Result[Verdict]], object]] = []
        on_result, self._clock = callback("on_result", options.get("on_result")), asyncio.get_running_loop().time
        self._keep, self._results = keeps_results(options), dict[int, Result[Verdict]]()
        title = ", ".join(stage.name for stage in stages)
        self._progress = start_progress(options.get("progress"), size_of(items), title=title, clock=self._clock)
        self._receivers += [] if self._progress is None else [self._progress.add]
        self._receivers += [] if on_result is None else [on_result]
        self._left: dict[int, Any] = {}  # the items without a final result
        self._before: dict[int, list[Result[Verdict]]] = {}  # what earlier stages found
        self._decided_by = dict.fromkeys((stage.name for stage in stages), 0)
        self._read = self._ok = 0
        self._failure: BaseException | None = None
        self._is_stopped = False  # ``on_result`` or a later stage raised an exception

    async def run(self) -> BatchResult[Verdict]:
        began, stats = self._clock(), list[BatchStats]()
        try:
            for place in range(len(self._stages)):
                left = None if self._deadline is None else self._deadline - (self._clock() - began) * bool(place)
                if left is not None and left <= 0:
                    self._end_all(place, self._late())
                if not place or (self._left and not self._is_stopped):
                    stats += await self._run_stage(place, left)
            self._end_all(len(self._stages) - 1, ClientClosed("the last stage ended before this item was done"))
        finally:
            if self._progress is not None:
                self._progress.close()
        costs = [each.cost for each in stats if each.cost is not None]
        done, endpoints = sum(self._decided_by.values()), merged_stats(each.endpoints for each in stats)
        counts = done, self._ok, done - self._ok, self._clock() - began
        total = BatchStats(*counts, endpoints, cost=sum(costs) if costs else None, decided_by=self._decided_by)
        batch = BatchResult([self._results[index] for index in sorted(self._results)], total)
        if (error := self._failure) is not None:
            what = f"the batch stopped after {self._read} items ({type(error).__name__}: {error}); .results holds what is done"
            raise BatchInterrupted(what, batch) from error
        return batch

    async def _run_stage(self, place: int, left: float | None) -> list[BatchStats]:
        """Run the batch of one stage, with ``left`` seconds until the deadline, and return its statistics."""
        given: Any = {**self._given, "progress": False, "keep_results": False}
        if self._limit is not DEFAULT:
            given["timeout"] = self._limit and self._timeout(place)
        if left is not None:
            given["deadline"] = left
        indexes, items = [*self._left], self._input
        if place:
            items = [*self._left.values()]
        elif isinstance(items, Sequence):
            self._left = dict(enumerate(items))
        else:
            items = self._noted()
        try:
            return [(await self._stages[place].scorer.batch_score(items, on_result=partial(self._record, place, indexes), **given)).stats]
        except BatchInterrupted as error:  # if the input raised the exception, the later stages score what was read
            self._failure = self._failure or error.__cause__ or error
            return [] if error.results is None else [error.results.stats]
        except Exception as error:
            if not place:
                raise
            if isinstance(error, QRewardError):
                self._end_all(place, error)
            else:
                self._failure, self._is_stopped = self._failure or error, True
            return []

    def _record(self, place: int, indexes: Sequence[int], result: Result[Verdict]) -> None:
        if self._is_stopped:
            assert self._failure is not None
            raise self._failure
        index = indexes[result.index] if place else result.index
        self._read = max(self._read, index + 1)
        outcome, is_final = self._stages[place].judged(result.error or result.value)
        if is_final:
            self._end(place, index, result, outcome)
        else:
            self._before.setdefault(index, []).append(result)

    def _timeout(self, place: int) -> float:
        """Return the seconds for each item in a stage: half of the time that is left, or in the last stage all of it. A stage that failed
        has used all of its time, as its latency is not known."""
        limit: float = self._limit
        share = [limit * 0.5 ** (number + 1) for number in range(len(self._stages))]
        if place < len(self._stages) - 1:
            return share[place]
        used = [sum(each.latency if each.ok else most for each, most in zip(found, share, strict=False)) for found in self._before.values()]
        return max(limit - max(used, default=0.0), 2 * share[place])

    async def _noted(self) -> AsyncIterator[Any]:
        async with aclosing(one_by_one(self._input)) as items:
            async for item in items:
                self._left[self._read] = item
                self._read += 1
                yield item

    def _late(self, why: str = "") -> DeadlineExceeded:
        return DeadlineExceeded(f"not done within the batch's deadline of {self._deadline:g} s{why and '; '}{why}")

    def _end_all(self, place: int, error: QRewardError) -> None:
        with suppress(Exception):  # of ``on_result``, which ``_end`` has recorded
            for index in () if self._is_stopped else [*self._left]:
                self._end(place, index, Result(index, None, None, None, 0.0, 0.0), copy(error))

    def _end(self, place: int, index: int, result: Result[Verdict], outcome: Outcome) -> None:
        stage, before = self._stages[place], self._before.pop(index, [])
        self._left.pop(index, None)  # an item that was never read is not there
        self._decided_by[stage.name] += 1
        if place and isinstance(outcome, DeadlineExceeded):  # of the rest of the deadline
            usage, outcome = outcome.usage, self._late(str(outcome).partition("; ")[2])
            outcome.usage = usage
        earlier = [(each.name, one.error or one.value) for each, one in zip(self._stages, before, strict=False)]
        whole, everything = completed(earlier, stage.name, outcome), [*before, result]
        error = whole if isinstance(whole, QRewardError) else None
        answer = None if error is not None else JudgeAnswer(whole, estimated=any(each.usage_is_estimated for each in everything))
        trail = tuple(attempt for each in everything for attempt in each.attempts)
        latency, queued = sum(each.latency for each in everything), sum(each.queued for each in everything)
        extra = next((each.extra for each in everything if each.extra), None)  # an item that the deadline ends has it from an earlier stage
        result = Result(index, answer, error, result.endpoint, latency, queued, trail, extra)
        self._ok += result.ok
        if self._keep:
            self._results[index] = result
        try:
            for receive in self._receivers:
                receive(result)
        except BaseException as failure:
            self._failure, self._is_stopped = failure, True
            raise


class SyncScorer(BlockingTwin[Scorer]):
    """Gives a scorer blocking methods. The scorer is a ``Cascade``, a ``RewardModelScorer`` or a scorer of your own.

    The methods return and raise the same as the methods of the scorer. A background thread does the work; see :class:`SyncQRewardClient`.

    Args:
        inner: the scorer, which ``close()`` closes.

    Example:
        >>> from qreward import SyncJudge, SyncQRewardClient
        >>> with SyncQRewardClient(["http://gpu-0:8000/v1"]) as client:
        ...     SyncScorer(Cascade([SyncJudge(client, model="judge-7b"), SyncJudge(client, model="judge-70b")]))
        <SyncCascade judge-7b -> judge-70b>
    """

    score = blocking(Scorer.score)
    batch_score = blocking(Scorer.batch_score)


def models_of(scorer: Any) -> tuple[str, ...]:
    """Return the models that a judge or reward model asks; empty for another scorer."""
    models = getattr(getattr(scorer, "_config", None), "model", None) or getattr(scorer, "_model", None) or ()
    return (models,) if isinstance(models, str) else tuple(models)


def _by_name(stages: Sequence[Any] | Mapping[str, Any], make: Callable[[Any], Scorer]) -> dict[str, Scorer]:
    """Return the scorers that ``make`` makes of stages, by their names: those that are given, or those of the models or classes of the
    scorers, where equal names are numbered."""
    if isinstance(stages, Mapping):
        return {name: make(stage) for name, stage in stages.items()}
    named: dict[str, Scorer] = {}
    for scorer in map(make, stages):
        name = "+".join(models_of(scorer)) or type(scorer).__name__
        number = 1 + sum(other == name or other.startswith(f"{name} #") for other in named)
        named[name if number == 1 else f"{name} #{number}"] = scorer
    return named


def _each(what: str, given: Any, count: int) -> Sequence[Any]:
    """Return one value for each stage except the last stage. ``given`` is such a list, or one value for all stages."""
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise ConfigError(f"{what} must be one value, or one for each stage but the last ({count}), not {len(given)}")
    return given
