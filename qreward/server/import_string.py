"""Loads the object that a text such as ``module:function`` names. Knows imports only."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError
from qreward.spelling import closest, did_you_mean


def load_object(name: str, what: str, example: str) -> Any:
    """Load the object named ``module:name`` or ``package.module:holder.name``. Modules in the working directory are found.

    Args:
        name: the name.
        what: name of the object's role in error messages, such as ``scorer``.
        example: a valid name, shown in error messages.

    Raises:
        ConfigError: the object cannot be loaded. The message says which part of the name is wrong.
    """
    try:
        return _object(name, example)
    except ConfigError as error:
        raise ConfigError(f"{what} {name!r}: {error}") from error.__cause__


def _object(name: str, example: str) -> Any:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ConfigError(f"is not written as module:function, such as {example}")
    found: Any = _module(module)
    for part in path.split("."):
        found = _member(found, part)
    return found


def _member(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        public = [each for each in dir(holder) if not each.startswith("_")]
        hint = did_you_mean(name, public) if closest(name, public) else "correct the name, or define it there"
        raise ConfigError(f"{getattr(holder, '__name__', holder)!r} has no {name!r}; {hint}") from None


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"the module {name!r} needs the module {error.name!r}, which is not installed") from error
        raise ConfigError(f"there is no module {name!r}, neither installed nor in the working directory {here}") from None
    except Exception as error:
        raise ConfigError(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
