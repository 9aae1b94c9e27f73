"""The request bodies that decision servers accept, as pydantic models.

The forms follow vLLM 0.33 (``entrypoints/openai/decisions/protocol.py``, ``entrypoints/generate/structured_decisions/protocol.py``,
``entrypoints/generate/generative_scoring/serving.py``) and SGLang 0.5.23 (``srt/entrypoints/openai/protocol.py``,
``srt/entrypoints/systemone/protocol.py``). Fields for images, audio and video are left out. ``decision_routes.py`` makes the answers.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

Text = Annotated[StrictStr, Field(max_length=1 << 20)]
LongText = Annotated[StrictStr, Field(max_length=10 << 20)]
Structured = str | dict[str, Any] | list[Any]
"""Text, or JSON that the server writes into the prompt."""


def _not_blank(value: Any) -> Any:
    if not (value.strip() if isinstance(value, str) else value):
        raise ValueError("must not be blank")
    return value


NotBlank = Annotated[str, AfterValidator(_not_blank)]
NotBlankStructured = Annotated[Structured, AfterValidator(_not_blank)]


class ClosedBody(BaseModel):
    """Validates a body, or a part of a body, in which an unknown member is an error."""

    model_config = ConfigDict(extra="forbid")


# vLLM, /v1/decisions


class VllmText(ClosedBody):
    type: Literal["input_text"]
    text: LongText


class VllmMessage(ClosedBody):
    role: Literal["user"]
    content: LongText | Annotated[list[VllmText], Field(max_length=16384)]
    type: Literal["message"] = "message"

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)


class VllmNamed(ClosedBody):
    instructions: Text
    name: Text | None = None

    @model_validator(mode="after")
    def _a_name_is_a_text(self) -> VllmNamed:
        if "name" in self.model_fields_set and self.name is None:
            raise ValueError("name must be a string when provided")
        return self


class VllmPredicateQuestion(VllmNamed):
    type: Literal["predicate"]


class ChoiceValue(ClosedBody):
    value: StrictStr | StrictBool
    description: Text = ""


class VllmChoiceQuestion(VllmNamed):
    type: Literal["choice"]
    choices: list[ChoiceValue] = Field(min_length=2, max_length=255)

    @model_validator(mode="after")
    def _distinct(self) -> VllmChoiceQuestion:
        if len({(type(each.value), each.value) for each in self.choices}) < len(self.choices):
            raise ValueError("choice values must be distinct")
        return self


class ScoreLevel(ClosedBody):
    label: Text
    description: Text = ""


class VllmScoreQuestion(VllmNamed):
    type: Literal["score"]
    levels: list[ScoreLevel] = Field(min_length=2, max_length=10)


class VllmDecision(ClosedBody):
    """Validates the body of a request to vLLM's ``/v1/decisions``."""

    model: Text
    input: LongText | Annotated[list[VllmMessage], Field(max_length=131072)]
    questions: list[Annotated[VllmPredicateQuestion | VllmChoiceQuestion | VllmScoreQuestion, Discriminator("type")]] = Field(
        min_length=1, max_length=200
    )
    safety_identifier: Annotated[StrictStr, Field(max_length=128)] | None = None
    joint: StrictBool = False
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)


# OpenAI, /v1/decisions


class OpenAiPart(BaseModel):
    type: str
    text: str = ""


class OpenAiMessage(BaseModel):
    type: str = "message"
    role: Literal["user", "system", "developer", "assistant"] | None = None
    content: str | list[OpenAiPart] = ""


class OpenAiNamed(ClosedBody):
    instructions: str | list[OpenAiPart]
    name: str | None = None


class OpenAiPredicateQuestion(OpenAiNamed):
    type: Literal["predicate"]


class OpenAiChoiceQuestion(OpenAiNamed):
    type: Literal["choice"]
    choices: list[ChoiceValue] = Field(min_length=2, max_length=255)


class OpenAiScoreQuestion(OpenAiNamed):
    type: Literal["score"]
    levels: list[ScoreLevel] = Field(min_length=2)


class OpenAiDecision(ClosedBody):
    """Validates the body of a request to OpenAI's ``/v1/decisions``: ``openai`` 3.54, ``types/decision_create_params.py``."""

    model: str
    input: str | list[OpenAiMessage]
    questions: list[Annotated[OpenAiPredicateQuestion | OpenAiChoiceQuestion | OpenAiScoreQuestion, Discriminator("type")]] = Field(
        min_length=1, max_length=400
    )
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: str | None = None


# vLLM, /v1/systemone and /generative_scoring


class OpenBody(BaseModel):
    """Validates a body, or a part of a body, whose unknown members are either ignored or checked later."""

    model_config = ConfigDict(extra="allow")


class VllmSystemOneQuestion(OpenBody):
    type: str
    instructions: Any = ""
    criteria: Any = None


class VllmSystemOne(ClosedBody):
    """Validates the body of a request to vLLM's ``/v1/systemone``."""

    model: str | None = None
    state: Any
    questions: dict[str, VllmSystemOneQuestion]
    instructions: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    joint: StrictBool = False
    cache_salt: str | None = None
    priority: int = 0
    request_id: str = ""


class VllmScoring(OpenBody):
    """Validates the body of a request to vLLM's ``/generative_scoring``."""

    model: str | None = None
    query: str | list[int]
    items: list[str] | list[list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    cache_salt: str | None = None
    priority: int = 0
    request_id: str = ""


class VllmTokenize(OpenBody):
    """Validates the body of a request to vLLM's ``/tokenize``. The body has either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    return_token_strs: bool | None = False


# SGLang, /v1/decisions and /v1/systemone


def _check_names(names: Iterable[str]) -> None:
    """Raise ``ValueError`` for names of options that would make the lines of the prompt ambiguous."""
    seen: set[str] = set()
    for name in names:
        key = name.strip().casefold()
        if not key:
            raise ValueError("option names must be nonempty")
        if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in name):
            raise ValueError(f"option name {name!r} must not contain control or line break characters")
        if key in seen:
            raise ValueError(f"option name {name!r} repeats another option")
        seen.add(key)


class SglangOption(ClosedBody):
    name: str
    description: Structured | None = None


class SglangChoiceQuestion(ClosedBody):
    id: NotBlank
    type: Literal["choice"]
    question: NotBlankStructured
    options: list[SglangOption] = Field(min_length=2, max_length=26)

    @model_validator(mode="after")
    def _distinct(self) -> SglangChoiceQuestion:
        try:
            _check_names(option.name for option in self.options)
        except ValueError as error:
            raise ValueError(f"question {self.id!r}: {error}") from None
        return self


class SglangScoreQuestion(ClosedBody):
    id: NotBlank
    type: Literal["score"]
    question: NotBlankStructured
    levels: list[NotBlankStructured] = Field(min_length=2, max_length=10)


class SglangYesNoQuestion(ClosedBody):
    id: NotBlank
    type: Literal["yes_no"]
    question: NotBlankStructured
    yes: Structured | None = None
    no: Structured | None = None


class SglangDecision(ClosedBody):
    """Validates the body of a request to SGLang's ``/v1/decisions``."""

    input: NotBlankStructured
    images: list[Any] = []
    questions: list[Annotated[SglangChoiceQuestion | SglangScoreQuestion | SglangYesNoQuestion, Discriminator("type")]] = Field(
        min_length=1
    )
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    chat_template_kwargs: dict[str, Any] = {}
    prompt_format_version: int | None = None
    return_prompt_token_ids: bool = False
    model: str = "default"

    @field_validator("questions")
    @classmethod
    def _distinct(cls, questions: list[Any]) -> list[Any]:
        seen: set[str] = set()
        for question in questions:
            if question.id in seen:
                raise ValueError(f"question id {question.id!r} repeats another question")
            seen.add(question.id)
        return questions


class NoulMeanings(ClosedBody):
    true: Structured | None = None
    false: Structured | None = None


class SystemOneNoulQuestion(ClosedBody):
    type: Literal["noul"]
    instructions: Structured | None = None
    criteria: NoulMeanings | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> SystemOneNoulQuestion:
        given = (self.instructions, *((self.criteria.true, self.criteria.false) if self.criteria else ()))
        if not any(value.strip() if isinstance(value, str) else value for value in given):
            raise ValueError("a noul question needs instructions or a true or false description to decide on")
        return self


class SystemOneChoiceQuestion(ClosedBody):
    type: Literal["choice"]
    instructions: Structured | None = None
    criteria: dict[str, Structured | None] = Field(min_length=1, max_length=255)

    @field_validator("criteria")
    @classmethod
    def _distinct(cls, criteria: dict[str, Any]) -> dict[str, Any]:
        _check_names(criteria)
        return criteria


class SystemOneScoreQuestion(ClosedBody):
    type: Literal["score"]
    instructions: Structured | None = None
    criteria: list[NotBlankStructured] = Field(min_length=1, max_length=10)


class SglangSystemOne(BaseModel):
    """Validates the body of a request to SGLang's ``/v1/systemone``. Unknown members are ignored, except in questions."""

    state: Structured
    model: str
    questions: dict[str, Annotated[SystemOneNoulQuestion | SystemOneChoiceQuestion | SystemOneScoreQuestion, Discriminator("type")]] = (
        Field(min_length=1)
    )
    chat_template_kwargs: dict[str, Any] = {}
    temperature: Any = None
    prompt_format_version: Any = None
    return_prompt_token_ids: Any = None

    @field_validator("temperature", "prompt_format_version", "return_prompt_token_ids")
    @classmethod
    def _belongs_to_decisions(cls, value: Any, info: Any) -> Any:
        if value is not None:
            raise ValueError(f"{info.field_name} is not part of this API, use /v1/decisions for it")
        return value


Body = TypeVar("Body", bound=BaseModel)


class InvalidBody(Exception):
    """A server does not accept a body. The text says where and why, in the words of pydantic."""


def parse(kind: type[Body], body: bytes) -> Body:
    """Return the body as a request. Raises ``InvalidBody``."""
    try:
        return kind.model_validate(json.loads(body))
    except ValidationError as error:
        raise InvalidBody("; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())) from None
    except ValueError as error:
        raise InvalidBody(f"JSON decode error: {error}") from None
