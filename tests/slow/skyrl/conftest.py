"""SkyRL's generator, which was written for Python 3.12: pydantic refuses ``typing.TypedDict`` on 3.11."""

from __future__ import annotations

import importlib
import typing
import warnings

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc,assignment]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework warns of is not ours
    importlib.import_module("skyrl.train.generators.skyrl_gym_generator")
