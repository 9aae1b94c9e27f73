"""The architecture: which module may import which, what pure modules may not touch, and that no imports form a circle.

Every rule is a function from one module's syntax tree to its faults, so that a snippet can show that the rule catches it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS: list[tuple[str, ...]] = [
    ("documentation", "records", "errors", "results", "decisions", "observers", "settings", "spelling", "tuning"),
    ("scheduler", "quota.ledger", "quota.lease", "quota.messages"),
    ("codecs",),
    ("transport",),
    ("engine", "quota"),
    (
        "options",
        "progress",
        "notebook",
        "streaming",
        "scoring",
        "deciding",
        "batching",
        "functions",
        "server",
        "telemetry",
        "chat_namespace",
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

PURE = ("scheduler", "quota.ledger", "quota.lease", "quota.messages")
"""They take the time and randomness as arguments, and do no I/O."""

UPWARD = {
    ("client", "bulk.start"): "client.run; most programs run no bulk",
    ("client", "bulk.inputs"): "for types only",
    ("client", "bulk.report"): "for types only",
    ("client", "compat.names"): "names of QReward 0.1.7, looked up when a program imports one",
    ("client", "judge.scorers"): "for types only",
    ("results", "notebook.render"): "a result draws itself when a notebook asks for it",
    ("quota.renewal", "integrations.ray.limit_actor"): "Ray is an extra, imported when limits are shared over a cluster",
}
"""Imports of a higher layer, inside functions or for types only, each with its reason."""

OUTSIDE = {
    "asyncio": {
        "engine", "transport", "quota", "client", "sync_client", "streaming", "scoring", "testing", "cli", "functions",
        "batching", "compat", "deciding", "judge", "bulk", "integrations", "server", "notebook", "chat_namespace",
    },
    "aiohttp": {"transport", "testing"},
    "openai": {"codecs", "integrations.openai.transports"},
    "httpx": {"transport.httpx_backend", "integrations.openai.transports"},
    "httpx2": {"transport.httpx_backend", "integrations.openai.transports"},
    "IPython": {"integrations", "notebook", "progress"},
    "opentelemetry": {"telemetry", "compat", "integrations.roll.worker"},
    "roll": {"integrations.roll.worker", "integrations.roll.loop"},
    "ray": {"integrations.ray.backends", "integrations.ray.bulk", "integrations.ray.limit_actor", "integrations.ray.serving"},
    "verl": {"integrations.verl.manager"},
    "openrlhf": {"integrations.openrlhf.agent"},
    "areal": {"integrations.areal.workflow"},
    "verifiers": {"integrations.verifiers.judges"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
}  # fmt: skip
"""Package -> the only modules that may import it."""
OPENAI_TYPES = {"client", "sync_client", "streaming", "scoring", "integrations", "notebook", "chat_namespace"}

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
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((places[prefix] for prefix in prefixes if prefix in places), None)


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
        package = found.target.partition(".")[0]
        homes = OUTSIDE.get(package)
        if homes is None or module.room in homes or module.name in homes:
            continue
        if package == "openai" and found.for_types and module.room in OPENAI_TYPES:
            continue
        yield f"line {found.line}: {module.name or 'qreward'} may not import {found.target}"


def sdk_imports(module: Module) -> Iterator[str]:
    """A library uses OpenTelemetry's API; its SDK is the program's, and set up only by who asks for that, by name."""
    yield from (f"line {found.line}: {module.name} may not import {found.target}" for found in imports_of(module) if _is_sdk(found.target))


def _is_sdk(target: str) -> bool:
    return f"{target}.".startswith(("opentelemetry.sdk.", "opentelemetry.exporter."))


def impurities(module: Module) -> Iterator[str]:
    """The core takes the time and its randomness as arguments; ``random.Random`` may stand there as a type only."""
    if not f"{module.name}.".startswith(tuple(f"{prefix}." for prefix in PURE)):
        return
    yield from (f"line {found.line}: pure code may not import {found.target}" for found in imports_of(module) if _impure(found.target))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import) and any(alias.name == "random" and alias.asname for alias in node.names):
            yield f"line {node.lineno}: pure code may not give random another name"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in IMPURE_CALLS | {"random.Random", "Random"}:
            yield f"line {node.lineno}: pure code may not call {ast.unparse(node.func)}"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random":
            yield f"line {node.lineno}: pure code may not use random.{node.attr}"
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            yield from (
                f"line {node.lineno}: pure code may not import random.{alias.name}" for alias in node.names if alias.name != "Random"
            )


CLOCKS = {"clock", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "now", "utcnow"}
TELLS_THE_TIME = "Callable[[], float]"


def clocks(module: Module) -> Iterator[str]:
    """Pure code does not ask for the time, not even of a clock that it was given: ``now`` is an argument."""
    if not f"{module.name}.".startswith(tuple(f"{prefix}." for prefix in PURE)):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].lstrip("_") in CLOCKS:
            yield f"line {node.lineno}: pure code may not call {ast.unparse(node.func)}; take now as an argument"
        if isinstance(node, ast.expr) and ast.unparse(node) == TELLS_THE_TIME:
            yield f"line {node.lineno}: pure code may hold nothing that tells the time ({TELLS_THE_TIME}); take now as an argument"


def _impure(target: str) -> bool:
    return target.partition(".")[0] in IMPURE


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


RULES: list[Callable[[Module], Iterator[str]]] = [upward_imports, strange_packages, sdk_imports, impurities, clocks]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_library_keeps_the_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    faults = [f"{module.name or 'qreward'}: {fault}" for module in library() for fault in rule(module)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("rule", [missing_docstring, long_functions], ids=lambda rule: rule.__name__)
def test_every_source_file_keeps_the_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    faults = [f"{path.relative_to(ROOT)}: {fault}" for path in sources() for fault in rule(Module("", tree_of(path)))]
    assert not faults, "\n".join(faults)


NAMES = ("scheduler", "scheduler.outcome", "scheduler.pool", "engine", "engine.driver", "transport", "transport.base", "errors")
KNOWN = frozenset(f"qreward.{name}" for name in NAMES)


def faults_of(rule: Callable[[Module], Iterator[str]], name: str, source: str, *, package: bool = False) -> list[str]:
    return list(rule(Module(name, ast.parse(source), KNOWN, package)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("scheduler.pool", "import qreward.engine.driver"),
        ("scheduler.pool", "from qreward.engine import driver"),
        ("scheduler.pool", "from qreward import engine"),
        ("scheduler.pool", "from qreward import Endpoint"),
        ("scheduler.pool", "from ..engine import driver"),
        ("scheduler.pool", "from ..engine.driver import LoopDriver"),
        ("scheduler.pool", "def f():\n    from qreward.client import QRewardClient"),
        ("scheduler.pool", "import importlib\nimportlib.import_module('qreward.transport.base')"),
        ("scheduler.pool", "from importlib import import_module\nimport_module('qreward.transport.base')"),
        ("scheduler.pool", "__import__('qreward.transport')"),
        ("scheduler.pool", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from qreward.transport.base import Call"),
        ("errors", "from qreward.scheduler.outcome import Answer"),
        ("settings.policies", "from ..scheduler import outcome"),
        ("engine.driver", "import qreward.client"),
        ("transport.base", "from qreward.engine.driver import Shell"),
        ("", "from qreward.errors import ConfigError"),
        ("attic", "x = 1"),
        ("codecs.chat", "from qreward.transport.base import Transport"),
        ("judge.judge", "from qreward.integrations.trl import reward"),
    ],
)
def test_an_import_against_the_layers_is_caught(name: str, source: str) -> None:
    assert faults_of(upward_imports, name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("scheduler.pool", "from qreward.scheduler.outcome import Answer\nfrom qreward.errors import ConfigError"),
        ("scheduler.pool", "from . import outcome\nfrom .outcome import Answer"),
        ("engine.driver", "from qreward.scheduler import queue"),
        ("transport.base", "from qreward.scheduler import outcome\nfrom qreward.scheduler.outcome import Answer"),
        ("client", "import qreward.engine.driver\nimport qreward.transport.base\nfrom qreward import __version__"),
        ("", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from qreward.client import QRewardClient"),
    ],
)
def test_an_import_along_the_layers_is_allowed(name: str, source: str) -> None:
    assert faults_of(upward_imports, name, source) == []


def test_a_relative_import_of_a_package_starts_at_the_package() -> None:
    assert faults_of(upward_imports, "scheduler", "from .outcome import Answer", package=True) == []
    assert faults_of(upward_imports, "scheduler", "from ..transport import base", package=True)


def test_the_library_uses_neither_the_command_line_nor_the_fakes() -> None:
    assert faults_of(upward_imports, "client", "from qreward.cli import main")
    assert faults_of(upward_imports, "judge.judge", "def f():\n    import qreward.testing")
    assert faults_of(upward_imports, "cli.demo", "from qreward.testing import FakeFleet\nfrom qreward.cli import main") == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("scheduler.pool", "import asyncio"),
        ("settings.policies", "from asyncio import Future"),
        ("telemetry", "import asyncio.events"),
        ("client", "import aiohttp"),
        ("engine.driver", "def f():\n    import aiohttp"),
        ("client", "from openai.types.chat import ChatCompletion"),
        ("results", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import openai"),
        ("transport.base", "import httpx"),
        ("transport.aiohttp_backend", "from httpx2 import AsyncClient"),
        ("cli.demo", "import httpx"),
        ("client", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import openai"),
        ("results", "def f():\n    from IPython.display import HTML"),
        ("engine.instrumentation", "from opentelemetry import trace"),
        ("integrations.ray.pool", "def f():\n    import ray"),
    ],
)
def test_a_package_outside_its_rooms_is_caught(name: str, source: str) -> None:
    assert faults_of(strange_packages, name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("transport.httpx_backend", "import httpx\nimport httpx2\nimport asyncio"),
        ("testing.fleet", "from aiohttp import web"),
        ("telemetry.spans", "from opentelemetry import trace"),
        ("codecs.chat", "def f():\n    import openai"),
        ("client", "import typing\nif typing.TYPE_CHECKING:\n    from openai.types.chat import ChatCompletion"),
    ],
)
def test_a_package_inside_its_rooms_is_allowed(name: str, source: str) -> None:
    assert faults_of(strange_packages, name, source) == []


def test_the_sdk_of_opentelemetry_is_not_the_librarys() -> None:
    assert faults_of(sdk_imports, "telemetry.spans", "from opentelemetry.sdk.trace import TracerProvider")
    assert faults_of(sdk_imports, "telemetry.spans", "def f():\n    import opentelemetry.exporter.prometheus")
    assert faults_of(sdk_imports, "telemetry.spans", "from opentelemetry import trace") == []


@pytest.mark.parametrize(
    "source",
    [
        *(f"import {name}" for name in ("asyncio", "threading", "time", "datetime", "socket", "os", "os.path", "io", "logging")),
        "def f():\n    from time import monotonic",
        "from random import random",
        "from random import Random\nRandom(1)",
        "import random\nrandom.random()",
        "import random\nrandom.Random(3)",
        "import random\nchoose = random.choice",
        "import random as dice\ndice.random()",
        "open('x')",
        "print('x')",
    ],
)
def test_an_impure_core_is_caught(source: str) -> None:
    assert faults_of(impurities, "scheduler.pool", source)
    assert faults_of(impurities, "engine.driver", source) == []


def test_a_core_that_asks_for_the_time_is_caught() -> None:
    sources = [
        "def f(clock):\n    return clock()",
        "class A:\n    def f(self):\n        return self.clock() < self.until",
        "class A:\n    def f(self):\n        return self._clock()",
        "def f(room):\n    return room.engine.monotonic()",
        "class A:\n    when: Callable[[], float]",
        "class A:\n    def __init__(self, when: Callable[[], float]) -> None:\n        self.when = when",
    ]
    assert [source for source in sources if not faults_of(clocks, "scheduler.pool", source)] == []
    assert [source for source in sources if faults_of(clocks, "engine.driver", source)] == []
    assert faults_of(clocks, "scheduler.pool", "def f(now: float) -> float:\n    return now + 1") == []


def test_the_core_may_be_given_a_random_number_generator() -> None:
    assert faults_of(impurities, "scheduler.pool", "import random\ndef f(rng: random.Random) -> float:\n    return rng.random()") == []
    assert faults_of(impurities, "scheduler.pool", "from random import Random\ndef f(rng: Random) -> float:\n    return rng.random()") == []


def test_a_module_without_a_docstring_is_caught() -> None:
    assert faults_of(missing_docstring, "scheduler.pool", "x = 1")
    assert faults_of(missing_docstring, "scheduler.pool", "")
    assert faults_of(missing_docstring, "scheduler.pool", '"""What it is for."""') == []


def test_a_long_function_is_caught_and_its_docstring_is_not_counted() -> None:
    body = "    pass\n"
    assert faults_of(long_functions, "scheduler.pool", "def f():\n" + body * 60)
    assert faults_of(long_functions, "scheduler.pool", "async def f():\n" + body * 60)
    assert faults_of(long_functions, "scheduler.pool", "def f():\n" + body * 59) == []
    assert faults_of(long_functions, "scheduler.pool", 'def f():\n    """A.\n\n    B.\n    """\n' + body * 59) == []


def test_no_imports_form_a_circle() -> None:
    """Imports at the top of modules and those for type checkers; those inside functions do not count."""
    graph = {module.name: _imported_at_the_top(module) for module in library()}
    assert list(_circles(graph)) == []


def test_a_circle_is_caught() -> None:
    assert list(_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()})) == [["b", "c"]]
    assert list(_circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})) == []


def _imported_at_the_top(module: Module) -> set[str]:
    guards = [node for node in module.tree.body if isinstance(node, ast.If) and _is_type_checking(node.test)]
    nodes = [node for body in (module.tree.body, *(guard.body for guard in guards)) for node in body]
    targets = {target for node in nodes for target in _targets(node, module)}
    return {target.removeprefix("qreward").removeprefix(".") for target in targets if target in module.known} - {module.name, ""}


def _circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """The modules that remain when those that import nothing, or are imported by none, are taken away again and again."""
    left = {name: targets & graph.keys() for name, targets in graph.items()}
    while True:
        imported = {target for targets in left.values() for target in targets}
        ends = {name for name, targets in left.items() if not targets or name not in imported}
        if not ends:
            break
        left = {name: targets - ends for name, targets in left.items() if name not in ends}
    if left:
        yield sorted(left)


PRIVATE_OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}


def _package(module: Module) -> str:
    return module.name.partition(".")[0]


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
        own.setdefault(_package(module), set()).update(private_names_of(module))
    wrong = [
        f"{module.name}: line {line}: {name}"
        for module in library()
        for line, name in private_uses(module)
        if name not in own[_package(module)] and (module.name, name) not in PRIVATE_ACCESS
    ]
    assert wrong == [], wrong


def test_the_use_of_a_private_name_is_caught() -> None:
    source = "from qreward.engine.driver import _hidden\ndef f(client): return client._engine, self._own, options._replace(x=1)"
    assert [name for _, name in private_uses(Module("judge.judge", ast.parse(source)))] == ["_hidden", "_engine"]


PRIVATE_ACCESS: dict[tuple[str, str], str] = {
    ("cli.completion", "_actions"): "argparse has no other way to list the arguments of a parser",
    ("cli.completion", "_SubParsersAction"): "the same for its commands",
    ("notebook.display", "_async"): "a blocking stream is drawn by reading the stream behind it",
    ("testing.virtual_threads", "_current_frames"): "of ``sys``",
}
"""(module, name): why this module may use that private name of another package."""


SHARED_NAMES = {
    "Scored": "the reward of a row for trainers",
    "Transport": "the drop-in for the OpenAI SDK, by its users' word",
}
"""Class names that stand for two things, each with its reason. There may be no others."""


def test_a_class_name_stands_for_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for module in library():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module.name)
    twice = {name: places for name, places in sorted(homes.items()) if len(places) > 1 and name not in SHARED_NAMES}
    assert twice == {}, twice
