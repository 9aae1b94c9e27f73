"""Runs a client script with a monotonic clock that is slower by a factor: ``_slowed.py FACTOR SCRIPT ...``."""

from __future__ import annotations

import runpy
import sys
import time

clock, factor = time.monotonic, float(sys.argv[1])
time.monotonic = lambda: clock() / factor
del sys.argv[:2]
sys.path.insert(0, ".")
runpy.run_path(sys.argv[0], run_name="__main__")
