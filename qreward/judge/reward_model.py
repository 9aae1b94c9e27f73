"""``RewardModelScorer``: a reward model behind the ``Scorer`` interface. Its numbers are returned as verdicts."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from qreward import options
from qreward.client import QRewardClient
from qreward.codecs.rewards.answers import Score
from qreward.codecs.rewards.registry import SCORE
from qreward.errors import ConfigError
from qreward.judge.prompts import check_extra
from qreward.judge.requests import extra_of, fields_of
from qreward.judge.types import Item, Verdict, Vote
from qreward.judge.verdict_parser import bounds
from qreward.options import DEFAULT
from qreward.results import BatchResult, Result, Usage
from qreward.runtime import runtime_of
from qreward.scoring.merge_spec import MergeSpec
from qreward.settings.policies import Priority

if TYPE_CHECKING:
    from qreward.progress import Progress

_OPTIONS = ("extra_headers", "extra_body", "hedge")


class RewardModelScorer:
    """Score responses with a reward model. Returns the scores of ``client.score`` as :class:`~qreward.judge.types.Verdict` objects.

    A scorer can be created without a running event loop, used from several event loops and threads, and pickled.

    Args:
        client: the client that sends the requests.
        model: name of the reward model.
        range: lowest and highest reward. A score outside is clipped to the nearest end. None returns scores unchanged.
        owns_client: close the client when this scorer is closed.
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
        options.check_params({name: value for name, value in params.items() if name not in _OPTIONS})
        self._client, self._model, self._owns_client, self._params = client, model, owns_client, params
        self._range = None if range is None else bounds("range", range)

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
        """Score one response. Errors are those of :meth:`QRewardClient.score`.

        Args:
            prompt: a text or messages.
            response: the text to score.
            reference: sent as ``label`` to servers that accept one.
            timeout: seconds for the whole call.
            priority, tenant: as in :meth:`QRewardClient.score`.
            fields: a reward model takes no other fields. One that is not None raises ``ConfigError``.
        """
        given = [name for name, value in fields.items() if value is not None]
        if given:
            raise ConfigError(f"a reward model takes prompt, response and reference, not {min(given)!r}; leave it out")
        item = {"prompt": prompt, "response": response, "reference": reference}
        runtime = runtime_of(self._client)
        asked, terms = self._asking(None), runtime.request_options(self._scheduling(timeout, priority, tenant))
        (result,) = await runtime.merged(asked, [asked.call(item)], terms)
        return self._verdict(result.value, result.usage)

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
        """Score many responses. Several items are merged into one HTTP request where the server allows it.

        Arguments are those of :meth:`Judge.batch_score`, errors those of :meth:`QRewardClient.batch_score`.
        """
        tell = options.callback("on_result", on_result)
        extras: dict[int, Mapping[str, Any]] = {}

        def told(result: Result[Score]) -> Result[Verdict]:
            return self._told(result, extras.get(result.index) if keep_results else extras.pop(result.index, None))

        batch = await runtime_of(self._client).merged_many(
            self._asking(extras if keep_results or tell is not None else None),
            options.batch_items("items", items),
            {
                **self._scheduling(timeout, priority, tenant),
                "deadline": deadline,
                "on_result": None if tell is None else lambda result: tell(told(result)),
                "progress": progress,
                "keep_results": keep_results,
            },
        )
        return BatchResult([told(result) for result in batch], batch.stats)

    def _scheduling(self, timeout: float | None, priority: int | str, tenant: str | None) -> dict[str, Any]:
        return {"timeout": timeout, "priority": priority, "hedge": self._params.get("hedge", True), "tenant": tenant}

    def _asking(self, extras: dict[int, Mapping[str, Any]] | None) -> MergeSpec:
        """The client's ``MergeSpec``, reading a scorer's items: an invalid item fails alone.

        Args:
            extras: filled with the extra fields of the items, by index. None discards them.
        """
        params = {name: value for name, value in self._params.items() if name not in ("extra_headers", "extra_body", "hedge")}
        indexes = count()

        def read(item: object) -> Any:
            index, extra = next(indexes), extra_of(item)  # items are read once and in order, so the count is their index
            if extra is not None and extras is not None:
                extras[index] = extra
            return SCORE.item(_item(item))

        return MergeSpec(SCORE, self._model, params, self._params.get("extra_headers"), self._params.get("extra_body"), read)

    async def aclose(self) -> None:
        """Close the client if the scorer owns it."""
        if self._owns_client:
            await self._client.aclose()

    async def __aenter__(self) -> RewardModelScorer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._client, self._model, {"range": self._range, "owns_client": self._owns_client, **self._params})

    def __repr__(self) -> str:
        return f"<RewardModelScorer {self._model}>"

    def _verdict(self, score: Score, usage: Usage | None) -> Verdict:
        number = float(score)
        if self._range is not None:
            number = min(max(number, self._range[0]), self._range[1])
        return Verdict(number, (Vote(number, model=self._model),), score.attributes or None, usage)

    def _told(self, result: Result[Score], extra: Mapping[str, Any] | None) -> Result[Verdict]:
        answer = _Told(self._verdict(result.value, result.usage), result.usage, result.usage_is_estimated) if result.ok else None
        trail = result.attempts[:-1] if result.ok and result.endpoint is not None else result.attempts
        return Result(result.index, answer, result.error, result.endpoint, result.latency, result.queued, trail, extra)


class _Told:
    """A verdict in the form in which ``Result`` takes an answer."""

    __slots__ = ("estimated", "usage", "verdict")

    def __init__(self, verdict: Verdict, usage: Usage | None, estimated: bool) -> None:
        self.verdict, self.usage, self.estimated = verdict, usage, estimated

    def build(self) -> Verdict:
        return self.verdict

    def text(self) -> str:
        return ""


def _again(client: QRewardClient, model: str, settings: Mapping[str, Any]) -> RewardModelScorer:
    return RewardModelScorer(client, model, **settings)


_NAMES = frozenset({"prompt", "response", "reference"})


def _item(item: object) -> dict[str, Any]:
    """The item in the form that the client accepts. Raises ``ConfigError``."""
    fields = fields_of(item)
    given = {name for name, value in fields.items() if value is not None}
    check_extra(given - _NAMES, _NAMES - given)
    named = {"prompt": fields["prompt"], "response": fields["response"]}
    reference = fields.get("reference")
    return named if reference is None else {**named, "label": reference}
