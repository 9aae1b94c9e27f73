"""How the API reference reads the package (a Griffe extension, see ``mkdocs.yml``): as its users call it, not as it is written.

- ``**options: Unpack[ChatOptions]`` becomes the options of that ``TypedDict``, each with its description.
- A model of pydantic, a struct of msgspec or a named tuple has the parameters of its fields.
- ``score = blocking(Judge.score)`` is a method, which refers to the asynchronous one.
- Docstrings become Markdown: ``:class:`Name``` and public names link to their place in the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

PARAMETERS = "qreward.options.ModelParams"  # too many to stand at every method
ENTRY = re.compile(r"^    (\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*):(?= |$)")
ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc|obj):`~?([\w.]+)(?:\(\))?`")
CODE = re.compile(r"``([A-Za-z_]\w*)``")
TWINS = ("blocking", "forwarded")
RECORDS = ("pydantic.BaseModel", "typing.NamedTuple", "msgspec.Struct")
TITLES = {"Example": "Examples"}  # Griffe's word for the section


class Docstrings(griffe.Extension):
    """Rewrites the tree of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.path != "qreward":
            return
        public = {name for name, member in pkg.members.items() if member.is_alias}
        objects = list(walk(pkg))
        for each in objects:  # twins copy what the others have not yet rewritten
            if isinstance(each, griffe.Class):
                add_twins(each)
                add_fields(each)
        objects = list(walk(pkg))
        for each in objects:
            if each.docstring is not None:
                each.docstring.value = split_entries(each.docstring.value)
        for each in objects:
            if isinstance(each, griffe.Function):
                expand_options(each)
        for each in objects:
            if each.docstring is not None:
                each.docstring.value = as_markdown(each.docstring.value, each, public)


def walk(scope: griffe.Object) -> Iterator[griffe.Object]:
    """Everything that is defined in a module or class, and itself."""
    yield scope
    for member in list(scope.members.values()):
        if not member.is_alias:
            yield from walk(member)  # type: ignore[arg-type]


def find(path: str, scope: griffe.Object) -> griffe.Object | None:
    """The object of a canonical path, if it is part of the package."""
    if not path.startswith("qreward."):
        return None
    try:
        found = scope.modules_collection[path]
        return found.final_target if isinstance(found, griffe.Alias) else found  # type: ignore[return-value]
    except (KeyError, griffe.AliasResolutionError):
        return None


def bases(cls: griffe.Class) -> Iterator[griffe.Class]:
    """The classes of the package that a class is made from, the most general first, then the class."""
    for base in cls.bases:
        path = base.canonical_path if isinstance(base, griffe.Expr) else str(base)
        if isinstance(found := find(path, cls), griffe.Class):
            yield from bases(found)
    yield cls


def fields(cls: griffe.Class) -> dict[str, griffe.Attribute]:
    """The attributes that a class itself defines."""
    return {name: member for name, member in cls.members.items() if isinstance(member, griffe.Attribute)}


# docstrings as text


def split_entries(text: str) -> str:
    """``a, b: text`` in a section becomes two entries, which is what Griffe reads; and its sections have Griffe's names."""
    lines: list[str] = []
    title, several, entry = "", [], []

    def flush() -> None:
        for name in several:
            lines.extend([f"    {name}:{entry[0]}", *entry[1:]])
        several.clear()

    for written in text.splitlines():
        line = written
        if heading := re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields|Example):", written):
            flush()
            title = heading[1]
            line = f"{TITLES.get(title, title)}:"
        elif line and not line.startswith(" "):
            title = ""
        found = ENTRY.match(line) if title in ("Args", "Attributes", "Raises") else None
        if found:
            flush()
            several, entry = found[1].split(", "), [line[found.end() :]]
        elif several and (line.startswith("     ") or not line):
            entry.append(line)
        else:
            flush()
            lines.append(line)
    flush()
    return "\n".join(lines)


def entries(text: str, titles: tuple[str, ...] = ("Args", "Attributes")) -> dict[str, str]:
    """Name -> description, with its further lines as they are indented, of the parameters or attributes in a docstring."""
    found: dict[str, str] = {}
    title = name = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            title, name = line.rstrip(":"), ""
        elif title in titles and (match := ENTRY.match(line)):
            name = match[1]
            found[name] = line[match.end() :].strip()
        elif name and line.strip():
            found[name] += "\n" + line
    return found


def set_entries(text: str, without: str, added: dict[str, str]) -> str:
    """The docstring without one parameter and with others, at the end of ``Args``, which is made if there is none."""
    new = [f"    {name}: {words}" for name, words in added.items()]
    lines, kept, inside, skipping = text.splitlines(), [], False, False
    for number, line in enumerate(lines):
        if inside and line and not line.startswith(" "):  # the end of Args
            inside = False
            while kept and not kept[-1].strip():
                kept.pop()
            kept += [*new, ""]
            new = []
        match = ENTRY.match(line) if inside else None
        skipping = (skipping and not match and inside and bool(line)) or bool(match and match[1].lstrip("*") == without)
        if not skipping:
            kept.append(line)
        inside = inside or (line == "Args:" and number + 1 < len(lines))
    if inside:
        kept += new
    elif new:
        kept = insert_args(kept, new)
    return "\n".join(kept)


def insert_args(lines: list[str], new: list[str]) -> list[str]:
    """An ``Args`` section before the other sections."""
    at = next((n for n, line in enumerate(lines) if re.fullmatch(r"(Returns|Raises|Examples|Yields):", line)), len(lines))
    return [*lines[:at], *([""] if at == len(lines) else []), "Args:", *new, "", *lines[at:]]


def as_markdown(text: str, place: griffe.Object, public: set[str]) -> str:
    """Roles of reStructuredText and public names as links, where the reference has a place for them."""

    def role(found: re.Match[str]) -> str:
        shown = found[1].rsplit(".", 1)[-1] if found[1].startswith("qreward.") else found[1]
        return link(identifier(found[1], place), shown)

    def code(found: re.Match[str]) -> str:
        if found[1] not in public or place.name == found[1]:
            return found[0]
        return link(f"qreward.{found[1]}", found[1])

    return CODE.sub(code, ROLE.sub(role, text))


def link(path: str, shown: str) -> str:
    return f'<autoref optional identifier="{path}"><code>{shown}</code></autoref>'


def identifier(name: str, place: griffe.Object) -> str:
    """The full name of what a docstring refers to, as seen from the object that it belongs to."""
    head, _, rest = name.partition(".")
    scope: griffe.Object | None = place
    while scope is not None and not name.startswith("qreward."):
        if head in scope.members:
            member = scope.members[head]
            path = member.target_path if isinstance(member, griffe.Alias) else member.path
            return f"{path}.{rest}" if rest else path
        scope = scope.parent  # type: ignore[assignment]
    return name


# parameters


def expand_options(function: griffe.Function) -> None:
    """Put the options of ``**options: Unpack[Options]`` in the place of ``options``."""
    for parameter in function.parameters:
        kind = parameter.annotation
        if parameter.kind is griffe.ParameterKind.var_keyword and isinstance(kind, griffe.ExprSubscript):
            found = find(str(getattr(kind.slice, "canonical_path", "")), function)
            if kind.canonical_path == "typing.Unpack" and isinstance(found, griffe.Class):
                replace_options(function, parameter, found)
                return


def replace_options(function: griffe.Function, parameter: griffe.Parameter, kind: griffe.Class) -> None:
    owner = function.parent if function.name == "__init__" else function
    assert owner is not None
    known = entries(owner.docstring.value) if owner.docstring else {}
    options = {
        name: words
        for each in bases(kind)
        if each.path != PARAMETERS
        for name, words in described(each).items()
        if name not in function.parameters
    }
    added = {name: words for name, words in options.items() if name not in known and words}
    del function.parameters[parameter.name]
    annotations = {name: member.annotation for each in bases(kind) for name, member in fields(each).items()}
    for name in options:
        function.parameters.add(griffe.Parameter(name, annotation=annotations[name], kind=griffe.ParameterKind.keyword_only, default="..."))
    if (takes := find(PARAMETERS, function)) in list(bases(kind)):
        assert isinstance(takes, griffe.Class)
        function.parameters.add(griffe.Parameter("params", annotation="Any", kind=griffe.ParameterKind.var_keyword))
        common = ("temperature", "max_tokens", "top_p", "seed", "stop", "response_format", "logprobs")
        names = ", ".join(f"``{name}``" for name in common)
        added["**params"] = (
            f"parameters of the model, which become members of the JSON body: {names}, and all others of :class:`{PARAMETERS}`."
        )
    if owner.docstring is None:
        owner.docstring = griffe.Docstring("", parent=owner)
    owner.docstring.value = set_entries(owner.docstring.value, parameter.name, added)


def described(kind: griffe.Class) -> dict[str, str]:
    """The own options of a ``TypedDict``, described in its docstring, or else in that of the class which it refers to."""
    text = kind.docstring.value if kind.docstring else ""
    found = entries(text)
    for name in ROLE.findall(text):
        other = find(identifier(name, kind), kind)
        if other is not None and other.docstring is not None:
            found = {**entries(other.docstring.value), **found}
    return {name: found.get(name, "") for name in fields(kind)}


# classes


def add_fields(cls: griffe.Class) -> None:
    """Give a model of pydantic, a struct of msgspec or a named tuple the parameters of its fields."""
    line = list(bases(cls))
    if not any(str(getattr(base, "canonical_path", base)) in RECORDS for each in line for base in each.bases):
        return
    written = cls.members.get("__init__")
    before = (
        [each for each in written.parameters if each.kind is not griffe.ParameterKind.var_keyword]
        if isinstance(written, griffe.Function)
        else []
    )
    parameters = griffe.Parameters(*(before or [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]))
    for name, field in {name: member for each in line for name, member in fields(each).items()}.items():
        if field.annotation is None or name.startswith("_") or "ClassVar" in str(field.annotation) or name in parameters:
            continue
        default = default_of(field)
        parameters.add(griffe.Parameter(name, annotation=field.annotation, kind=griffe.ParameterKind.keyword_only, default=default))
    cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, returns="None", parent=cls))


def default_of(field: griffe.Attribute) -> Any:
    """The default of a field, which may stand in ``Field(...)`` or in a constant of its module."""
    value = field.value
    if isinstance(value, griffe.ExprName) and isinstance(constant := find(value.canonical_path, field), griffe.Attribute):
        value = constant.value
    if not (isinstance(value, griffe.ExprCall) and str(value.function) == "Field"):
        return value
    for each in value.arguments:
        if not isinstance(each, griffe.ExprKeyword):
            return each if str(each) != "..." else None
        if each.name == "default":
            return each.value
        if each.name == "default_factory":
            return f"{each.value}()"
    return None


def add_twins(cls: griffe.Class) -> None:
    """Replace the blocking forms of methods, made by a call, by methods that refer to the asynchronous ones."""
    for name, member in list(fields(cls).items()):
        value = member.value
        if not (isinstance(value, griffe.ExprCall) and str(value.function) in TWINS):
            continue
        origin = find(identifier(str(value.arguments[0]), cls), cls)
        if not isinstance(origin, griffe.Function):
            continue
        wrap = str(value.arguments[1]) if len(value.arguments) > 1 else "same"
        returns = origin.returns if wrap == "same" else value.arguments[1] if wrap[0].isupper() else None
        twin = griffe.Function(name, parameters=griffe.Parameters(*origin.parameters), returns=returns, parent=cls)
        summary = origin.docstring.value.partition("\n\n")[0] if origin.docstring else ""
        twin.docstring = griffe.Docstring(f"{summary}\n\nAs :meth:`{origin.path}`.", parent=twin, parser="google")
        cls.set_member(name, twin)
