"""``module:function``: the scorer that a text names. Knows imports only."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from qreward.errors import ConfigError


def load_scorer(name: str) -> Any:
    """The object that ``module:name`` or ``package.module:holder.name`` stands for; modules of the working directory are found.

    Raises:
        ConfigError: there is none; the message says which part of the name is wrong.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ConfigError(f"{name!r} names no scorer; write module:function, such as my_rewards:score")
    found: Any = _module(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"{name!r} names no scorer: {module_name!r} has no {path!r}") from None
    return found


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"the module {name!r} needs the module {error.name!r}, which is not installed") from error
        raise ConfigError(f"there is no module {name!r}, neither installed nor in the working directory") from None
    except Exception as error:
        raise ConfigError(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
