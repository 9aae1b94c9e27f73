"""Counts lines of Python source: all of them, and lines of code, which leaves out docstrings, comments and blank lines.

python tests/code_size.py qreward qreward/scheduler
"""

from __future__ import annotations

import ast
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


class Size(NamedTuple):
    """The size of some files. ``code`` are the lines that hold more than a docstring, a comment or nothing."""

    files: int
    lines: int
    code: int
    functions: int


def size_of(path: Path) -> Size:
    """Return the size of one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs: set[int] = set()
    functions = 0
    for node in ast.walk(tree):
        functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in NO_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
    lines = len(path.read_text(encoding="utf-8").splitlines())
    return Size(1, lines, len(code - docs), functions)


def total(folder: Path) -> Size:
    """Return the size of all files in a folder, or of one file."""
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    return Size(*map(sum, zip(*map(size_of, paths), strict=True)))


if __name__ == "__main__":
    for name in sys.argv[1:] or ["qreward"]:
        found = total(Path(name))
        print(f"{name}: {found.lines} lines, {found.code} of code, {found.functions} functions, {found.files} files")
