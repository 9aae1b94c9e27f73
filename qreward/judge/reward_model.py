"""``RewardModelScorer`` gives a reward model the ``Scorer`` interface. ``make_scorer`` makes a scorer from settings."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any, Unpack

from qreward.client import QRewardClient
from qreward.codecs.rewards.base import RewardScore
from qreward.codecs.rewards.kinds import SCORE
from qreward.errors import ConfigError
from qreward.judge.cascade import Cascade, CascadeConfig
from qreward.judge.config import JudgeConfig
from qreward.judge.judge import Judge
from qreward.judge.parsing import bounds
from qreward.judge.prompts import check_extra, present
from qreward.judge.requests import POINT_NAMES, extra_of, fields_of
from qreward.judge.types import Closing, Item, JudgeAnswer, Scorer, Verdict, Vote
from qreward.options import DEFAULT, JudgeBatchOptions, batch_items, callback, check_batch_options, check_params, keeps_results
from qreward.results import BatchInterrupted, BatchResult, Result, Usage
from qreward.runtime import runtime_of
from qreward.scoring.merge_spec import MergeSpec
from qreward.settings.policies import Priority

_OPTIONS = ("extra_headers", "extra_body", "hedge")


class RewardModelScorer(Closing):
    """Scores responses with a reward model. The scores of the verdicts come from ``client.score``.

    A scorer can be created without a running event loop, used from several event loops and threads, and pickled.

    Args:
        client: the client that sends the requests.
        model: name of the reward model.
        range: lowest and highest reward. A score outside the range is replaced by the nearest end of the range. None returns scores
            unchanged.
        owns_client: True if the client is closed when this scorer is closed.
        params: parameters of each request, as in :meth:`QRewardClient.score`.

    Raises:
        ConfigError: an argument is invalid.

    Example:
        >>> from qreward import QRewardClient
        >>> scorer = RewardModelScorer(QRewardClient(["http://gpu-0:8000/v1"]), "rm-7b")
        >>> async def reward(prompt, response):
        ...     return (await scorer.score(prompt, response)).score
    """

    def __init__(
        self,
        client: QRewardClient,
        model: str,
        *,
        range: tuple[float, float] | None = None,  # noqa: A002 - the name in the settings
        owns_client: bool = False,
        **params: Any,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigError(f"model must be the name of a reward model, not {model!r}")
        check_params({name: value for name, value in params.items() if name not in _OPTIONS})
        self._client, self._model, self._owns_client, self._params = client, model, owns_client, params
        self._range = None if range is None else bounds("range", range)
        if self._range is not None and self._range[0] >= self._range[1]:
            raise ConfigError(f"range bounds the scores, so it must be (lowest, highest), not ({self._range[0]:g}, {self._range[1]:g})")

    async def score(
        self,
        prompt: Any,
        response: Any,
        reference: Any = None,
        *,
        timeout: float | None = DEFAULT,
        priority: Priority | int | str = Priority.NORMAL,
        tenant: str | None = None,
        **fields: Any,
    ) -> Verdict:
        """Score one response. Raises the errors of :meth:`QRewardClient.score`.

        Args:
            prompt, response, timeout, priority, tenant: as in :meth:`QRewardClient.score`.
            reference: sent as ``label`` to servers that accept a label.
            fields: a reward model has no other fields. A field that is not None raises ``ConfigError``.
        """
        if others := present(fields):
            raise ConfigError(f"a reward model takes prompt, response and reference, not {min(others)!r}; leave it out")
        runtime, spec = runtime_of(self._client), self._spec(None)
        call = spec.call({"prompt": prompt, "response": response, "reference": reference})
        options = {"timeout": timeout, "priority": priority, "tenant": tenant, "hedge": self._params.get("hedge", True)}
        (result,) = await runtime.merged(spec, [call], runtime.request_options(options))
        return self._verdict(result.value, result.usage)

    async def batch_score(self, items: Iterable[Item] | AsyncIterable[Item], **options: Unpack[JudgeBatchOptions]) -> BatchResult[Verdict]:
        """Score many responses. Several items share one HTTP request if the server accepts lists.

        The items, options, results and errors are those of :meth:`Judge.batch_score`.
        """
        check_batch_options(options)
        on_result, keep = callback("on_result", options.get("on_result")), keeps_results(options)
        extras: dict[int, Mapping[str, Any]] = {}

        def as_verdict(result: Result[RewardScore]) -> Result[Verdict]:
            extra = extras.get(result.index) if keep else extras.pop(result.index, None)
            answer = JudgeAnswer(self._verdict(result.value, result.usage), estimated=result.usage_is_estimated) if result.ok else None
            return Result(result.index, answer, result.error, result.endpoint, result.latency, result.queued, result.attempts, extra)

        def as_verdicts(batch: BatchResult[RewardScore]) -> BatchResult[Verdict]:
            return BatchResult([as_verdict(result) for result in batch], batch.stats)

        given: dict[str, Any] = {**options, "hedge": self._params.get("hedge", True)}
        if on_result is not None:
            given["on_result"] = lambda result: on_result(as_verdict(result))
        spec = self._spec(extras if keep or on_result is not None else None)
        try:
            return as_verdicts(await runtime_of(self._client).merged_many(spec, batch_items("items", items), given))
        except BatchInterrupted as error:
            error.results = None if error.results is None else as_verdicts(error.results)
            raise

    def _spec(self, extras: dict[int, Mapping[str, Any]] | None) -> MergeSpec:
        """Return the ``MergeSpec`` for the items. ``extras`` receives the extra fields of each item, by its index."""
        params = {name: value for name, value in self._params.items() if name not in _OPTIONS}
        indexes = count()

        def read(item: object) -> Any:
            index, extra = next(indexes), extra_of(item)  # items are read once and in order, so the count is their index
            if extra is not None and extras is not None:
                extras[index] = extra
            return SCORE.item(_item(item))

        return MergeSpec(SCORE, self._model, params, self._params.get("extra_headers"), self._params.get("extra_body"), read)

    async def aclose(self) -> None:
        """Close the client, if the scorer owns it."""
        if self._owns_client:
            await self._client.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        settings = {"range": self._range, "owns_client": self._owns_client, **self._params}
        return partial(RewardModelScorer, self._client, self._model, **settings), ()

    @property
    def verdict_settings(self) -> list[Any]:
        """The settings on which verdicts depend, as :func:`~qreward.judge.types.described` uses them."""
        return [self._model, self._range, self._params]

    def __repr__(self) -> str:
        return f"<RewardModelScorer {self._model}>"

    def _verdict(self, score: RewardScore, usage: Usage | None) -> Verdict:
        number = float(score)
        if self._range is not None:
            number = min(max(number, self._range[0]), self._range[1])
        return Verdict(number, (Vote(number, model=self._model),), score.attributes or None, usage)


def _item(item: object) -> dict[str, Any]:
    fields = fields_of(item)
    given, names = present(fields), {*POINT_NAMES}
    check_extra(given.keys() - names, names - given.keys())
    named = {"prompt": fields["prompt"], "response": fields["response"]}
    return {**named, "label": given["reference"]} if "reference" in given else named


def make_scorer(client: QRewardClient, scorer: JudgeConfig | CascadeConfig | str | None, *, owns_client: bool = True) -> Scorer:
    """Create a judge or a cascade from its settings, or a reward model scorer from a model name.

    Args:
        client: the client that sends the requests.
        scorer: the settings of a judge or a cascade, or the name of a reward model.
        owns_client: True if the client is closed when the scorer is closed.

    Raises:
        ConfigError: a setting is invalid, or ``scorer`` is None.

    Example:
        >>> make_scorer(QRewardClient(["http://gpu-0:8000/v1"]), "rm-7b")
        <RewardModelScorer rm-7b>
    """
    if isinstance(scorer, JudgeConfig):
        return Judge.from_config(client, scorer, owns_client=owns_client)
    if isinstance(scorer, CascadeConfig):
        return Cascade.from_config(scorer, partial(make_scorer, client, owns_client=owns_client))
    if isinstance(scorer, str) and scorer:
        return RewardModelScorer(client, scorer, owns_client=owns_client)
    raise ConfigError(f"a scorer is made from JudgeConfig, CascadeConfig or the name of a reward model, not {scorer!r}")
