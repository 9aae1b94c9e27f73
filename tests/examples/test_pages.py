"""The Python of the pages runs as a reader would run it, but for what needs a service that no test has; that says what it needs.

The line above a block says which: ``<!-- run -->`` is a whole program, ``<!-- fragment -->`` continues the page, with the names of
``fragments.py``, and ``<!-- needs: ... -->`` only compiles (``tests/test_docs.py``).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.endpoint import ModelEndpoint
from fakes.synthetic_writer import write_verdict
from test_examples import ROOT, run_python, run_scripts

from qreward.errors import ConfigError
from qreward.testing import FakeFleet, Latency, SyntheticJudge, echo_of
from qreward.testing.bodies import text_of
from qreward.testing.responders import judge

pytestmark = pytest.mark.timeout(600)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ADDRESS = re.compile(r"https?://(?:gpu-(\d)|api\.example\.com)(?::\d+)?(/v1)?")
REWARD = """\
client: qreward.yaml
judge: {model: judge-7b, prompt: "{answer_form}\\n\\nQuestion: {prompt}\\nReference: {reference}\\nAnswer: {response}"}
"""


def marked(text: str, mark: str) -> list[str]:
    """The Python blocks below a comment."""
    return re.findall(rf"^<!-- {mark} -->\n```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def answer(messages: list[Any]) -> str:
    """A verdict in the form that the prompt asks for, or on the candidate answer that it has, else an echo."""
    try:
        return write_verdict(messages, SyntheticJudge())
    except ConfigError:
        return judge(messages) if "Candidate answer:" in text_of(messages) else echo_of(messages)


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Three fake servers that take every model: chats, decisions, scores, embeddings."""
    names = ["gpu-0", "gpu-1", "gpu-2"]
    fakes = [ModelEndpoint(name, kind="vllm", responder=answer, dialect="vllm", latency=Latency(tokens=10)) for name in names]
    with FakeFleet(fakes) as fleet:
        yield [fleet.urls[name] for name in names]


@pytest.fixture
def folder(urls: list[str], tmp_path: Path) -> Path:
    """A folder with the files that the pages name."""
    models = [["judge-*", "embed-*"], ["judge-*", "embed-*"], ["rm-*"]]
    endpoints = [{"base_url": urls[n], "name": f"gpu-{n}", "models": models[n], "kind": "vllm"} for n in range(3)]
    settings = json.dumps({"endpoints": endpoints})  # JSON is YAML
    for name in ("qreward.yaml", "client.yaml", "fleet.yaml", "fleet.json"):
        (tmp_path / name).write_text(settings, encoding="utf-8")
    (tmp_path / "reward.yaml").write_text(REWARD, encoding="utf-8")
    items = [{"prompt": f"{n} + {n}?", "response": f"{2 * n}. truth={n % 2}", "reference": f"{2 * n}", "label": n % 2} for n in range(20)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    requests = [{"custom_id": f"row-{n}", "body": {"messages": [{"role": "user", "content": f"{n} + {n}?"}]}} for n in range(20)]
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in requests), encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment(urls: list[str]) -> dict[str, str]:
    keys = dict.fromkeys(("API_KEY", "JUDGE_KEY", "OPENAI_API_KEY"), "not-secret")
    return keys | dict.fromkeys(("API_URL", "JUDGE_URL", "OPENAI_BASE_URL"), urls[0]) | {"QREWARD_REWARD": "reward.yaml"}


def with_fakes(block: str, urls: list[str]) -> str:
    """A block whose invented addresses are those of the fakes."""

    def fake(found: re.Match[str]) -> str:
        url = urls[int(found[1] or 0) % len(urls)]
        return url if found[2] else url.removesuffix("/v1")

    return ADDRESS.sub(fake, block)


def test_the_programs_of_the_pages_run_and_print(urls: list[str], folder: Path, environment: dict[str, str]) -> None:
    programs = {}
    for page in PAGES:
        for number, block in enumerate(marked(page.read_text(encoding="utf-8"), "run")):
            programs[f"{page.relative_to(ROOT)} {number}"] = with_fakes(block, urls)
    assert {"README.md 0", "README.md 1", "docs/how-to/batching.md 0", "docs/reference/errors.md 0"} <= set(programs)
    scripts = []
    for name, block in programs.items():
        place = folder / re.sub(r"\W", "_", name)
        place.mkdir()
        for file in [file for file in folder.iterdir() if file.is_file()]:
            shutil.copy(file, place)
        (place / "program.py").write_text(block, encoding="utf-8")
        scripts.append((place / "program.py", environment))
    found = dict(zip(programs, run_scripts(scripts, folder), strict=True))
    assert {name: err or "prints nothing" for name, (out, err) in found.items() if err or not out} == {}
    assert found["README.md 0"][0] == "[1.0, 1.0, 0.0]\n"


def test_the_fragments_of_the_pages_run_in_the_order_of_the_page(
    urls: list[str], folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pages = {str(page.relative_to(ROOT)): marked(page.read_text(encoding="utf-8"), "fragment") for page in PAGES}
    pages = {page: [with_fakes(block, urls) for block in blocks] for page, blocks in pages.items() if blocks}
    assert "docs/how-to/judge.md" in pages
    (folder / "pages.json").write_text(json.dumps(pages), encoding="utf-8")
    wrong = json.loads(run_python(str(Path(__file__).with_name("fragments.py")), "pages.json", cwd=folder))
    assert {page: text for page, text in wrong.items() if text} == {}


def test_a_fragment_that_fails_is_reported_with_its_text(folder: Path) -> None:
    pages = {"good": ["x = 1", "assert (await client.score('a', 'b', model='rm-7b')) is not None\nassert x == 1"], "bad": ["nothing_known"]}
    (folder / "pages.json").write_text(json.dumps(pages), encoding="utf-8")
    wrong = json.loads(run_python(str(Path(__file__).with_name("fragments.py")), "pages.json", cwd=folder))
    assert wrong["good"] == ""
    assert "NameError" in wrong["bad"]
    assert wrong["bad"].endswith("nothing_known")
