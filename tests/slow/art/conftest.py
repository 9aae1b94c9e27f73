"""Imports ART before anything else does, because its requirements warn when they are imported."""

from __future__ import annotations

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework warns of is not ours
    importlib.import_module("art.rewards")
