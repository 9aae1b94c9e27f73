"""The public face: what ``qreward`` offers, that it says so to type checkers too, and that it costs nothing until used."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import qreward

ROOT = Path(__file__).parents[1]
NAMES = [name for name in qreward.__all__ if name != "__version__"]


def names_for_type_checkers() -> set[str]:
    tree = ast.parse(Path(qreward.__file__).read_text())
    guard = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imported = {alias.asname or "" for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared = {ast.unparse(node.target) for node in guard.body if isinstance(node, ast.AnnAssign)}
    return imported | declared


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has loaded because of the statement; what it loads by itself does not count."""
    script = f"import sys; before = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_names_for_type_checkers_are_the_names_that_load() -> None:
    assert names_for_type_checkers() == set(qreward.__all__)


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(qreward.__all__) == sorted(set(qreward.__all__))


def test_dir_shows_the_public_names() -> None:
    assert set(dir(qreward)) == set(qreward.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_loads_and_has_a_docstring(name: str) -> None:
    thing = getattr(qreward, name)
    assert inspect.isclass(thing) or callable(thing)
    own = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert own, f"{name} has no docstring of its own"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'QRewardCleint'"):
        _ = qreward.QRewardCleint


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = modules_after("import qreward")
    assert "qreward" in loaded
    heavy = {"openai", "httpx", "httpx2", "aiohttp", "pydantic", "msgspec", "asyncio", "opentelemetry", "yaml"}
    assert not loaded & heavy
    assert {name for name in loaded if name.startswith("qreward.")} == set()


def test_importing_the_client_loads_neither_openai_nor_httpx() -> None:
    loaded = modules_after("from qreward import QRewardClient")
    assert "qreward.client" in loaded
    assert not loaded & {"openai", "httpx", "httpx2", "yaml"}


def test_a_config_error_costs_no_settings_library() -> None:
    assert not modules_after("from qreward import ConfigError") & {"pydantic", "asyncio", "aiohttp", "openai"}


def test_the_version_is_that_of_the_installed_package() -> None:
    assert qreward.__version__ == importlib.metadata.version("qreward")


def test_the_package_says_that_it_is_typed() -> None:
    assert (resources.files("qreward") / "py.typed").is_file()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["qreward"]
