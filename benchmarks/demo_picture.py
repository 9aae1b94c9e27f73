"""The picture of the README: the output of ``qreward demo`` as an SVG of a terminal.

    python benchmarks/demo_picture.py        # runs the demo, writes docs/assets/demo.svg

The text is what the demo printed; nothing else is drawn. ``tests/cli/test_cli_demo.py`` compares it with the present report.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent.parent / "docs" / "assets" / "demo.svg"
COMMAND = "qreward demo"
COLUMNS = 104
CHARACTER, LINE, SIZE, MARGIN = 7.3, 18, 12, 18
"""Pixels: width of a character, height of a line, size of the font, and width of the margin around the text."""
PLAIN, PROMPT, PROGRESS, WARNING = "#d6deeb", "#7fdbca", "#8796b0", "#ffcb6b"


def colour(line: str) -> str:
    """Return the colour of an output line: progress, a warning, or the report."""
    if line.startswith("judge-7b: "):
        return PROGRESS
    return WARNING if line.startswith("endpoint '") else PLAIN


def rows(output: str) -> list[tuple[str, str]]:
    """Return the text and colour of each row of the terminal. Lines that are too long are wrapped."""
    found = [(f"$ {COMMAND}", PROMPT)]
    for line in output.splitlines():
        wrapped = textwrap.wrap(line, COLUMNS, drop_whitespace=False, break_on_hyphens=False) or [""]
        found += [(part, colour(line)) for part in wrapped]
    return found


def svg(lines: Sequence[tuple[str, str]]) -> str:
    """Return the picture. It names no file and no font of another host, so it may be shown anywhere."""
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    texts = [
        f'<text x="{MARGIN}" y="{MARGIN + LINE * number + SIZE}" fill="{fill}" xml:space="preserve">{escape(text)}</text>'
        for number, (text, fill) in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{COMMAND}"',
            f'     font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{SIZE}">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#0f1724"/>',
            *texts,
            "</svg>\n",
        ]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "qreward", "demo"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(rows(done.stdout)), encoding="utf-8")
    print(f"written {PICTURE}")


if __name__ == "__main__":
    main()
