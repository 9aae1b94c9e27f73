"""The base class of all settings, the types of their values, and the messages for invalid values. This module does not
depend on any particular setting.

These conventions hold for all settings: ``None`` disables a feature, durations are seconds, and an unknown name is an error that suggests
the closest valid name.
"""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isfinite
from operator import ge, gt, le, lt
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NoReturn, Self, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from qreward.callables import NOT_GIVEN, Code
from qreward.errors import ConfigError, Fault
from qreward.spelling import TYPO, closest, did_you_mean, meant

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as PolicyType

    Read_co = TypeVar("Read_co", covariant=True)
    Given_contra = TypeVar("Given_contra", contravariant=True)

    class Accepting(Generic[Read_co, Given_contra]):
        """The type of a setting that is read as the first type and may be given as the second type: ``Accepting[int, int | str]``."""

        def __get__(self, instance: object, owner: object = None) -> Read_co: ...
        def __set__(self, instance: object, value: Given_contra) -> None: ...

else:

    class PolicyType(type(BaseModel)):
        """The metaclass of all settings. Without it, ``help`` of a class shows some 50 methods of pydantic, and validators as types."""

        def __dir__(cls):
            own = (kind for kind in cls.__mro__ if issubclass(kind, BaseModel) and kind is not BaseModel)
            return [name for kind in own for name in vars(kind) if not name.startswith("_") and name not in ("model_config", "elsewhere")]

    class Accepting:
        """For pydantic, the type of the setting is the first type. The validators of the setting also accept the second type."""

        def __class_getitem__(cls, types):
            return types[0]


def default(value: Any) -> Any:
    """Return the value unchanged. The value is the default of a setting whose type is ``Accepting``.

    Without this function, type checkers would report the value, because it is not an ``Accepting``.
    """
    return value


_UNITS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    "%": 0.01,
    "": 1.0,
}
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WITH_UNIT = re.compile(r"((?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?)\s*([A-Za-z%]*)")
_HARMLESS = re.compile(r"[+-]?\d[\d_.,]*\s*[A-Za-z%]{0,8}|[A-Za-z_ -]{0,24}")


class Number:
    """Validates a number. This validation runs before pydantic's own validation, because the message of this validation
    contains the value and the unit.

    Args:
        unit: unit of the number; empty if the number has no unit.
        whole: True allows only integers.
        least, most: inclusive bounds of the value.
        above, below: exclusive bounds of the value.
    """

    def __init__(
        self,
        unit: str = "",
        *,
        whole: bool = False,
        least: float | None = None,
        above: float | None = None,
        below: float | None = None,
        most: float | None = None,
    ) -> None:
        self._of = f" of {unit}" if unit else ""
        self._unit, self._whole = f" {unit}" if unit else "", whole
        bounds = ("at least", least, ge), ("more than", above, gt), ("less than", below, lt), ("at most", most, le)
        self._bounds = [(words, bound, fits) for words, bound, fits in bounds if bound is not None]
        self._kind = f"whole number{self._of}" if whole else f"number{self._of}"

    def __call__(self, value: object) -> object:
        number = self._read(value)
        if not isfinite(number):
            raise ValueError(f"must be a finite number{self._of}, not {number}")
        if self._whole and not number.is_integer():
            raise ValueError(f"must be a whole number{self._of}, not {number:g}")
        for words, bound, fits in self._bounds:
            if not fits(number, bound):
                raise ValueError(f"must be {words} {bound:g}{self._unit}, not {number:g}")
        return value

    def _read(self, value: object) -> float:
        if isinstance(value, bool):  # YAML parses a bare ``on`` or ``yes`` as true, which would count as 1
            raise ValueError(f"must be a {self._kind}, not true or false")
        if isinstance(value, str) and not NUMBER.fullmatch(value.strip()) and value.strip().lower() not in ("nan", "inf", "-inf"):
            raise ValueError(f"{shown(value)} is not a {self._kind}{self._remedy(value)}")
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            return inf
        except (TypeError, ValueError):
            raise ValueError(f"must be a {self._kind}, not {_kind_of(value)}") from None

    def _remedy(self, text: str) -> str:
        """Return a correction, such as ``; write 300`` for ``300s``. The result is empty if the unit is not known."""
        found = _WITH_UNIT.fullmatch(text.strip())
        if found is None:
            return ""
        unit = found[2].lower()
        fits = not unit or (self._unit == " seconds" and unit != "%") or (not self._unit and not self._whole and unit == "%")
        factor = _UNITS.get(unit) if fits else None
        return "" if factor is None else f"; write {float(re.sub('[_,]', '', found[1])) * factor:.10g}"


Seconds = Annotated[float, BeforeValidator(Number("seconds", above=0))]
SomeSeconds = Annotated[float, BeforeValidator(Number("seconds", least=0))]
Weight = Annotated[float, BeforeValidator(Number(above=0))]
Rate = Annotated[float, BeforeValidator(Number(above=0))]
Share = Annotated[float, BeforeValidator(Number(least=0))]
Dollars = Annotated[float, BeforeValidator(Number("US dollars", least=0))]
Count = Annotated[int, BeforeValidator(Number(whole=True, least=1))]
Many = Annotated[int, BeforeValidator(Number(whole=True, least=0))]
Quantile = Annotated[float, BeforeValidator(Number(above=0, below=1))]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_WITHOUT_BRACES = re.compile(r"(?:(?i:bearer|basic|token|key|apikey) )?\$(?:[A-Za-z_]\w*|\{[^{}]*\}?)")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


_EXPANDED = {"variables": "expanded"}
"""Context of a validation of values in which environment variables have been replaced already."""


class Policy(BaseModel, metaclass=PolicyType):
    """Base class of all settings. An object is immutable. An unknown name is an error. Errors are :class:`ConfigError`, without values."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Name that users look for here -> the part of an error message that says where it belongs."""

    def __init__(self, /, *unnamed: Any, **data: Any) -> None:
        if unnamed:
            names = ", ".join(f"{name}=..." for name in [*type(self).model_fields][: len(unnamed)])
            raise ConfigError(f"{type(self).__name__}: settings are given by name, such as {type(self).__name__}({names})") from None
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise explain(error, type(self)) from None

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Self:
        """Return the settings in the content of a file, in which environment variables have been replaced.

        The result of a replacement is not expanded again, because a value may contain ``$``.
        """
        try:
            return cls.model_validate(content, context=_EXPANDED)
        except ValidationError as error:
            raise explain(error, cls) from None

    # Makes pydantic validate a nested model in place, so that an error has its full path ("endpoints.1.limits").
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Set the signature that ``help`` and editors show: the types of the settings, without pydantic's validators."""
        super().__pydantic_init_subclass__(**kwargs)
        given = SimpleNamespace(__annotations__={name: field.annotation for name, field in cls.model_fields.items()})
        types = get_type_hints(given)  # without the validators
        signature = inspect.signature(cls)
        parameters = [
            each.replace(annotation=_short(types[each.name]), default=NOT_GIVEN if isinstance(each.default, Policy) else each.default)
            for each in signature.parameters.values()
            if each.name in types
        ]
        cls.__signature__ = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed; make a new one with the other {name}")


_MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")


def _short(annotation: Any) -> Code:
    text = _MODULES.sub("", inspect.formatannotation(annotation)).replace("SecretStr", "str")
    return Code(re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text))


def repeated(names: Iterable[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


def check_glob(pattern: str) -> str:
    """Return the pattern if it is a valid glob, or raise ``ValueError`` with a description of the fault."""
    if not isinstance(pattern, str) or not pattern or pattern != pattern.strip():
        raise ValueError(f"bad pattern {pattern!r}: it must be a non-empty text without blanks around it")
    rest = re.sub(r"\[!?+\]?+[^\]]*\]", "", pattern)
    if "[" in rest:
        raise ValueError(f"bad pattern {pattern!r}: '[' is not closed; write '[[]' for the character itself")
    return pattern


def check_header(name: object, value: object) -> str:
    """Return the name of a header if the header can be sent, or raise ``ValueError``. The message never contains the value."""
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        word = str(name).partition(":")[0]  # if ``name`` is a whole header line, the part after the colon is the value
        raise ValueError(f"{word!r} is not a header name; give the name alone, such as 'X-Api-Key'")
    if not isinstance(value, str) or not value.isprintable() or not value.isascii():
        raise ValueError(f"the value of {name!r} holds characters that cannot be sent in a header (a line break at its end?)")
    return name


def expand_variables(value: object) -> object:
    """Return a string in which ``${VAR}`` is replaced with the environment variable.

    ``${VAR:-default}`` is replaced with the default if the variable is not set or empty. Values other than strings are returned unchanged.
    The secret value of a ``SecretStr`` is expanded.

    Raises:
        ValueError: a variable without a default is not set or empty. Also raised if the string is a variable in another notation
            (``$VAR``), because the string would be sent unchanged.

    Example:
        >>> expand_variables("http://${QREWARD_EXAMPLE_HOST:-gpu-0}:8000/v1")
        'http://gpu-0:8000/v1'
    """
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = os.environ.get(name) or default
        if found is None:
            raise ValueError(
                f"the environment variable {name} is not set (or empty); set it, or write ${{{name}:-default}} with a value for that case"
            )
        return found

    expanded, times = _VARIABLE.subn(look_up, value)
    if not times and _WITHOUT_BRACES.fullmatch(value):
        raise ValueError("looks like an environment variable but would be used as it is; write ${NAME}, or ${NAME:-default}")
    return expanded


def variables_in(text: str) -> list[str]:
    """Return the names of the environment variables that a text refers to. Each name is returned once.

    Example:
        >>> variables_in("http://${HOST}:${PORT:-8000}/v1")
        ['HOST', 'PORT']
    """
    return list(dict.fromkeys(match[1] for match in _VARIABLE.finditer(text)))


def expand_once(value: object, info: ValidationInfo) -> object:
    """Return the value with its variables expanded. A pydantic validator calls this function instead of ``expand_variables``.

    Strings from a file are returned unchanged, because their variables have been replaced already; see ``Policy.from_content``.
    """
    return value if info.context == _EXPANDED and isinstance(value, str) else expand_variables(value)


def wrong(*faults: tuple[tuple[str | int, ...], str]) -> ValidationError:
    """Return the exception with which a validator reports faults. A fault has a path below the validated value, and a message."""
    details: list[Any] = [
        {"type": PydanticCustomError("wrong", "{text}", {"text": text}), "loc": path, "input": None} for path, text in faults
    ]
    return ValidationError.from_exception_data("settings", details)


def explain(error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """Return a validation error as a ``ConfigError``. The message has one line per fault: the location, the fault and the correction."""
    details = error.errors()
    inner = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    faults = tuple((d["loc"], _sentence(d, model)) for d in details if d["type"] != "too_short" or d["loc"] not in inner)
    return with_faults(faults, lambda _: f"{model.__name__}: ")


def with_faults(faults: Sequence[Fault], prefix: Callable[[tuple[str | int, ...]], str]) -> ConfigError:
    """Return a ``ConfigError`` with one line per fault. ``prefix`` returns the beginning of a line for the path of its fault."""
    found = ConfigError("\n".join(prefix(path) + text for path, text in faults))
    found.faults = tuple(faults)
    return found


def _sentence(detail: Any, model: type[BaseModel]) -> str:
    path, kind, value, context = detail["loc"], detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        path, name = path[:-1], str(path[-1])
        here = _model_at(model, path)
        message = f"unknown setting {name!r}; {_hint(here, name)}"
    elif kind in ("literal_error", "enum"):
        known = re.findall(r"'([^']*)'", context["expected"])
        near = closest(value, known) if isinstance(value, str) else []
        message = f"must be {context['expected']}, not {shown(value)}" + (f"; did you mean {near[0]!r}?" if near else "")
    elif kind in _MESSAGES:
        message = _MESSAGES[kind].format(**context, kind=_kind_of(value), blank=_missing_blank(value))
    else:
        message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(str(part) for part in path)}: {message}" if path else message


_MESSAGES = {
    "missing": "is required",
    "string_type": "must be a string, not {kind}",
    "string_too_short": "must not be empty",
    "float_type": "must be a number, not {kind}",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number, not {kind}",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false, not {kind}",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list, not {kind}",
    "list_type": "must be a list, not {kind}",
    "dict_type": "must be a mapping, not {kind}",
    "model_type": "must be a mapping of settings, not {kind}; in code, write {class_name}(...){blank}",
    "too_short": "must have at least {min_length} value(s), not {actual_length}",
    "too_long": "must have at most {max_length} value(s), not {actual_length}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
}
"""Type of a pydantic error -> message. A message never contains the value, because the value may be an API key."""


def shown(value: object) -> str:
    """Return a value as messages show it. Numbers and short words are shown unchanged.

    Any other value is shown by its type only, because it may be an API key.
    """
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and _HARMLESS.fullmatch(value)):
        return repr(value)
    return _kind_of(value)


_KINDS = {NoneType: "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
_KINDS |= {list: "a list", tuple: "a list", dict: "a mapping"}


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def _model_at(model: type[BaseModel], path: tuple[object, ...]) -> type[BaseModel]:
    for part in path:
        model = _inner(model, str(part)) or model
    return model


def _inner(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the settings class of a setting, or None if the setting is a single value."""
    field = model.model_fields.get(name)
    kinds = () if field is None else (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _missing_blank(value: object) -> str:
    """Return the correction for ``base_url:http://gpu-0/v1`` in YAML, which is a string."""
    found = isinstance(value, str) and re.match(r"([a-z_]+):\S", value)
    return f"; write a blank after the colon of {found[1]!r}" if found else ""


def _hint(model: type[BaseModel], name: str) -> str:
    """Return what to write instead of a setting that is unknown here."""
    names = sorted(model.model_fields)
    if name in getattr(model, "elsewhere", ()):
        return str(model.elsewhere[name])  # type: ignore[attr-defined]
    if meant(name, names, cutoff=TYPO) is None and (place := _place_in(model, name)):
        code, path = place
        return f"it is part of {path.partition('.')[0]}: {code}, in a file {path}"
    return did_you_mean(name, names, otherwise="the settings are")


def _place_in(model: type[BaseModel], name: str) -> tuple[str, str] | None:
    """Return where a setting belongs that is part of another setting of the model: as code, and as its path in a file."""
    inner = {outer: kind for outer in model.model_fields if (kind := _inner(model, outer)) is not None}
    for outer, kind in inner.items():
        if ours := meant(name, kind.model_fields):
            return _within(model, outer, kind, f"{ours}=...", ours)
    for outer, kind in inner.items():
        if found := _place_in(kind, name):
            return _within(model, outer, kind, *found)
    return None


def _within(model: type[BaseModel], outer: str, kind: type[BaseModel], code: str, path: str) -> tuple[str, str]:
    if get_origin(model.model_fields[outer].annotation) is tuple:
        return f"{outer}=[{kind.__name__}({code})]", f"{outer}.0.{path}"
    return f"{outer}={kind.__name__}({code})", f"{outer}.{path}"
