"""The settings of a judge with its known prompts, and checks of the arguments that ``Judge`` receives."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from qreward.decisions import MIN_LABEL_MASS
from qreward.errors import TYPO, ConfigError, closest, did_you_mean
from qreward.judge.calibration import Calibration
from qreward.judge.parsing import NAMED
from qreward.judge.rubric import Rubric, read_rubric
from qreward.settings.base import NOT_BOOL, Accepting, Count, Many, Policy, Positive, default, repeated

PRESETS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
"""Name -> settings of a judge. ``docs/reference/judge-presets.md`` has their sources."""


def preset_of(name: str) -> Mapping[str, Any]:
    if name not in PRESETS:
        raise ConfigError(f"preset: there is no {name!r}; {did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def is_of_preset(prompt: object, answer: object) -> bool:
    """Return whether the prompt is that of a preset with this form of answers, which it describes in its own words."""
    return any(prompt in (each.get("prompt"), each.get("pair_prompt")) and answer == each["answer"] for each in PRESETS.values())


ResponseFormat = Literal["auto", "json_schema", "json_object", "none"]
MOST_SAMPLES = 100
"""Maximum number of samples per model and item. More would not improve a vote. The limit also bounds the cost of a mistyped number."""

Settle = Literal["majority", "mean", "median"]
Method = Literal["write", "decide", "auto"]


class Budget(Policy):
    """The limits of what a judge may spend, in one process.

    Args:
        cost: US dollars, which needs ``Endpoint(price=...)``; None for no limit. An endpoint without a price costs nothing.
        tokens: prompt and completion tokens together; None for no limit.
    """

    cost: Positive | None = None
    tokens: Count | None = None

    @model_validator(mode="after")
    def _limited(self) -> Budget:
        if self.cost is None and self.tokens is None:
            raise ValueError("set cost (US dollars) or tokens")
        return self


class JudgeConfig(Policy):
    """Holds the settings of a :class:`~qreward.judge.Judge`, without the client.

    Args:
        model: name of the judge model. With several names, every model judges every item.
        prompt: template of the user message, with ``{prompt}``, ``{response}``, ``{reference}`` and any other field of an item. None
            uses the built-in prompt. The judge replaces ``{answer_form}`` with a description of how to answer. If the template does not
            contain ``{answer_form}``, the judge appends the description.
        system: template of the system message. With None, no system message is sent.
        pair_prompt: template of the user message for pairs, with ``{first}`` and ``{second}``. The template must call the responses A and
            B.
        method: ``write`` asks for a written verdict. ``decide`` asks for the probability of each possible answer, and the score is the
            expected value. ``auto`` is ``decide`` for each model whose servers answer with probabilities, and ``write`` for other models.
        rubric: the criteria by which responses are judged, in place of ``verdict`` and ``scale``: a :class:`~qreward.judge.rubric.Rubric`,
            or the settings or file that ``Rubric.load`` accepts. None asks one question.
        rubric_column: name of the field of an item that holds its own rubric: a list of criteria, a mapping as for ``Rubric.load`` or with
            the list under ``criteria``, JSON with either, or a text with a statement in each line. An item without a value has ``rubric``.
            If there is no ``rubric``, or the value is no rubric, the item fails. None for no such field.
        min_label_mass: minimum total probability (0 to 1) of all options of a decision. A decision with a lower total is an error. If the
            server does not report the total, the total is not checked. The default is one half. With a lower total, an answer other than an
            option is more probable than an option.
        verdict: the form of an answer: ``score``, ``yes_no``, or ``module:Class`` of a pydantic model.
        scale: lowest and highest score that a judge may give. An answer outside the scale is rejected. The default is taken
            from the verdict's field: its limits ``ge`` and ``le``, of whole numbers also ``gt`` and ``lt``, or the lowest and highest
            number of its literal or enum. Without them, the default is (0, 10). The limits of the field must include the scale.
        range: lowest and highest reward. Scores are mapped linearly from ``scale`` to ``range``. None returns scores unchanged.
        samples: requests per model and item, at most ``MOST_SAMPLES``.
        settle: how several answers are aggregated into one score: ``majority``, ``mean`` or ``median``.
        reasks: how often a request is sent again after an answer that cannot be parsed, within the item's timeout. After an answer that was
            cut off at its token limit, the limit is doubled, up to 16,384.
        finish_reasons: further values of ``finish_reason`` that end a complete answer. An answer with a value that is not known is not
            parsed, and the first of each such value is logged.
        response_format: how servers are asked for JSON: ``json_schema``, ``json_object`` or ``none``. ``auto`` finds a format that the
            servers of each model accept. With ``none``, no description of how to answer is appended to a prompt of your
            own, unless there are criteria.
        answer: the form of an answer: an example, such as ``"[[5]]"``, ``"[RESULT] 4"`` or ``"Score: 7"``; ``"json"``;
            ``{"pattern": ...}``, a regular expression with one group, which holds the value; ``{"function": "module:name"}``; or
            ``{"form": "GRADE: C", "values": {"C": 1, "I": 0}}`` for grades. None takes the form that the prompt shows, or else JSON. A form
            other than JSON needs the method ``write``.
        preset: the name of a known prompt, which sets ``prompt``, ``pair_prompt``, ``scale`` and ``answer`` where these are not set.
        calibration: a :class:`~qreward.judge.calibration.Calibration` that was made for this judge, or the path of its file. The
            calibration maps the score of a response to a probability, before ``range`` is applied. It does not change comparisons. None
            leaves scores unchanged.
        budget: US dollars that the judge may spend in one process, or a mapping with ``cost`` (US dollars), ``tokens`` or both. When it is
            spent, no request is sent, and items fail with ``BudgetExceeded``. Requests in flight are finished, and count. Dollars need the
            ``price`` of the endpoints. None sets no limit.
        cache: path of a file that keeps answers across runs. None disables the cache.
        cache_namespace: the cache returns only answers that were stored with the same namespace. Change the namespace when the weights
            behind a model name have changed.
        params: parameters of each request, such as ``temperature`` and ``max_tokens``.

    Example:
        >>> JudgeConfig(model="judge-7b", scale=(1, 5)).model
        ('judge-7b',)
    """

    model: Accepting[tuple[str, ...], str | list[str] | tuple[str, ...]] = Field(min_length=1)
    prompt: str | None = None
    system: str | None = None
    pair_prompt: str | None = None
    method: Method = "write"
    rubric: Accepting[Rubric | None, Rubric | Mapping[str, Any] | list[Any] | str | Path | None] = default(None)
    rubric_column: Annotated[str, Field(min_length=1)] | None = None
    min_label_mass: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NOT_BOOL] = MIN_LABEL_MASS
    verdict: str = "score"
    scale: tuple[float, float] = (0.0, 10.0)
    range: tuple[float, float] | None = (0.0, 1.0)
    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES), NOT_BOOL] = 1
    settle: Settle = "majority"
    reasks: Many = 1
    finish_reasons: tuple[str, ...] = ()
    response_format: ResponseFormat = "auto"
    answer: Accepting[str | dict[str, Any] | None, str | Mapping[str, Any] | None] = default(None)
    preset: str | None = None
    calibration: Accepting[Calibration | str | None, Calibration | Mapping[str, Any] | str | Path | None] = default(None)
    budget: Accepting[Budget | None, Budget | Mapping[str, Any] | float | None] = default(None)
    cache: Accepting[str | None, str | Path | None] = default(None)
    cache_namespace: str = ""
    params: dict[str, Any] = Field(default_factory=dict, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("preset"), str):
            return data
        return {**data, **{name: value for name, value in preset_of(data["preset"]).items() if data.get(name) is None}}

    @property
    def has_criteria(self) -> bool:
        """True if the score is computed from criteria."""
        return self.rubric is not None or self.rubric_column is not None

    @field_validator("rubric_column")
    @classmethod
    def _apart(cls, value: str | None) -> str | None:
        if value in ("prompt", "response", "reference"):
            raise ValueError(f"cannot be {value!r}, which is judged; name the field that holds the rubric")
        return value

    _loaded = field_validator("rubric", mode="before")(read_rubric)

    @field_serializer("rubric")
    def _as_settings(self, value: Rubric | None) -> list[dict[str, Any]] | None:
        return None if value is None else value.settings()

    @field_validator("model", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if name := repeated(value):
            raise ValueError(f"has {name!r} twice; to ask a model several times, set samples")
        return value

    @field_validator("verdict")
    @classmethod
    def _named(cls, value: str) -> str:
        if ":" not in value and value not in NAMED:
            hint = did_you_mean(value, NAMED, otherwise="a verdict of your own is written module:Class, and the names are")
            raise ValueError(f"unknown verdict {value!r}; {hint}")
        return value

    @field_validator("params")
    @classmethod
    def _of_requests(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(value.keys() & {*cls.model_fields, "client", "score", "owns_client"}):
            raise ValueError(f"{taken[0]!r} is not a parameter of a request; if it is a setting of the judge, write it beside params")
        return value

    @field_validator("calibration", mode="before")
    @classmethod
    def _calibration(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return Calibration(**value)
        if not (value is None or isinstance(value, str | Path | Calibration)):
            raise ValueError(f"must be the path of a file, or a Calibration, not a {type(value).__name__}")
        return value

    @field_validator("budget", mode="before")
    @classmethod
    def _in_dollars(cls, value: object) -> object:
        return {"cost": value} if isinstance(value, int | float | str) else value

    @field_validator("cache", "calibration", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        path = str(value) if isinstance(value, Path) else value
        if isinstance(path, str) and not path.strip():
            raise ValueError("must be the path of a file, or None for none")
        return path


_OTHERS = ("client", "score", "owns_client", "hedge", "extra_headers", "extra_body")
_NAMES = (*JudgeConfig.model_fields, *_OTHERS)
_INSTEAD = {
    "n": "use samples",
    "params": "give parameters by their names, such as temperature=0, or Judge(..., **params)",
    "config": "use Judge.from_config(client, config)",
}


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for a request parameter that a judge does not allow, or that is probably a misspelled setting of the judge."""
    for name in params:
        if name in _INSTEAD:
            raise ConfigError(f"{name} cannot be set as a parameter of a judge's requests: {_INSTEAD[name]}")
        if name not in _NAMES and (near := closest(name, _NAMES, cutoff=TYPO)):
            raise ConfigError(
                f"{name!r} is not a setting of a judge; did you mean {near[0]!r}? "
                f"A parameter of the server with this name goes into extra_body={{{name!r}: ...}}"
            )


def check_rubric(rubric: object, **given: object) -> None:
    for name, value in given.items():
        if rubric is not None and value is not None:
            raise ConfigError(
                f"{name} cannot be set together with rubric, because the criteria define how they are answered; leave out one of them"
            )


def config_of(config: object) -> JudgeConfig:
    if isinstance(config, Mapping):
        config = JudgeConfig(**config)
    if not isinstance(config, JudgeConfig):
        raise ConfigError(f"config must be a JudgeConfig, or a mapping of its settings, not {type(config).__name__}")
    return config
