"""The base of all settings, and the kinds of values they hold: what is valid, and how it is said if something is not.

Knows no setting. ``None`` switches a thing off, durations are seconds, and an unknown name is an error that offers the nearest right one.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from qreward.errors import ConfigError
from qreward.spelling import did_you_mean


def _not_a_bool(value: object) -> object:
    """Refuse true and false for a number: YAML reads a bare ``on`` or ``yes`` as true, which would count as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


_Number = BeforeValidator(_not_a_bool)
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), _Number]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False), _Number]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False), _Number]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False), _Number]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False), _Number]
Count = Annotated[int, Field(ge=1), _Number]
Many = Annotated[int, Field(ge=0), _Number]
Quantile = Annotated[float, Field(gt=0, lt=1), _Number]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Policy(BaseModel):
    """Base of all settings: immutable, no unknown names, errors as :class:`ConfigError` without the values."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self))) from None

    # A nested model is then checked in place, so that an error carries its whole path ("endpoints.1.limits").
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed; make a new one with the other {name}")


def check_glob(pattern: str) -> str:
    """Return the pattern, or raise ``ValueError`` saying what is wrong with it."""
    if not isinstance(pattern, str) or not pattern or pattern != pattern.strip():
        raise ValueError(f"bad pattern {pattern!r}: it must be a non-empty text without blanks around it")
    rest = re.sub(r"\[!?+\]?+[^\]]*\]", "", pattern)
    if "[" in rest:
        raise ValueError(f"bad pattern {pattern!r}: '[' is not closed; write '[[]' for the character itself")
    return pattern


def check_header(name: object, value: object) -> str:
    """Return the name, or raise ``ValueError`` if the pair cannot be sent; the value is never shown."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        word = str(name).partition(":")[0]  # the rest of a whole header line would be its value
        raise ValueError(f"{word!r} is not a header name; give the name alone, such as 'X-Api-Key'")
    if not isinstance(value, str) or not value.isprintable() or not value.isascii():
        raise ValueError(f"the value of {name!r} holds characters that cannot be sent in a header (a line break at its end?)")
    return name


def expand_variables(value: object) -> object:
    """Replace ``${VAR}`` in a text by the environment's value; raise ``ValueError`` if one is not set."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        name = match.group(1)
        if not os.environ.get(name):
            raise ValueError(f"the environment variable {name} is not set (or empty); set it, or write the value itself")
        return os.environ[name]

    return _VARIABLE.sub(look_up, value)


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Turn a validation error into sentences that name the setting and, for a wrong name, the nearest right one."""
    return f"{model.__name__}: " + "; ".join(_sentence(detail, model) for detail in error.errors(include_input=False))


def _sentence(detail: Any, model: type[BaseModel]) -> str:
    path, message = detail["loc"], str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        path, name = path[:-1], str(path[-1])
        known = _names_at(model, path)
        message = f"unknown setting {name!r}; {did_you_mean(name, sorted(known), otherwise='the settings are')}"
    elif detail["type"] == "tuple_type":
        message = "must be a list"
    return f"{'.'.join(str(part) for part in path)}: {message}" if path else message


def _names_at(model: type[BaseModel], path: tuple[object, ...]) -> list[str]:
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        inner = [kind for kind in (field.annotation, *getattr(field.annotation, "__args__", ())) if isinstance(kind, type)]
        model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    return list(model.model_fields)
