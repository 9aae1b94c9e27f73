"""Virtual environments of the compared libraries, one each under ``benchmarks/.envs``. They are installed from PyPI and reused while
their pins stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent / ".envs"


def python_of(name: str, requirements: tuple[str, ...]) -> Path:
    """Return the interpreter of the environment ``name``. Create the environment if it is missing or has other pins than ``requirements``.

    Raises:
        subprocess.CalledProcessError: pip could not install them.
    """
    home = ROOT / name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pins = home / "pins.txt"
    wanted = "\n".join(requirements)
    if pins.exists() and pins.read_text(encoding="utf-8") == wanted:
        return python
    print(f"making environment {name}: {' '.join(requirements)}", file=sys.stderr, flush=True)
    venv.create(home, clear=True, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    pins.write_text(wanted, encoding="utf-8")
    return python
