"""The documentation is true: links lead somewhere, code compiles, and every error and setting stands there as it is in the code."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import qreward
from qreward.cli import parser
from qreward.integrations.trainers import RewardConfig, load_reward_config
from qreward.judge import JudgeConfig
from qreward.settings import policies
from qreward.settings.client import ClientConfig, load_config

ROOT = Path(__file__).parents[1]
TOPS = ("qreward", "tests", "benchmarks", "docs", "examples")
HIDDEN = {".git", ".venv", "build", "dist", "out", "node_modules"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not any(part.startswith(".") or part in HIDDEN for part in path.relative_to(ROOT).parts)
)
SETTINGS = {kind for kind in vars(policies).values() if inspect.isclass(kind) and issubclass(kind, policies.Policy)}
MODELS: list[type[BaseModel]] = sorted(
    SETTINGS - {policies.Policy} | {ClientConfig, JudgeConfig, RewardConfig}, key=lambda model: model.__name__
)
MARK = re.compile(r"<!-- (?:run|fragment|needs: \w.{3,}) -->")
API = ROOT / "docs" / "reference" / "api"
UNITS = {"seconds", "bytes", "share", "requests", "tries", "requests a minute", "tokens a minute", "connections a second"}
UNITS |= {"tokens", "dollars a million tokens", "copies", "copies a request", "retries a request", "retries a second"}


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(text))


def anchors(text: str) -> set[str]:
    """The anchors that headings make: lower case, punctuation dropped, blanks as hyphens."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return True
    if re.fullmatch(r"qreward(\.\w+)+", anchor):
        return not any(anchor.startswith(name) for name in re.findall(r"^::: ([\w.]+)$", target.read_text(), flags=re.MULTILINE))
    return bool(anchor) and (target.suffix != ".md" or anchor not in anchors(target.read_text()))


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """The blocks of some languages, each with the line above it."""
    return re.findall(rf"(?:^([^\n]*)\n)?^```(?:{'|'.join(languages)})\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def json_lines(text: str) -> Any:
    """One JSON document, or one in each line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


PARSERS: dict[str, Callable[[str], Any]] = {"json": json_lines, "toml": tomllib.loads, "yaml": yaml.safe_load}


def fault_of(language: str, block: str) -> str:
    """Why a block of settings or commands is wrong; "" if it is right."""
    try:
        if language in ("bash", "console", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if words := re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*qreward (.*)", line):
                    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
                        check_command(shlex.split(words[1], comments=True), said)
            return ""
        content = PARSERS[language](block)
        if language == "yaml" and isinstance(content, dict):
            check_settings(content)
    except (ValueError, yaml.YAMLError, qreward.ConfigError) as error:
        return f"{error}"
    return ""


def check_command(arguments: list[str], said: io.StringIO) -> None:
    """Raise ``ValueError`` if the command line does not accept the arguments up to a pipe or a redirection."""
    end = next((number for number, word in enumerate(arguments) if word in ("|", ">", "2>", "&", "&&", ";")), None)
    try:
        parser().parse_args(arguments[:end])
    except SystemExit as stop:
        if stop.code:
            raise ValueError(said.getvalue()) from None


def check_settings(content: dict[str, Any]) -> None:
    """Raise ``ConfigError`` for settings of a client or a trainer that are invalid."""
    if "endpoints" in content and "base_url" in str(content):
        load_config(without_variables(content))
    elif {"judge", "cascade", "reward_model"} & set(content):
        load_reward_config({"client": {"endpoints": [{"base_url": "http://gpu-0:8000/v1"}]}, **without_variables(content)})


def without_variables(content: Any) -> Any:
    """Settings that need no environment and no other file."""
    text = re.sub(r"\$\{\w+\}", "https://variable", json.dumps(content))
    return json.loads(re.sub(r'"(?:client|rubric|calibration)": "[^"]+\.(?:yaml|json)",? ?', "", text).replace(", }", "}"))


def compiles(block: str) -> bool:
    try:
        compile(block, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError:
        return False
    return True


def section(text: str, title: str) -> str:
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#|\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert found, f"there is no section {title!r}"
    return found.group(2)


def table(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    return rows[2:]


def shown_default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if isinstance(value, BaseModel):
        return f"[{type(value).__name__}](#{type(value).__name__.lower()})"
    return f"`{json.dumps(value.value if isinstance(value, Enum) else value)}`"


def test_links_lead_somewhere_in_the_repository_and_python_compiles_and_is_run_on_the_site_or_says_what_it_needs() -> None:
    """The marks are described in CONTRIBUTING.md; ``tests/examples/test_pages.py`` runs the blocks."""
    texts = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/index.md"} <= texts.keys()
    assert [(page, link) for page, text in texts.items() for link in links(text) if broken(ROOT / page, link)] == []
    python = [(page, above, block) for page, text in texts.items() for above, block in blocks(text, "python")]
    assert [(page, block) for page, _, block in python if not compiles(block)] == []
    on_site = [each for each in python if each[0].startswith(("docs/", "README.md"))]
    assert [(page, block) for page, above, block in on_site if not MARK.fullmatch(above)] == []


def test_the_modules_that_pages_for_contributors_name_exist() -> None:
    """A path may begin in the middle, as in ``scheduler/pool.py``. In the table of the tree, modules also follow their package."""
    tree, pages = section((ROOT / "CONTRIBUTING.md").read_text(), "The tree"), [ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/design/*.md")]
    named = {name for page in pages for name in re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", page.read_text())} - {"dist/"}
    rows = re.findall(r"^\|.*?\| (`(\w+/)` .*?) \|", tree, re.MULTILINE)
    named |= {f"{package}{name}.py" for cell, package in rows for name in re.findall(r"`(\w+)`", cell)}
    there = [f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for top in TOPS for path in (ROOT / top).rglob("*")]
    assert len(named) > 100
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in [*there, *(f"/{top}/" for top in TOPS)])] == []


def test_a_link_or_a_block_that_is_wrong_is_caught() -> None:
    page = ROOT / "docs" / "index.md"
    assert links("[a](b.md) `[c](d.md)` [e](#f)") == ["b.md", "#f"]
    assert all(broken(page, link) for link in ("nowhere.md", "reference/errors.md#nowhere", "../../outside.md"))
    assert not any(broken(page, link) for link in ("reference/errors.md#ratelimited", "https://example.com/nowhere"))
    assert blocks("<!-- run -->\n```python\nx = 1\n```\n```yaml\nx: 1\n```\n", "python") == [("<!-- run -->", "x = 1\n")]
    assert (compiles("await f()"), compiles("x = = 1")) == (True, False)


def test_settings_and_commands_on_the_pages_are_accepted() -> None:
    languages = [*PARSERS, "bash", "console", "sh"]
    shown = [(page, language, block) for page in PAGES for language in languages for _, block in blocks(page.read_text(), language)]
    wrong = [(page, fault) for page, language, block in shown if (fault := fault_of(language, block))]
    assert wrong == []
    assert len(shown) > 30
    assert fault_of("yaml", "endpoints: [{base_url: 'http://gpu-0:8000/v1', rpm: 5}]\n")
    assert fault_of("yaml", "judge: {model: judge-7b, scall: [1, 5]}\n")
    assert fault_of("json", "{,}")
    assert fault_of("bash", "X=1 qreward run rows.jsonl --output out.jsonl --sharde 1/2\n")
    assert not fault_of("console", "$ qreward run rows.jsonl --output out.jsonl \\\n    --shard 1/2 | tail -1\n")


def public_names(module: str) -> list[str]:
    """The names in ``__all__`` of a module. A module that needs a package that is not installed is not imported, but read."""
    try:
        return list(importlib.import_module(module).__all__)
    except ModuleNotFoundError:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        named = re.search(r"^__all__ = (\[.*?\])$", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert named
        return list(ast.literal_eval(named[1]))


def test_every_public_name_stands_once_in_the_reference() -> None:
    shown = [name for page in API.rglob("*.md") for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), flags=re.MULTILINE)]
    assert [name for name, times in Counter(shown).items() if times > 1] == []
    modules = [f"qreward.{name}" for name in ("batching", "batching.reward_buffer", "judge", "server", "telemetry", "testing")]
    modules += [f"qreward.integrations.{path.stem}" for path in (ROOT / "qreward/integrations").iterdir() if path.stem[0] not in "_."]
    public = [(module, name) for module in ["qreward", *modules] for name in public_names(module)]
    missing = [(module, name) for module, name in public if not {f"{module}.{name}", f"qreward.{name}"} & set(shown)]
    assert missing == [("qreward", "__version__")]


def test_the_page_of_the_command_line_is_what_its_parser_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    command_line = importlib.import_module("command_line")
    assert command_line.PAGE.read_text() == command_line.page(), "run: python docs/site/command_line.py"


def test_the_errors_page_lists_exactly_the_errors_with_their_bases() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    named = [getattr(qreward, name) for name in qreward.__all__]
    classes = [thing for thing in named if inspect.isclass(thing) and issubclass(thing, qreward.QRewardError)]
    listed = {row[0].partition("]")[0].lstrip("["): row[1] for row in table(text)}
    assert listed == {kind.__name__: ", ".join(f"`{base.__name__}`" for base in kind.__bases__) for kind in classes}
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert sorted(headings) == sorted(listed)
    for name in headings:
        assert re.findall(r"^- ([\w ]+): \S", section(text, name), flags=re.MULTILINE) == ["Meaning", "Usual cause", "Remedy"], name


def test_the_configuration_page_lists_every_setting_of_every_model_with_its_default_and_unit() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for model in MODELS:
        rows = table(section(page, model.__name__))
        assert all(len(row) == 4 and row[3] for row in rows), model
        assert [(row[0], row[1]) for row in rows] == [(f"`{name}`", shown_default(field)) for name, field in model.model_fields.items()]
        kinds = get_type_hints(model, include_extras=True)
        for name, _, unit, _ in rows:
            is_time = kinds[name.strip("`")] in (policies.Seconds, policies.Seconds | None)
            assert unit in UNITS | {"-"}, (model, name)
            assert (unit == "seconds") == is_time, (model, name)
