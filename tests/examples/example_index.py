"""The table of ``examples/README.md``. ``python tests/examples/example_index.py`` runs all programs, and writes it with their times."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
INDEX = EXAMPLES / "README.md"
ROW = re.compile(r"^\| \[([^]]+)\]\(\1\) \| (.+) \| ([\d.]+) \|$", re.MULTILINE)
HEAD = "| program | what it shows | seconds |\n| --- | --- | --- |\n"


def programs() -> list[Path]:
    """All programs that need nothing but the package and its test tools."""
    return [path for path in sorted(EXAMPLES.glob("*.py")) if path.stem != "connect"] + sorted(EXAMPLES.glob("*/try_it.py"))


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def shown(path: Path) -> str:
    """What a program shows: the first paragraph of its docstring, in Markdown."""
    return " ".join(docstring(path).partition("\n\n")[0].split()).replace("``", "`")


def rows() -> list[tuple[str, str]]:
    """Program and what it shows, as the table must have them."""
    return [(path.relative_to(EXAMPLES).as_posix(), shown(path)) for path in programs()]


def seconds(path: Path) -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, path], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun


def main() -> None:
    lines = [f"| [{name}]({name}) | {text} | {seconds(EXAMPLES / name):.1f} |\n" for name, text in rows()]
    before = INDEX.read_text(encoding="utf-8").partition(HEAD)[0]
    INDEX.write_text(before + HEAD + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
