"""Judges for verifiers (v1), which this module imports. Their requests go to the endpoints of a client, which is the fleet."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator
from typing_extensions import TypeVar

from qreward.client import QRewardClient
from qreward.codecs.base import described, ending_of, is_whole
from qreward.errors import ConfigError, InvalidResponse
from qreward.integrations.trainers import Adapter, load_reward_config
from qreward.integrations.trainers.rewarder import shared_client
from qreward.integrations.trainers.settings import VARIABLE
from qreward.settings.base import default
from qreward.settings.client import ClientConfig, load_config
from qreward.settings.policies import Endpoint, Level, Priority

__all__ = [
    "FleetJudge",
    "FleetJudgeConfig",
    "FleetReferenceJudge",
    "FleetReferenceJudgeConfig",
    "FleetRubricJudge",
    "FleetRubricJudgeConfig",
    "RewardJudge",
    "RewardJudgeConfig",
]

vf: Any = importlib.import_module("verifiers.v1")
_client: Any = importlib.import_module("verifiers.v1.configs.client")
_judge: Any = importlib.import_module("verifiers.v1.judge")
_types: Any = importlib.import_module("verifiers.v1.types")
_to_wire: Any = importlib.import_module("verifiers.v1.dialects.chat").message_to_wire
_merged: Any = importlib.import_module("verifiers.v1.utils.generic").merge_defaults

ADAPTER = Adapter(
    trainer="verifiers",
    deadline=300.0,  # verifiers has a limit only if timeout.scoring of the agent is set
    columns={"prompt": ("prompt",), "response": ("response",), "reference": ("answer",)},
    none_unsupported="which has no missing reward; use raise, the default, which fails the rollout, or a number",
)
_read = cache(load_config)


class FleetJudgeConfig(vf.JudgeConfig):  # type: ignore[misc]  # no types where verifiers is not installed
    """The settings of a verifiers judge, with ``deadline`` and ``priority`` of its requests.

    ``fleet`` is a file with a client's settings. Without it, ``base_url``, ``api_key_var`` and the headers are those of one endpoint.
    """

    fleet: Path | None = Field(default_factory=lambda: os.environ.get("QREWARD_CONFIG") or None, validate_default=True)
    deadline: float = Field(default=ADAPTER.deadline, gt=0, allow_inf_nan=False)
    priority: Level = default(Priority.NORMAL)


ParsedT = TypeVar("ParsedT")
ConfigT = TypeVar("ConfigT", bound=FleetJudgeConfig, default=FleetJudgeConfig)
_Judge: Any = vf.Judge[ParsedT, ConfigT]


class FleetJudge(_Judge):  # type: ignore[misc]
    """A ``vf.Judge`` whose :meth:`complete` sends its requests to a fleet. The features of verifiers' judges are unchanged.

    As the first base class of a judge, it also serves the other base classes that call ``complete``. ``vf.DecisionJudge`` does not.

    Example:
        >>> class CorrectnessJudge(FleetJudge[bool]):
        ...     prompt = "Question: {question}\\nAnswer: {answer}\\nResponse: {response}\\nCorrect? yes/no"
        ...
        ...     def parse(self, response):
        ...         return {"yes": True, "no": False}[response.text.strip().lower()]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if issubclass(cls, vf.DecisionJudge) and cls.evaluate is vf.DecisionJudge.evaluate:
            remedy = "use RewardJudge with method: decide in the settings of its judge"
            raise ConfigError(f"{cls.__name__}: vf.DecisionJudge posts to an evaluations API by itself; {remedy}")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        if not isinstance(self.config, FleetJudgeConfig):
            raise ConfigError(f"{type(self).__name__} takes a FleetJudgeConfig, not a {type(self.config).__name__}; use a subclass of it")

    @cached_property
    def client(self) -> QRewardClient:
        """The client that all judges with these settings share in this process."""
        config = self.config
        if config.fleet is not None:
            return shared_client(_read(config.fleet))
        key, headers = _client.resolve_api_key(config), _client.resolve_headers(config)
        return shared_client(ClientConfig(endpoints=(Endpoint(config.base_url, api_key=key, headers=headers),)))

    async def complete(
        self,
        messages: Any,
        *,
        trace: Any = None,
        schema: type[BaseModel] | None = None,
        parse: Callable[[Any], Any] | None = None,
        **sampling: Any,
    ) -> Any:
        """Send a request to the judge, and return the result. The answer is recorded on the trace, even if it cannot be parsed.

        The arguments are those of ``vf.Judge.complete``, except that ``extra_query`` cannot be sent.

        Raises:
            QRewardError: there is no answer, the answer is not complete, or it does not match ``schema``.
        """
        if "extra_query" in sampling:
            raise ConfigError("extra_query cannot be sent with one request; put it into the base_url of the fleet's endpoints")
        model, priority = self.config.model, self.config.priority
        sent = [{"role": "user", "content": messages}] if isinstance(messages, str) else [_to_wire(each) for each in messages]
        timeout, headers = sampling.pop("timeout", self.config.deadline), sampling.pop("extra_headers", None)
        body = _types.SamplingConfig.model_validate(_merged(self.config.sampling, sampling)).model_dump(exclude_none=True)
        if schema is not None:
            body["response_format"] = strict_schema(schema)
        completion = await self.client.chat_completion(
            sent, model, timeout=timeout, priority=priority, extra_headers=headers, extra_body=body
        )
        choice = completion.choices[0]
        response = vf.JudgeResponse(text=choice.message.content or "", usage=_types.Usage.from_openai(completion.usage))
        try:
            if not is_whole(ending := ending_of(choice.finish_reason)):
                raise InvalidResponse(f"the judge's answer is not whole: {described(ending)}", model=model)
            if schema is not None:
                if choice.message.refusal:
                    raise InvalidResponse(f"the judge refused: {choice.message.refusal[:200]}", model=model)
                try:
                    response.parsed = schema.model_validate_json(response.text)
                except ValueError as error:
                    what = f"is not a valid {schema.__name__} (finish_reason {choice.finish_reason}): {str(error).splitlines()[0]}"
                    raise InvalidResponse(f"the judge's answer {what}", model=model) from error
            if parse is not None:
                response.parsed = parse(response)
            return response
        finally:
            if trace is not None:
                trace.record_judge_call(name=self.reward_name, request={"model": model, "messages": sent}, response=response)


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the ``response_format`` for an answer that is an object with exactly the fields of the model."""
    return {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": _closed(model.model_json_schema()), "strict": True}}


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items() if name != "default"}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed |= {"additionalProperties": False, "required": list(closed["properties"])}
    return closed


class FleetReferenceJudgeConfig(vf.ReferenceJudgeConfig, FleetJudgeConfig):  # type: ignore[misc]
    """The settings of ``vf.ReferenceJudgeConfig`` and of :class:`FleetJudgeConfig`."""


class FleetReferenceJudge(FleetJudge[float, FleetReferenceJudgeConfig], vf.ReferenceJudge):  # type: ignore[misc, type-arg]
    """A ``vf.ReferenceJudge`` whose requests go to a fleet. It compares a response with a reference answer, and answers yes or no."""


class FleetRubricJudgeConfig(vf.RubricJudgeConfig, FleetJudgeConfig):  # type: ignore[misc]
    """The settings of ``vf.RubricJudgeConfig`` and of :class:`FleetJudgeConfig`."""


class FleetRubricJudge(FleetJudge[Any, FleetRubricJudgeConfig], vf.RubricJudge):  # type: ignore[misc, type-arg]
    """A ``vf.RubricJudge`` whose requests go to a fleet. It gives a verdict for each criterion."""


class RewardJudgeConfig(vf.JudgeConfig):  # type: ignore[misc]
    """The settings of :class:`RewardJudge`. The file ``settings`` is validated before a rollout begins.

    Of verifiers' own settings, only ``id``, ``name`` and ``weight`` are used.
    """

    settings: Path | None = None
    view: vf.JudgeView = "last_reply"

    @model_validator(mode="after")
    def _settings_fit(self) -> RewardJudgeConfig:
        if self.settings is not None or os.environ.get(VARIABLE):  # an unset QREWARD_REWARD may still be set before the first score
            ADAPTER.checked(load_reward_config(self.settings))
        return self


class RewardJudge(vf.Judge[float, RewardJudgeConfig]):  # type: ignore[misc]
    """Scores a rollout with the scorer that the settings of an adapter name.

    Each vote is recorded on the trace as a call. The first call has the tokens of all votes.
    """

    async def score(self, task: Any, trace: Any) -> float:
        """Return the reward. Raises ``QRewardError``, which fails the rollout, if there is none and ``on_failure`` is not a number."""
        made = ADAPTER.rewarder(self.config.settings)
        row = {**dict(task), "prompt": task.prompt_text, "response": _judge.judge_response(trace, self.config.view)}
        (scored,) = await ADAPTER.score(made, [row])
        usage = scored.usage
        answers: list[tuple[str, str, float | None]] = [(", ".join(made.config.models), "", None)] if usage.tokens else []
        if scored.verdict is not None:  # an answer that could not be parsed is recorded as well
            answers = [(vote.model, vote.text, vote.score) for vote in scored.verdict.votes]
        spent = {"prompt_tokens": usage.prompt_tokens or 0, "completion_tokens": usage.completion_tokens or 0, "cost": usage.cost}
        for number, (model, text, score) in enumerate(answers):
            response = vf.JudgeResponse(text=text, parsed=score, usage=None if number else _types.Usage(**spent))
            request = {"model": model, **ADAPTER.item(row, made.config)}
            trace.record_judge_call(name=self.reward_name, request=request, response=response)
        found = ADAPTER.reward(scored, made.config)
        assert found is not None
        return found
