"""The settings of a judge, as a configuration file or a trainer's settings give them.

What a judge was given, looked at before anything is made of it. Knows the names of the settings and nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from qreward.errors import ConfigError
from qreward.settings.base import Many, Number, Policy
from qreward.spelling import TYPO, closest

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


_OTHERS = ("client", "score", "owns_client", "hedge", "extra_headers", "extra_body")
_NAMES = (*JudgeConfig.model_fields, *_OTHERS)


def models(model: object) -> tuple[str, ...]:
    """The names of the models. Raises ``ConfigError``."""
    if isinstance(model, str):
        return (model,)
    if isinstance(model, bytes | Mapping) or not isinstance(model, Iterable):
        raise ConfigError(f"model must be the name of a model, or several, not {model!r}")
    return tuple(model)


def cache_path(cache: object) -> str | None:
    """The path of the cache's file, None for none. Raises ``ConfigError``."""
    if cache is None:
        return None
    if not isinstance(cache, str | Path) or not str(cache).strip():
        raise ConfigError(f"cache must be the path of a file, or None for none, not {cache!r}")
    return str(cache)


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a parameter that is meant as a setting of the judge: a server would take it, or not, and tell nobody."""
    for name in params:
        if name == "params":
            raise ConfigError("params: give parameters of requests by their names, such as temperature=0, or Judge(..., **params)")
        if name == "config":
            raise ConfigError("config: Judge() has no such argument; use Judge.from_config(client, config)")
        if name not in _NAMES and (near := closest(name, _NAMES, cutoff=TYPO)):
            raise ConfigError(
                f"{name!r} is not a setting of a judge; did you mean {near[0]!r}? "
                f"A parameter of the server with this name goes into extra_body={{{name!r}: ...}}"
            )


def config_of(config: object) -> JudgeConfig:
    """Settings, from themselves or a mapping of them. Raises ``ConfigError``."""
    if isinstance(config, Mapping):
        config = JudgeConfig(**config)
    if not isinstance(config, JudgeConfig):
        raise ConfigError(f"config must be a JudgeConfig, or a mapping of its settings, not {type(config).__name__}")
    taken = sorted(config.params.keys() & {*JudgeConfig.model_fields, "client", "score", "owns_client"})
    if taken:
        raise ConfigError(f"params: {taken[0]!r} is not a parameter of a request; if it is a setting of the judge, write it beside params")
    return config
