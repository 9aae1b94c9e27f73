"""The base class of all settings, the types of their values, and the messages about invalid values."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NoReturn, Self, TypeVar, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from qreward.callables import NOT_GIVEN, Code
from qreward.errors import TYPO, ConfigError, Fault, closest, did_you_mean, meant

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as PolicyType

    Read_co = TypeVar("Read_co", covariant=True)
    Given_contra = TypeVar("Given_contra", contravariant=True)

    class Accepting(Generic[Read_co, Given_contra]):
        """``Accepting[int, int | str]`` is the type of a setting that is read as an int, and may be given as an int or a text."""

        def __get__(self, instance: object, owner: object = None) -> Read_co: ...
        def __set__(self, instance: object, value: Given_contra) -> None: ...

else:

    class PolicyType(type(BaseModel)):
        """The metaclass of all settings. It hides some 50 methods of pydantic from ``help``."""

        def __dir__(cls):
            own = (kind for kind in cls.__mro__ if issubclass(kind, BaseModel) and kind is not BaseModel)
            return [name for kind in own for name in vars(kind) if not name.startswith("_") and name not in ("model_config", "elsewhere")]

    class Accepting:
        def __class_getitem__(cls, types):
            return types[0]


def default(value: Any) -> Any:
    """Return the default of a setting whose type is ``Accepting``, which type checkers would refuse."""
    return value


_HARMLESS = re.compile(r"[+-]?\d[\d_.,]*\s*[A-Za-z%]{0,8}|[A-Za-z_ -]{0,24}")


V = TypeVar("V", AfterValidator, BeforeValidator)


def must(holds: Callable[[Any], bool], text: str | Callable[[Any], str], kind: type[V] = AfterValidator) -> V:  # type: ignore[assignment]
    """Return a validator that refuses values for which ``holds`` is False, with this text, or the text that it returns for a value."""

    def checked(value: object) -> object:
        if not holds(value):
            raise ValueError(text if isinstance(text, str) else text(value))
        return value

    return kind(checked)


NOT_BOOL = must(lambda value: not isinstance(value, bool), "must be a number, not true or false", BeforeValidator)
"""Refuses booleans as numbers, because YAML reads a bare ``on`` as true."""
Finite = Annotated[float, Field(allow_inf_nan=False), NOT_BOOL]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NOT_BOOL]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NOT_BOOL]
Portion = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), NOT_BOOL]
Quantile = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False), NOT_BOOL]
Seconds = Annotated[Positive, "seconds"]  # a type of its own, by which the tests of the pages recognise seconds
Count = Annotated[int, Field(ge=1), NOT_BOOL]
Many = Annotated[int, Field(ge=0), NOT_BOOL]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^${}]*))?\}")
_OTHER_DEFAULT = re.compile(r"\$\{\w+(?::[-=?+]|-)")
_WITHOUT_BRACES = re.compile(r"(?:(?i:bearer|basic|token|key|apikey) )?\$(?:[A-Za-z_]\w*|\{[^{}]*\}?)")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FROM_FILE = {"variables": "expanded"}
"""Context of a validation of values in which environment variables have been replaced already."""


class Policy(BaseModel, metaclass=PolicyType):
    """Base class of all settings. An object is immutable, an unknown name is an error, and errors show no values."""

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
        """Return the settings in the content of a file. Its environment variables were replaced already, and values may contain ``$``."""
        try:
            return cls.model_validate(content, context=_FROM_FILE)
        except ValidationError as error:
            raise explain(error, cls) from None

    # Makes pydantic validate a nested model in place, so that an error has its full path ("endpoints.1.limits").
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Set the signature that ``help`` shows: without pydantic's validators."""
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
        word = re.split(r"[:\s]", str(name))[0]  # the rest may be the value, if ``name`` is a whole header line
        word += " ..." * (word != str(name))
        raise ValueError(f"{word!r} is not a header name; give the name alone, such as 'X-Api-Key'")
    if not isinstance(value, str) or not value.isprintable() or not value.isascii():
        raise ValueError(f"the value of {name!r} holds characters that cannot be sent in a header (a line break at its end?)")
    return name


def expand_variables(value: object) -> object:
    """Return a string in which ``${VAR}`` and ``${VAR:-default}`` are replaced from the environment. Raises ``ValueError``."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str):
        return value

    if _OTHER_DEFAULT.search(_VARIABLE.sub("", value)):
        raise ValueError("holds a ${...} that is not ${NAME} or ${NAME:-default}; a default cannot hold a variable or braces")

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


def expand_once(value: object, info: ValidationInfo) -> object:
    """Return the value with its variables expanded, unless it comes from a file; see ``Policy.from_content``."""
    return value if info.context == _FROM_FILE and isinstance(value, str) else expand_variables(value)


EXPANDED = BeforeValidator(expand_once)


def wrong(*faults: tuple[tuple[str | int, ...], str]) -> ValidationError:
    """Return the exception with which a validator reports faults: paths below the validated value, and messages."""
    details: list[Any] = [
        {"type": PydanticCustomError("wrong", "{text}", {"text": text}), "loc": path, "input": None} for path, text in faults
    ]
    return ValidationError.from_exception_data("settings", details)


def faults_at(at: tuple[str | int, ...], error: ConfigError) -> list[Fault]:
    """Return the faults of inner settings, whose path is ``at``, for :func:`wrong`: with their whole paths, and texts without paths."""
    found: list[Fault] = []
    for path, text in error.faults or [((), str(error))]:
        for known in (path, path[:-1]):  # the text on an unknown setting begins with the path of what has it
            text = text.removeprefix(f"{'.'.join(map(str, known))}: ")  # noqa: PLW2901
        found.append(((*at, *path), text))
    return found


def explain(error: ValidationError, model: type[BaseModel]) -> ConfigError:
    """Return a validation error as a ``ConfigError`` with one line per fault."""
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
    path, kind, value, message = detail["loc"], detail["type"], detail["input"], str(detail["msg"]).removeprefix("Value error, ")
    if kind not in ("value_error", "wrong"):  # the messages of validators are our own
        for pydantics, ours in _WORDS.items():
            message = message.replace(pydantics, ours)
        message = re.sub(", (?:unable to|got a number) [a-z ]+", "", message)
    if kind == "extra_forbidden":
        path, name = path[:-1], str(path[-1])
        for part in path:
            model = _inner(model, str(part)) or model
        message = f"unknown setting {name!r}; {_hint(model, name)}"
    elif kind in _EXAMPLES:
        message += _EXAMPLES[kind]
    elif kind == "model_type":
        field = None
        for part in map(str, path):
            field, model = model.model_fields.get(part), _inner(model, part) or model
        disabled = value is False and field is not None and type(None) in getattr(field.annotation, "__args__", ())
        message += f", such as {{{next(iter(model.model_fields))}: ...}}" + ("; null disables it" if disabled else "")
    elif kind in ("literal_error", "enum"):
        message += instead(value, re.findall(r"'([^']*)'", message))
    elif kind.startswith(("int", "float", "finite", "greater", "less")):
        message += f", not {shown(value)}"
    return f"{'.'.join(map(str, path))}: {message}" if path else message


_EXAMPLES = {"tuple_type": ", such as [a, b]", "list_type": ", such as [a, b]", "dict_type": ", such as {name: value}"}


_WORDS = {
    "Input should be ": "must be ",
    "Value should ": "must ",
    "Tuple should ": "must ",
    "Field required": "is required",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
    " after validation": "",
    "tuple": "list",
    "dictionary": "mapping",
}
"""Words in pydantic's messages -> shorter words, which are also those of YAML and JSON."""


def shown(value: object) -> str:
    """Return a value as messages show it: numbers and short words as they are, others by their type, because one may be an API key."""
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and _HARMLESS.fullmatch(value)):
        return repr(value)
    names: dict[type, str] = {str: "string", list: "list", tuple: "list", dict: "mapping"}
    return f"a {names.get(type(value), type(value).__name__)}"


def instead(value: object, known: Iterable[str], origin: str = "") -> str:
    """Return the end of a message about a value that is none of the known names: the value, and the closest name."""
    near = closest(value, known) if isinstance(value, str) else []
    return f", not {shown(value)}{origin}" + (f"; did you mean {near[0]!r}?" if near else "")


def _inner(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    kinds = () if field is None else (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _hint(model: type[BaseModel], name: str) -> str:
    names = sorted(model.model_fields)
    if name in getattr(model, "elsewhere", ()):
        return str(model.elsewhere[name])  # type: ignore[attr-defined]
    if meant(name, names, cutoff=TYPO) is None and (place := _place_in(model, name)):
        code, path = place
        return f"it is part of {path.partition('.')[0]}: {code}, in a file {path}"
    return did_you_mean(name, names, otherwise="the settings are")


def _place_in(model: type[BaseModel], name: str) -> tuple[str, str] | None:
    """Return the code and the path of the setting within inner settings that is meant, the nearest one."""
    inner = {outer: kind for outer in model.model_fields if (kind := _inner(model, outer)) is not None}
    found = {outer: (f"{ours}=...", ours) for outer, kind in inner.items() if (ours := meant(name, kind.model_fields))}
    found = found or {outer: place for outer, kind in inner.items() if (place := _place_in(kind, name))}
    for outer, (code, path) in found.items():
        made = inner[outer].__name__
        if get_origin(model.model_fields[outer].annotation) is tuple:
            return f"{outer}=[{made}({code})]", f"{outer}.0.{path}"
        return f"{outer}={made}({code})", f"{outer}.{path}"
    return None
