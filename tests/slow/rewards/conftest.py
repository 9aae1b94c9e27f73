"""What is shared with the quick suite is imported from there."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests" / "acceptance"), str(ROOT / "benchmarks")]
