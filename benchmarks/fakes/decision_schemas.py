"""The request bodies that decision servers accept, as pydantic models, and the errors with which these servers reject other bodies.

The forms follow vLLM 0.33 (``entrypoints/openai/decisions/protocol.py``, ``entrypoints/generate/structured_decisions/protocol.py``,
``entrypoints/generate/generative_scoring/serving.py``) and SGLang 0.5.23 (``srt/entrypoints/openai/protocol.py``,
``srt/entrypoints/systemone/protocol.py``). Both servers validate with pydantic under FastAPI, so their error messages are pydantic's.
Fields for images, audio and video are left out. ``decision_routes.py`` makes the answers.
"""

from __future__ import annotations

import json
import re
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


# Functions that read a body as FastAPI does, and functions that write the faults of a body in the form of each server

Body = TypeVar("Body", bound=BaseModel)
Faults = list[dict[str, Any]]
"""Pydantic's errors about a body. The ``loc`` of each error begins with ``body``."""


class InvalidBody(Exception):
    """A server does not accept a body."""

    def __init__(self, faults: Faults) -> None:
        super().__init__("the body is not valid")
        self.faults = faults


def parse(kind: type[Body], body: bytes) -> Body:
    """Return the body as a request.

    Raises:
        InvalidBody: the body is not valid.
    """
    if not body:
        raise InvalidBody([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        given = json.loads(body)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        context = {"error": getattr(error, "msg", str(error))}
        fault = {"type": "json_invalid", "loc": ("body", at), "msg": "JSON decode error", "input": {}, "ctx": context}
        raise InvalidBody([fault]) from None
    try:
        return kind.model_validate(given, from_attributes=True)  # FastAPI sets from_attributes, which changes a message
    except ValidationError as error:
        raise InvalidBody([{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]) from None


def openai_message(faults: Faults) -> tuple[str, str | None, str]:
    """Return the message, ``param`` and ``code`` of OpenAI's error for the first fault.

    The wording is the wording of errors of OpenAI's other routes.
    """
    fault = faults[0]
    kind, context = fault["type"], fault.get("ctx", {})
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"][1:] if part not in _TAGS]
    place = "".join(parts).removeprefix(".")
    if kind == "missing":
        return f"Missing required parameter: '{place}'.", place, "missing_required_parameter"
    if kind == "extra_forbidden":
        return f"Unknown parameter: '{place}'.", place, "unknown_parameter"
    if kind in ("too_long", "too_short"):
        bound, word, edge = ("max", "long", "above") if kind == "too_long" else ("min", "short", "below")
        expected = f"with {bound}imum length {context[f'{bound}_length']}, but got an array with length {context['actual_length']} instead"
        return f"Invalid '{place}': array too {word}. Expected an array {expected}.", place, f"array_{edge}_{bound}_length"
    if kind == "union_tag_invalid":
        return f"Invalid value: '{context['tag']}'. Supported values are: {context['expected_tags']}.", f"{place}.type", "invalid_value"
    if kind == "json_invalid":
        return "We could not parse the JSON body of your request.", None, "invalid_json"
    return f"Invalid type for '{place}': {fault['msg']}.", place, "invalid_type"


_TAGS = frozenset({"predicate", "choice", "score", "str", "bool", "list[OpenAiMessage]", "list[OpenAiPart]"})
_MOST_FAULTS, _MOST_VALUE, _MOST_FAULT = 10, 200, 1000
_INTERNAL = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "nullable"})


def vllm_message(faults: Faults) -> tuple[str, str]:
    """Return the message and ``param`` of vLLM's error; see vLLM's ``serve/exception_handling/handlers/validation.py``."""
    word = "error" if len(faults) == 1 else "errors"
    lines = [f"{len(faults)} validation {word}:"]
    for fault in faults[:_MOST_FAULTS]:
        text = str({**fault, "loc": _place(fault["loc"]), "input": _summary(fault["input"])})
        lines.append(f"  {text}" if len(text) <= _MOST_FAULT else f"  {text[:_MOST_FAULT]}...[truncated]")
    if len(faults) > _MOST_FAULTS:
        lines.append(f"  ...and {len(faults) - _MOST_FAULTS} more {word}")
    return "\n".join(lines), _place(faults[0]["loc"])


def _place(loc: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in loc if not re.search(r"[\[\]{}()]", str(part)) and str(part).lower() not in _INTERNAL)


def _summary(value: Any) -> str:
    """Return the text of a value. A long text is shortened, and a container is replaced with its type and size."""
    if isinstance(value, list | tuple | set | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}...[truncated]"


def sglang_message(faults: Faults, function: str, path: str) -> str:
    """Return the message of SGLang's error under ``/v1/``; see SGLang's ``http_server.py``.

    The message is FastAPI's text, which contains the list of faults twice.
    """
    listed = "".join(f"  {fault}\n" for fault in faults)
    where = f'\n  File "/sgl-workspace/sglang/python/sglang/srt/entrypoints/http_server.py", line 2058, in {function}\n    POST {path}'
    return f"{len(faults)} validation error{'s' if len(faults) != 1 else ''}:\n{listed}{where} {faults}"


def sglang_detail(faults: Faults) -> list[dict[str, Any]]:
    """Return the faults in the form in which SGLang reports them with HTTP 422 at ``/v1/systemone``.

    The form is the form of FastAPI's errors, without the rejected values.
    """
    return json.loads(json.dumps([{key: each for key, each in fault.items() if key != "input"} for fault in faults], default=_context))  # type: ignore[no-any-return]


def _context(_value: Any) -> dict[str, Any]:
    return {}  # FastAPI's encoder writes an exception as an empty object
