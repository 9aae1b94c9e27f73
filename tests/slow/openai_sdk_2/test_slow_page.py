"""What the page of the drop-in shows of instructor and LangChain, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qreward.testing import FakeEndpoint, FakeFleet

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "openai.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("name", "said"), [("instructor", "score=1"), ("langchain_openai", "AIMessage")])
def test_the_page_is_right(name: str, said: str, tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if f"import {name}" in block or f"from {name}" in block]
    (tmp_path / "page.py").write_text(block, encoding="utf-8")
    with FakeFleet([FakeEndpoint("a", responder="judge")]) as fleet:
        environment = os.environ | {"OPENAI_BASE_URL": fleet.urls["a"]}
        done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
