"""Imports ms-swift before anything else does, because TRL and transformers warn when they are imported."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework warns of is not ours
    for name in ("swift.rewards", "swift.rl_core.data", "swift.rl_core.grpo_algorithm"):
        importlib.import_module(name)
