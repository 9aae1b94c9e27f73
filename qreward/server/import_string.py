"""Loads the object that a text such as ``module:function`` names. This module does not depend on HTTP or scoring."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError
from qreward.spelling import closest, did_you_mean


def load_object(name: str, what: str, example: str) -> Any:
    """Load an object by its name. Modules in the working directory are found."""
    prefix = f"{what} {name!r}: "
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ConfigError(f"{prefix}is not written as module:function, such as {example}")
    found = _module(module, prefix)
    for part in path.split("."):
        if not hasattr(found, part):
            public = [each for each in dir(found) if not each.startswith("_")]
            hint = did_you_mean(part, public) if closest(part, public) else "correct the name, or define it there"
            raise ConfigError(f"{prefix}{getattr(found, '__name__', found)!r} has no {part!r}; {hint}")
        found = getattr(found, part)
    return found


def _module(name: str, prefix: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{prefix}the module {name!r} needs the module {error.name!r}, which is not installed") from error
        message = f"there is no module {name!r}, neither installed nor in the working directory {here}"
        raise ConfigError(prefix + message) from None
    except Exception as error:
        raise ConfigError(f"{prefix}the module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
