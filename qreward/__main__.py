"""``python -m qreward`` is the command ``qreward``."""

from __future__ import annotations

from qreward.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
