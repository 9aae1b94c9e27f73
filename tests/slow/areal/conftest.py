"""What this suite has in common with the fast tests of its adapter."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "integrations"))
