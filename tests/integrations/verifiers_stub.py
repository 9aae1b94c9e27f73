"""The parts of verifiers 0.4.0 that our judges stand on, with its exact signatures: see ``verifiers/v1/judge.py`` there.

Nothing here sends anything; what a judge of verifiers' own would do with a client is ours to do.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Generic, Literal

import pytest
from adapter_fakes import stub_modules
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

ParsedT = TypeVar("ParsedT")


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    cost: float | None = None

    @classmethod
    def from_openai(cls, usage: Any | None) -> Usage | None:
        if usage is None:
            return None
        return cls(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, cost=getattr(usage, "cost", None))


class SamplingConfig(BaseModel):
    model_config = ConfigDict(extra="allow")
    temperature: float | None = None
    max_tokens: int | None = None


class JudgeConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    base_url: str = "http://127.0.0.1:9/v1"
    api_key_var: str = "PRIME_API_KEY"
    headers: dict[str, str] = {}
    id: str = ""
    name: str = ""
    weight: float = 1.0
    model: str = "openai/gpt-6-luna"
    sampling: SamplingConfig = SamplingConfig()
    prompt: Path | None = None


class JudgeResponse(BaseModel, Generic[ParsedT]):
    text: str
    parsed: ParsedT | None = None
    usage: Usage | None = None


ConfigT = TypeVar("ConfigT", bound=JudgeConfig, default=JudgeConfig)


class Judge(Generic[ParsedT, ConfigT]):
    prompt: str | None = None
    schema: type[BaseModel] | None = None

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @property
    def reward_name(self) -> str:
        return self.config.name or "judge"

    def build_messages(self, **fields: Any) -> Any:
        text = self.prompt or ""
        for name, value in fields.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def parse(self, response: Any) -> Any:
        return response.parsed if self.schema is not None else response.text

    async def complete(self, messages: Any, *, trace: Any = None, schema: Any = None, parse: Any = None, **sampling: Any) -> Any:
        raise AssertionError("this would make a client of its own for the call")

    async def evaluate(self, *, trace: Any = None, **fields: Any) -> Any:
        return await self.complete(self.build_messages(**fields), trace=trace, schema=self.schema, parse=self.parse)


class ReferenceJudgeConfig(JudgeConfig):
    id: str = "reference"


class ReferenceJudge(Judge[float, ReferenceJudgeConfig]):
    pass


class RubricJudgeConfig(JudgeConfig):
    id: str = "rubric"


class RubricJudge(Judge[Any, RubricJudgeConfig]):
    pass


class DecisionJudge(Judge[float, JudgeConfig]):
    """Posts to an API of its own, and does not use ``complete``."""

    async def evaluate(self, *, trace: Any = None, **fields: Any) -> Any:
        raise AssertionError("this would make a client of its own for the call")


class Trace:
    def __init__(self, last_reply: str = "42") -> None:
        self.last_reply, self.transcript = last_reply, f"user: 2 + 2?\nassistant: {last_reply}"
        self.calls: list[dict[str, Any]] = []

    def record_judge_call(self, *, name: str, request: Any, response: Any) -> None:
        self.calls.append({"name": name, "request": request, "response": response.model_dump()})


class TaskData(BaseModel):
    prompt_text: str = "2 + 2?"
    answer: str = "4"


def _merge_defaults(defaults: BaseModel, raw: dict[str, Any] | None) -> dict[str, Any]:
    return {**defaults.model_dump(exclude_unset=True), **(raw or {})}


def _judge_response(trace: Any, view: str) -> str:
    return str(trace.transcript if view == "full_trace" else trace.last_reply)


def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, and ours imported over it, until the test is done."""
    own: dict[str, Any] = {"Judge": Judge, "JudgeConfig": JudgeConfig, "JudgeResponse": JudgeResponse}
    own |= {cls.__name__: cls for cls in (DecisionJudge, ReferenceJudge, ReferenceJudgeConfig, RubricJudge, RubricJudgeConfig)}
    own["JudgeView"] = Literal["last_reply", "full_trace"]
    parts: dict[str, dict[str, Any]] = {
        "verifiers.v1": own,
        "verifiers.v1.types": {"Usage": Usage, "SamplingConfig": SamplingConfig},
        "verifiers.v1.judge": {"judge_response": _judge_response},
        "verifiers.v1.configs.client": {"resolve_api_key": lambda config: "EMPTY", "resolve_headers": lambda config: config.headers},
        "verifiers.v1.dialects.chat": {"message_to_wire": dict},
        "verifiers.v1.utils.generic": {"merge_defaults": _merge_defaults},
    }
    stub_modules(monkeypatch, parts)
    monkeypatch.delitem(sys.modules, "qreward.integrations.verifiers", raising=False)
    ours = importlib.import_module("qreward.integrations.verifiers")
    monkeypatch.delitem(sys.modules, "qreward.integrations.verifiers")  # so that no other test finds it
    return ours
