"""The command line that the benchmarks share: where the records of a run are kept, and a short run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def command(about: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a parser with ``--json``, ``--markdown`` and ``--quick``, to which a benchmark adds its own options."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the raw records there")
    parser.add_argument("--markdown", action="store_true", help="measure nothing; write docs/benchmarks.md from the file of --json")
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    if args.markdown and not (args.json and args.json.exists()):
        parser.error("--markdown needs --json PATH, the file to read")
    return args


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def save(path: Path | None, run: Any) -> None:
    """Write the records of a run, if a path was chosen."""
    if path is not None:
        path.write_text(json.dumps(run, indent=1), encoding="utf-8")
