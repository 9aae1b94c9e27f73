"""The architecture: which module may import which, what pure modules may not touch, and that no imports form a circle.

Every rule is a function from one module's syntax tree to its faults, so that a snippet can show that the rule catches it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

LAYERS: list[tuple[str, ...]] = [
    ("callables", "records", "errors", "results", "decisions", "observers", "settings"),
    ("scheduler", "quota.ledger"),
    ("codecs",),
    ("transport", "engine.background"),
    ("engine", "quota"),
    (
        "options",
        "progress",
        "render",
        "streaming",
        "scoring",
        "deciding",
        "batching",
        "functions",
        "server",
        "telemetry",
        "chat_namespace",
        "live",
    ),
    ("runtime", "client", "sync_client"),
    ("judge",),
    ("bulk",),
    ("integrations",),
    ("compat", "utils", "client.load_balancer", "client.manager", "client.model_router", "client.openai"),
    ("testing",),
    ("cli", "__main__"),
]
"""From the lowest to the highest. A module may import modules of its own layer and of lower ones."""

PURE = ("scheduler", "quota.ledger")
"""They take the time and randomness as arguments, and do no I/O."""

UPWARD = {
    ("client", "bulk.run"): "client.run; most programs run no bulk",
    ("client", "bulk.inputs"): "for types only",
    ("client", "bulk.outputs"): "for types only",
    ("client", "compat"): "names of QReward 0.1.7, looked up when a program imports one",
    ("client", "judge.types"): "for types only",
    ("live.channel", "runtime"): "for types only",
    ("results", "render"): "a result draws itself when a notebook asks for it",
    ("quota.renewal", "integrations.ray.limit_actor"): "Ray is an extra, imported when limits are shared over a cluster",
}
"""Imports of a higher layer, inside functions or for types only, each with its reason."""

OUTSIDE = {
    "asyncio": {
        "engine", "transport", "quota", "client", "sync_client", "streaming", "scoring", "testing", "cli", "functions",
        "batching", "compat", "deciding", "judge", "bulk", "integrations", "server", "chat_namespace",
    },
    "aiohttp": {"transport", "testing"},
    "openai": {"codecs", "integrations.openai"},
    "httpx": {"transport.httpx_transport", "integrations.openai"},
    "httpx2": {"transport.httpx_transport", "integrations.openai"},
    "IPython": {"integrations", "progress", "render"},
    "opentelemetry": {"telemetry", "compat", "integrations.roll.worker"},
    "opentelemetry.exporter": set(),
    "opentelemetry.sdk": set(),  # it is the program's: a library uses the API
    "roll": {"integrations.roll.worker"},
    "ray": {"integrations.ray.pool", "integrations.ray.bulk", "integrations.ray.limit_actor", "integrations.ray.serving"},
    "verl": {"integrations.verl.manager"},
    "openrlhf": {"integrations.openrlhf"},
    "areal": {"integrations.areal.workflow"},
    "openenv": {"integrations.openenv"},
    "skyrl_gym": {"integrations.skyrl"},
    "verifiers": {"integrations.verifiers"},
    "uvicorn": {"server"},
}  # fmt: skip
"""Package -> the only modules that may import it; the longest name that fits decides."""
OPENAI_TYPES = {"client", "sync_client", "streaming", "scoring", "integrations", "chat_namespace"}

IMPURE = {"asyncio", "concurrent", "datetime", "http", "io", "logging", "multiprocessing", "os", "secrets", "select", "selectors"}
IMPURE |= {"signal", "socket", "ssl", "subprocess", "threading", "time", "urllib", "uuid"}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}

FOLDERS = ("qreward", "benchmarks", "examples", "tests")
LONGEST_FUNCTION = 60


@dataclass(frozen=True, eq=False)
class Module:
    """One file: its name inside ``qreward`` (``""`` is the package itself) and its tree."""

    name: str
    tree: ast.Module
    known: frozenset[str] = frozenset()
    package: bool = False

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Import:
    target: str
    line: int
    for_types: bool


@cache
def imports_of(module: Module) -> list[Import]:
    """Every import: at the top, inside functions, for types only, and by ``importlib.import_module("literal")``."""
    found = []
    guards = [node for node in ast.walk(module.tree) if isinstance(node, ast.If) and _is_type_checking(node.test)]
    guarded = {id(inner) for guard in guards for node in guard.body for inner in ast.walk(node)}
    for node in ast.walk(module.tree):
        for target in _targets(node, module):
            found.append(Import(target, getattr(node, "lineno", 0), id(node) in guarded))
    return found


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets(node: ast.AST, module: Module) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node, module)
        inner = [f"{base}.{alias.name}" for alias in node.names]
        return sorted({name if name in module.known else base for name in inner})
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__"):
        literal = node.args[0] if node.args else None
        return [literal.value] if isinstance(literal, ast.Constant) and isinstance(literal.value, str) else []
    return []


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    home = ["qreward", *(module.name.split(".") if module.name else [])]
    home = home[: len(home) - node.level + module.package]
    return ".".join([*home, *([node.module] if node.module else [])])


def layer_of(name: str) -> int | None:
    """The place of a module in ``LAYERS``; the longest prefix decides."""
    places = {prefix: place for place, layer in enumerate(LAYERS) for prefix in layer}
    return next((places[prefix] for prefix in _prefixes(name) if prefix in places), None)


def upward_imports(module: Module) -> Iterator[str]:
    """``qreward`` itself only names what users import; nothing but the version may be taken from it."""
    mine = layer_of(module.name) if module.name else -1
    if mine is None:
        yield f"{module.name!r} has no place in the layers"
        return
    for found in imports_of(module):
        package, _, target = found.target.partition(".")
        if package != "qreward" or (not module.name and found.for_types):
            continue
        theirs = layer_of(target or "options")  # the package itself is there for its version
        if (theirs is None or theirs > mine) and (module.name, target) not in UPWARD:
            yield f"line {found.line}: {module.name or 'qreward'} may not import {found.target}"


def strange_packages(module: Module) -> Iterator[str]:
    for found in imports_of(module):
        homes = next((OUTSIDE[name] for name in _prefixes(found.target) if name in OUTSIDE), None)
        if homes is None or module.room in homes or module.name in homes:
            continue
        if found.target.startswith("openai") and found.for_types and module.room in OPENAI_TYPES:
            continue
        yield f"line {found.line}: {module.name or 'qreward'} may not import {found.target}"


def _prefixes(name: str) -> list[str]:
    """The name, its package, and so on up to the outermost."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


CLOCKS = {"clock", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "now", "utcnow"}
TELLS_THE_TIME = "Callable[[], float]"


def impurities(module: Module) -> Iterator[str]:
    """The core takes ``now`` and a ``random.Random`` as arguments: it makes neither, and asks no clock, not even one that it was given."""
    if not any(prefix in PURE for prefix in _prefixes(module.name)):
        return
    yield from (f"line {found.line}: import of {found.target}" for found in imports_of(module) if found.target.partition(".")[0] in IMPURE)
    for node in ast.walk(module.tree):
        line, wrong = getattr(node, "lineno", 0), ""
        if isinstance(node, ast.Import) and any(alias.name == "random" and alias.asname for alias in node.names):
            wrong = "another name for random"
        elif isinstance(node, ast.ImportFrom) and node.module == "random" and any(alias.name != "Random" for alias in node.names):
            wrong = "a function of random"
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random":
            wrong = f"random.{node.attr}"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in IMPURE_CALLS | {"random.Random", "Random"} or called.rpartition(".")[2].lstrip("_") in CLOCKS:
                wrong = f"a call of {called}"
        elif isinstance(node, ast.expr) and ast.unparse(node) == TELLS_THE_TIME:
            wrong = f"something that tells the time ({TELLS_THE_TIME})"
        if wrong:
            yield f"line {line}: pure code may have no {wrong}"


def missing_docstring(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield "has no docstring that says what the module is for"


def long_functions(module: Module) -> Iterator[str]:
    """The docstring does not count: it is there for the reader."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = node.body[0] if ast.get_docstring(node) else None
            length = _lines(node) - (_lines(words) if words else 0)
            if length > LONGEST_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {length} lines; {LONGEST_FUNCTION} are allowed"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def library() -> list[Module]:
    paths = sorted((ROOT / "qreward").rglob("*.py"))
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    known = frozenset(names.values())
    return [
        Module(name.removeprefix("qreward").removeprefix("."), tree_of(path), known, path.stem == "__init__")
        for path, name in names.items()
    ]


def sources() -> list[Path]:
    """All files of ours: what stands in a hidden folder, such as an environment, is not."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


Rule = Callable[[Module], Iterator[str]]


def test_the_library_keeps_the_rules_of_imports_and_of_pure_code() -> None:
    rules: list[Rule] = [upward_imports, strange_packages, impurities]
    assert [f"{module.name or 'qreward'}: {fault}" for module in library() for rule in rules for fault in rule(module)] == []


def test_every_source_file_has_a_docstring_and_short_functions() -> None:
    rules: list[Rule] = [missing_docstring, long_functions]
    found = [(path.relative_to(ROOT), fault) for path in sources() for rule in rules for fault in rule(Module("", tree_of(path)))]
    assert found == []


PACKAGE = "scheduler.__init__"  # imports of a package start at the package
LONG = "    pass\n" * 60
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
CAUGHT: list[tuple[Rule, str, list[str]]] = [
    (upward_imports, "scheduler.pool", [
        "import qreward.engine.driver", "from qreward.engine import driver", "from qreward import engine", "from qreward import Endpoint",
        "from ..engine import driver", "from ..engine.driver import LoopDriver", "def f():\n    from qreward.client import QRewardClient",
        "import importlib\nimportlib.import_module('qreward.transport.base')", "__import__('qreward.transport')",
        "from importlib import import_module\nimport_module('qreward.transport.base')",
        f"{FOR_TYPES}from qreward.transport.base import Call",
    ]),
    (upward_imports, PACKAGE, ["from ..transport import base"]),
    (upward_imports, "settings.policies", ["from ..scheduler import outcome"]),
    (upward_imports, "transport.base", ["from qreward.engine.driver import Shell"]),
    (upward_imports, "judge.judge", ["from qreward.integrations.trl import reward", "def f():\n    import qreward.testing"]),
    (upward_imports, "client", ["from qreward.cli import main"]),
    (upward_imports, "", ["from qreward.errors import ConfigError"]),
    (upward_imports, "a_module_without_a_layer", ["x = 1"]),
    (strange_packages, "scheduler.pool", ["import asyncio", "import asyncio.events", "from asyncio import Future"]),
    (strange_packages, "client", ["import aiohttp", "from openai.types import chat", f"{FOR_TYPES}pass\nelse:\n    import openai"]),
    (strange_packages, "results", [f"{FOR_TYPES}import openai", "def f():\n    from IPython.display import HTML"]),
    (strange_packages, "transport.aiohttp_transport", ["import httpx", "from httpx2 import AsyncClient"]),
    (strange_packages, "integrations.trl", ["def f():\n    import ray"]),
    (strange_packages, "telemetry.spans", ["from opentelemetry.sdk.trace import Tracer", "import opentelemetry.exporter.prometheus"]),
    (impurities, "scheduler.pool", [
        "import os.path", "import threading", "def f():\n    from time import monotonic", "from random import random", "open('x')",
        "print('x')", "from random import Random\nRandom(1)", "import random\nrandom.random()", "import random\nrandom.Random(3)",
        "import random\nchoose = random.choice", "import random as dice\ndice.random()", "def f(clock):\n    return clock()",
        "class A:\n    def f(self):\n        return self._clock() < self.until", "def f(room):\n    return room.engine.monotonic()",
        "class A:\n    when: Callable[[], float]",
    ]),
    (missing_docstring, "scheduler.pool", ["x = 1", ""]),
    (long_functions, "scheduler.pool", [f"def f():\n{LONG}", f"async def f():\n{LONG}"]),
]  # fmt: skip
ALLOWED: list[tuple[Rule, str, list[str]]] = [
    (upward_imports, "scheduler.pool", [
        "from qreward.scheduler.outcome import Answer\nfrom qreward.errors import ConfigError",
        "from . import outcome\nfrom .outcome import Answer",
    ]),
    (upward_imports, PACKAGE, ["from .outcome import Answer"]),
    (upward_imports, "client", ["import qreward.engine.driver\nimport qreward.transport.base\nfrom qreward import __version__"]),
    (upward_imports, "cli.demo", ["from qreward.testing import FakeFleet\nfrom qreward.cli import main"]),
    (upward_imports, "", [f"{FOR_TYPES}from qreward.client import QRewardClient"]),
    (strange_packages, "transport.httpx_transport", ["import httpx\nimport httpx2\nimport asyncio"]),
    (strange_packages, "telemetry.spans", ["from opentelemetry import trace"]),
    (strange_packages, "client", ["import typing\nif typing.TYPE_CHECKING:\n    from openai.types.chat import ChatCompletion"]),
    (impurities, "engine.driver", ["import time\nprint(time.monotonic())", "def f(clock):\n    return clock()"]),
    (impurities, "scheduler.pool", [
        "import random\ndef f(now: float, rng: random.Random) -> float:\n    return now + rng.random()",
        "from random import Random\ndef f(rng: Random) -> float:\n    return rng.random()",
    ]),
    (missing_docstring, "scheduler.pool", ['"""What it is for."""']),
    (long_functions, "scheduler.pool", [f'def f():\n    """A.\n\n    B.\n    """\n{LONG[:-9]}']),
]  # fmt: skip
KNOWN = frozenset(
    f"qreward.{name}" for name in ("scheduler", "scheduler.outcome", "engine", "engine.driver", "transport", "transport.base")
)


def is_caught(rule: Rule, name: str, source: str) -> bool:
    return any(rule(Module(name.removesuffix(".__init__"), ast.parse(source), KNOWN, package=name == PACKAGE)))


def test_each_rule_catches_what_is_against_it_and_nothing_else() -> None:
    missed = [(rule.__name__, name, source) for rule, name, many in CAUGHT for source in many if not is_caught(rule, name, source)]
    assert missed == []
    wrong = [(rule.__name__, name, source) for rule, name, many in ALLOWED for source in many if is_caught(rule, name, source)]
    assert wrong == []


STATE = {f"scheduler.{name}" for name in ("task", "source", "pool", "queue", "prefixes")}
"""A pool holds its sources and its queue, and these hold tasks, which refer back to it. So their annotations name each other."""


def test_no_imports_form_a_circle() -> None:
    """Imports at the top of modules and those for type checkers; those inside functions do not count."""
    graph = {module.name: _imported_at_the_top(module, typing=module.name not in STATE) for module in library()}
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def _imported_at_the_top(module: Module, *, typing: bool = True) -> set[str]:
    guards = [node for node in module.tree.body if typing and isinstance(node, ast.If) and _is_type_checking(node.test)]
    nodes = [node for body in (module.tree.body, *(guard.body for guard in guards)) for node in body]
    targets = {target for node in nodes for target in _targets(node, module)}
    return {target.removeprefix("qreward").removeprefix(".") for target in targets if target in module.known} - {module.name, ""}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules that remain when those that import nothing, or are imported by none, are taken away again and again."""
    left = {name: targets & graph.keys() for name, targets in graph.items()}
    while True:
        imported = {target for targets in left.values() for target in targets}
        ends = {name for name, targets in left.items() if not targets or name not in imported}
        if not ends:
            return sorted(left)
        left = {name: targets - ends for name, targets in left.items() if name not in ends}


PRIVATE_OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


PRIVATE_ACCESS: dict[tuple[str, str], str] = {
    ("batching.worker", "_get_internal_replica_context"): "Ray Serve has no public name for it",
    ("batching.worker", "_deployment_config"): "Ray Serve has no public name for it",
    ("batching.worker", "_get_serve_request_context"): "Ray Serve has no public name for it",
    ("cli", "_actions"): "argparse has no other way to list the arguments of a parser",
    ("cli", "_SubParsersAction"): "the same for its commands",
    ("integrations.notebook", "_async"): "a blocking stream is drawn by reading the stream behind it",
}
"""(module, name): why this module may use that private name of another package."""


def private_names_of(module: Module) -> Iterator[str]:
    """The names with one leading underscore that a module defines: functions, classes, variables, attributes of ``self``, slots."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def private_uses(module: Module) -> Iterator[tuple[int, str]]:
    """The private names that a module takes from other objects than ``self`` and ``cls``, or imports from the library."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os", "sys")):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qreward"):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (
            (node.lineno, name)
            for name in names
            if name.startswith("_") and not name.startswith("__") and name not in PRIVATE_OF_NAMED_TUPLES
        )


def test_no_package_uses_the_private_names_of_another() -> None:
    own: dict[str, set[str]] = {}
    for module in library():
        own.setdefault(module.room, set()).update(private_names_of(module))
    wrong = [
        f"{module.name}: line {line}: {name}"
        for module in library()
        for line, name in private_uses(module)
        if name not in own[module.room] and (module.name, name) not in PRIVATE_ACCESS
    ]
    assert wrong == []
    source = "from qreward.engine.driver import _hidden\ndef f(client): return client._engine, self._own, options._replace(x=1)"
    assert [name for _, name in private_uses(Module("judge.judge", ast.parse(source)))] == ["_hidden", "_engine"]
