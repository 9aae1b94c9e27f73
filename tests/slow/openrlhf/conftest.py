"""The framework itself, whose requirements are for machines with GPUs: installed without them, those it needs here are in the file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "integrations"))

if importlib.util.find_spec("openrlhf") is None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "openrlhf==0.11.2"], check=True)
    importlib.invalidate_caches()
