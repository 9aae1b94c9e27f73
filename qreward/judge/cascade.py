"""``Cascade`` uses several scorers in turn. If a scorer is not sure of an item, the next scorer scores the item."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple, Unpack

from pydantic import Field, field_validator

from qreward.engine.portal import BlockingTwin, blocking
from qreward.errors import ConfigError, Fault, InvalidResponse, QRewardError, RequestTimeout
from qreward.judge.cascade_batch import CascadeBatch, Confidence, Earlier, Stage, completed, completed_error
from qreward.judge.config import JudgeConfig
from qreward.judge.scorers import AnyScorer, described, models_of, unblocked
from qreward.judge.types import Item, Scorer, Verdict, check_batch_options
from qreward.options import DEFAULT, JudgeBatchOptions, batch_items, seconds
from qreward.results import BatchResult
from qreward.runtime import runtime_of
from qreward.server.import_string import load_object
from qreward.settings.base import Number, Policy, shown, wrong


class CascadeConfig(Policy):
    """Holds the settings of a :class:`Cascade`, without the clients.

    Args:
        stages: the scorers, the cheapest first. Each scorer is given as the settings of a judge or as the name of a reward model. A mapping
            also names the stages.
        min_confidence: minimum confidence of a final verdict: one number for all stages, or one number for each stage except the last
            stage.
        confidence: name of a stage -> ``module:function``. The function takes a verdict and returns its confidence, which replaces the
            confidence of the verdict.

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
        """Validate each stage here, because pydantic would report an error for each possible type of the stage."""
        if not isinstance(value, list | tuple | Mapping):
            raise ValueError("must be a list of stages, the cheapest first, or a mapping from their names")
        read: dict[str | int, object] = {}
        faults: list[Fault] = []
        for key, stage in value.items() if isinstance(value, Mapping) else enumerate(value):
            try:
                read[key] = JudgeConfig.from_content(stage) if isinstance(stage, Mapping) else stage
            except ConfigError as error:
                faults += [((key, *path), text.removeprefix(f"{'.'.join(map(str, path))}: ")) for path, text in error.faults]
            if not isinstance(stage, Mapping | JudgeConfig) and not (isinstance(stage, str) and stage.strip()):
                faults.append(((key,), f"must be the settings of a judge, or the name of a reward model, not {shown(stage)}"))
        if faults:
            raise wrong(*faults)
        return read if isinstance(value, Mapping) else tuple(read.values())

    @field_validator("min_confidence", mode="before")
    @classmethod
    def _read_numbers(cls, value: object) -> object:
        check = Number()
        return [check(number) for number in value] if isinstance(value, list | tuple) else check(value)


class CascadeStats(NamedTuple):
    """Holds counts of the items that each stage of a cascade has decided since the cascade was created.

    Attributes:
        decided_by: name of a stage -> number of items with a verdict or error of this stage.
        escalated: share of the items that went beyond the first stage, from 0 to 1; 0.0 before the first item.
    """

    decided_by: Mapping[str, int]
    escalated: float


class Cascade:
    """Scores responses with several scorers in turn, until one scorer is sure. A cascade is a ``Scorer`` too.

    A verdict is final if its confidence is at least ``min_confidence``. If the confidence is lower or None, the next scorer scores the
    item. The next scorer also scores an item that failed, for example with ``InvalidResponse``, a rate limit, a timeout or a dead endpoint.
    A verdict or error of the last scorer is final. A ``ConfigError``, ``NoEndpoint``, ``ClientClosed`` or ``DeadlineExceeded`` of any
    scorer is final.

    A cascade can be created without a running event loop, used from several event loops and threads, and pickled. A pickled copy starts
    with empty statistics.

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
        scorers = [unblocked(stage, "a stage") for stage in _listed(stages)]
        names = [*stages] if isinstance(stages, Mapping) else _names(scorers)
        functions = _each("confidence", confidence, len(scorers) - 1)
        least = _each("min_confidence", min_confidence, len(scorers) - 1)
        for name, number, function in zip(names, least, functions, strict=False):
            if function is not None and not callable(function):
                raise ConfigError(f"confidence of stage {name!r} must be a function from a verdict to a number, not {function!r}")
            _check_least(name, number, function is None)
        shares = [0.5 ** (place + 1) for place in range(len(scorers) - 1)]
        self._stages = tuple(map(Stage, names, scorers, [*least, None], [*functions, None], [*shares, shares[-1]]))
        self._counts = dict.fromkeys(names, 0)
        self._lock = threading.Lock()

    @classmethod
    def from_config(cls, config: CascadeConfig, make: Callable[[JudgeConfig | str], Scorer]) -> Cascade:
        """Create a cascade from its settings.

        Args:
            config: the settings.
            make: makes the scorer of a stage, as :func:`~qreward.judge.reward_model.make_scorer` does.

        Raises:
            ConfigError: a setting is invalid, or ``confidence`` names a function or a stage that does not exist.
        """
        given = config.stages
        stages = {name: make(stage) for name, stage in given.items()} if isinstance(given, Mapping) else [make(stage) for stage in given]
        names = [*stages] if isinstance(stages, Mapping) else _names(stages)
        for name in config.confidence:
            if name not in names[:-1]:
                raise ConfigError(f"confidence: {name!r} must be one of the stages before the last: {', '.join(map(repr, names[:-1]))}")
        functions = [load_object(config.confidence[name], "confidence", "my_rewards:distance") if name in config.confidence else None
                     for name in names[:-1]]  # fmt: skip
        return cls(stages, min_confidence=config.min_confidence, confidence=functions if config.confidence else None)

    def stats(self) -> CascadeStats:
        """Return how many items each stage has decided since the cascade was created."""
        with self._lock:
            counts = dict(self._counts)
        total = sum(counts.values())
        return CascadeStats(counts, 1 - counts[self._stages[0].name] / total if total else 0.0)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

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
        before: list[Earlier] = []
        for stage in self._stages:
            left: Any = limit
            if until is not None:
                left = until - clock()
                if left <= 0:
                    late = RequestTimeout(f"no sure verdict within {limit:g} s; the time was over before stage {stage.name!r}")
                    raise completed_error(before, late)
                left = left if stage.min_confidence is None else left / 2
            try:
                verdict = await stage.scorer.score(prompt, response, reference=reference, timeout=left, **others)
            except QRewardError as error:
                if stage.is_final(error):
                    self._count(stage.name)
                    raise completed_error(before, error) from error.__cause__
                before.append(Earlier.of(stage.name, error))
                continue
            try:
                sure = stage.is_sure(verdict)
            except InvalidResponse as error:
                self._count(stage.name)
                error.usage = verdict.usage
                raise completed_error(before, error) from error.__cause__
            if sure:
                self._count(stage.name)
                return completed(before, stage.name, verdict)
            before.append(Earlier.of(stage.name, verdict))
        raise AssertionError("the last stage is always sure")

    def _limit(self, timeout: float | None) -> Any:
        """Return the time limit of an item in seconds; None for no limit; ``DEFAULT`` if the default is not known."""
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
            items: as in :meth:`Judge.batch_score`.
            options: as in :meth:`Judge.batch_score`. ``timeout`` is the number of seconds for all stages together. Each stage except the
                last stage uses at most half of the time that is left. ``deadline`` is for the whole batch.

        Returns:
            The results in the order of the input. ``latency`` and ``attempts`` of a result cover all stages. ``stats.decided_by`` counts
            the items that each stage decided.

        Raises:
            NoEndpoint, ConfigError, BatchInterrupted: as in :meth:`Judge.batch_score`.
        """
        check_batch_options(options)
        limit = self._limit(options.get("timeout", DEFAULT))
        self._check_routes()
        batch = CascadeBatch(self._stages, batch_items("items", items), options, limit=limit, count=self._count)
        return await batch.run()

    def _check_routes(self) -> None:
        for stage in self._stages:
            if isinstance(stage.scorer, Cascade):
                stage.scorer._check_routes()
            elif (client := getattr(stage.scorer, "_client", None)) is not None:
                for model in models_of(stage.scorer):
                    runtime_of(client).pool(model)

    async def aclose(self) -> None:
        """Close all stages."""
        for stage in self._stages:
            await stage.scorer.aclose()

    async def __aenter__(self) -> Cascade:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Cascade, {stage.name: stage.scorer for stage in self._stages}, **self._given), ()

    @property
    def verdict_settings(self) -> list[Any]:
        """The settings on which verdicts depend, as :func:`~qreward.judge.scorers.described` uses them."""
        return [[stage.name, described(stage.scorer), stage.min_confidence, stage.confidence] for stage in self._stages]

    def __repr__(self) -> str:
        return f"<Cascade {' -> '.join(stage.name for stage in self._stages)}>"


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

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncScorer, (self._async,)


def _listed(stages: object) -> list[Any]:
    values = list(stages.values()) if isinstance(stages, Mapping) else list(stages) if isinstance(stages, list | tuple) else []
    if len(values) < 2:
        raise ConfigError(f"stages must be a list of two or more scorers, or a mapping of names to them, not {stages!r}")
    for name in stages if isinstance(stages, Mapping) else ():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the name of a stage must be a text, not {name!r}")
    return values


def _names(scorers: Sequence[Any]) -> list[str]:
    """Return a name for each stage: the name of its model, or of its class. Equal names are numbered."""
    names: list[str] = []
    for scorer in scorers:
        inner = getattr(scorer, "_async", scorer)
        name = "+".join(models_of(inner)) or type(inner).__name__
        number = 1 + sum(other == name or other.startswith(f"{name} #") for other in names)
        names.append(name if number == 1 else f"{name} #{number}")
    return names


def _each(what: str, given: Any, count: int) -> list[Any]:
    """Return a list with one value for each stage except the last stage. ``given`` is such a list, or one value for all stages."""
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise ConfigError(f"{what} must be one value, or one for each stage but the last ({count}), not {len(given)}")
    return list(given)


def _check_least(name: str, number: object, is_share: bool) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not isfinite(number):
        raise ConfigError(f"min_confidence of stage {name!r} must be a number, not {number!r}")
    if is_share and not 0 <= number <= 1:
        raise ConfigError(f"min_confidence of stage {name!r} must be from 0 to 1, as the confidence of a verdict is, not {number:g}")
