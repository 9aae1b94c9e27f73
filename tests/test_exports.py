"""The public face: what ``qreward`` offers, that it says so to type checkers too, and that it costs nothing until used."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import pydoc
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

import qreward

ROOT = Path(__file__).parents[1]


def names_for_type_checkers() -> set[str]:
    tree = ast.parse(Path(qreward.__file__).read_text())
    guard = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.asname or "" for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared = {ast.unparse(node.target) for node in guard.body if isinstance(node, ast.AnnAssign)}
    return imported | declared


def loaded_after(*statements: str) -> list[set[str]]:
    """What a fresh interpreter has loaded after each statement; what it loads by itself does not count."""
    shown = "print(*sorted(set(sys.modules) - before))"
    script = f"import sys; before = set(sys.modules)\n{''.join(f'{statement}; {shown}{chr(10)}' for statement in statements)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_the_public_names_are_sorted_and_are_those_that_load_and_those_for_type_checkers() -> None:
    assert list(qreward.__all__) == sorted(set(qreward.__all__))
    assert names_for_type_checkers() == set(dir(qreward)) == set(qreward.__all__)


def test_every_public_name_loads_and_has_a_docstring_of_its_own() -> None:
    things = {name: getattr(qreward, name) for name in qreward.__all__ if name != "__version__"}
    assert [name for name, thing in things.items() if not callable(thing)] == []
    own = {name: thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__ for name, thing in things.items()}
    assert [name for name, words in own.items() if not words] == []


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'QRewardCleint'"):
        _ = qreward.QRewardCleint


def test_nothing_heavy_is_loaded_until_it_is_used() -> None:
    package, error, client = loaded_after("import qreward", "from qreward import ConfigError", "from qreward import QRewardClient")
    assert {name for name in package if name.partition(".")[0] == "qreward"} == {"qreward"}
    settings = {"pydantic", "asyncio", "aiohttp", "openai"}
    assert not package & {*settings, "httpx", "httpx2", "msgspec", "opentelemetry", "yaml"}
    assert not error & settings
    assert "qreward.client" in client
    assert not client & {"openai", "httpx", "httpx2", "yaml"}


def test_the_version_is_that_of_the_installed_package_which_says_that_it_is_typed() -> None:
    assert qreward.__version__ == importlib.metadata.version("qreward")
    assert (resources.files("qreward") / "py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["qreward"]


def test_a_public_module_is_an_attribute_and_is_loaded_only_then() -> None:
    first, second = loaded_after("import qreward", "qreward.options.DEFAULT")
    assert "qreward.options" in second - first
    assert not hasattr(qreward, "_options")
    assert not hasattr(qreward, "optoins")


def test_the_help_of_settings_is_short_and_shows_types_and_not_validators() -> None:
    for kind in (qreward.Endpoint, qreward.Limits, qreward.Route, qreward.Retry, qreward.ScheduleConfig, qreward.JudgeConfig):
        shown = pydoc.plain(pydoc.render_doc(kind))
        assert len(shown.splitlines()) < 130, kind
        assert not re.search("Annotated|<function|Validator|SecretStr|model_dump|unnamed", shown), shown
    assert "api_key: str | ApiKey | None = None" in str(inspect.signature(qreward.Endpoint))
    assert "shared: Literal['none', 'local', 'ray'] = 'none'" in str(inspect.signature(qreward.Limits))


def test_signatures_show_the_options_for_completion() -> None:
    client = qreward.QRewardClient
    expected: dict[Callable[..., object], set[str]] = {
        client: {"retry", "timeout", "telemetry"},
        qreward.SyncQRewardClient: {"retry", "timeout"},
        client.from_config: {"telemetry", "observers"},
        client.chat_completion: {"timeout", "priority", "group", "extra_body", "options"},
        client.batch_chat_completion: {"deadline", "on_result", "timeout"},
        qreward.SyncQRewardClient.batch_chat_completion: {"deadline", "on_result", "timeout"},
        client.run: {"max_cost", "max_tokens", "timeout"},
        qreward.batch: {"max_batch_size", "timeout"},
        qreward.BatchQueue: {"max_batch_size"},
    }
    assert {of: names - inspect.signature(of).parameters.keys() for of, names in expected.items()} == {of: set() for of in expected}
