"""The settings of a judge, as a configuration file or a trainer's settings give them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from qreward.policy import Many, Number, Policy

ResponseFormat = Literal["auto", "json_schema", "json_object", "none"]
MOST_SAMPLES = 100
"""Each is a request of its own, and all of an item are sent at once: more than a vote gains by, and few enough that a slip costs little."""

Settle = Literal["majority", "mean", "median"]


class JudgeConfig(Policy):
    """What a :class:`~qreward.judge.Judge` is made from, but for its client.

    Args:
        model: who judges; several are several judges, each of which is asked ``samples`` times.
        prompt: template of the user's message, in which ``{prompt}``, ``{response}``, ``{reference}`` and any other field of an
            item are replaced; None is the judge's own. How to answer is said at ``{answer_form}``, or at the end.
        system: template of the system message; None sends none.
        pair_prompt: as ``prompt``, for pairs, with ``{first}`` and ``{second}``, which are to be called A and B.
        verdict: the form of an answer: ``score``, ``yes_no``, or ``module:Class`` of a pydantic model.
        scale: lowest and highest score that the judge is asked for; what lies outside is no answer. Where it is not set, the verdict's
            own field goes before (its ``ge`` and ``le``).
        range: what the ends of ``scale`` are as rewards; None leaves scores as they are.
        samples: answers of each model to each item, at most ``MOST_SAMPLES``.
        settle: how several answers make one score.
        reasks: times that an answer which cannot be read is asked for again, within the item's time.
        response_format: how the server is asked for JSON; ``auto`` finds out what it takes.
        cache: path of a file that keeps verdicts over runs; None keeps none.
        cache_namespace: verdicts are found again only under the namespace under which they were kept. Change it with whatever the
            requests do not show, such as the weights that a model name stands for.
        params: sent with each request: ``temperature``, ``max_tokens``, anything.

    Example:
        >>> JudgeConfig(model="judge-7b", scale=(1, 5)).model
        ('judge-7b',)
    """

    model: tuple[str, ...] = Field(min_length=1)
    prompt: str | None = None
    system: str | None = None
    pair_prompt: str | None = None
    verdict: str = "score"
    scale: tuple[float, float] = (0.0, 10.0)
    range: tuple[float, float] | None = (0.0, 1.0)
    samples: Annotated[int, BeforeValidator(Number(whole=True, least=1, most=MOST_SAMPLES))] = 1
    settle: Settle = "majority"
    reasks: Many = 1
    response_format: ResponseFormat = "auto"
    cache: str | None = None
    cache_namespace: str = ""
    params: dict[str, Any] = Field(default_factory=dict, repr=False)

    @field_validator("model", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value
