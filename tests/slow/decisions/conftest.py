"""What is shared with the quick suite is imported from there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "codecs" / "decisions"))
