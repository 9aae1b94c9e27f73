"""A private directory for ledgers: nobody else's, and not to be led astray by links. Knows nothing of what is kept there."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

VARIABLE = "QREWARD_SHARE_DIR"
OTHERS = 0o077
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Unsafe(OSError):
    """A directory or file that others could have put there, or could change."""


def directory() -> Path:
    """Where ledgers are kept: ``QREWARD_SHARE_DIR``, the user's runtime directory, or a directory of the user's among temporary files."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "qreward"
    return Path(tempfile.gettempdir()) / f"qreward-{os.geteuid()}"


def open_directory(path: Path) -> int:
    """A descriptor of a private directory, which is made if it is not there.

    Raises:
        Unsafe: it is a link, belongs to somebody else, or others may use it.
        OSError: it cannot be made or opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | NO_LINKS)
    return _checked(found, path, stat.S_ISDIR)


def open_file(place: int, name: str, *, create: bool = True) -> int:
    """A descriptor of a file of ours in a directory, to read and to write.

    Raises:
        Unsafe: it is no plain file, or not ours alone.
        OSError: it cannot be opened; ``FileNotFoundError`` if it is not there and is not to be made.
    """
    found = os.open(name, os.O_RDWR | NO_LINKS | (os.O_CREAT if create else 0), 0o600, dir_fd=place)
    return _checked(found, name, stat.S_ISREG)


def _checked(found: int, name: object, is_right: Callable[[int], bool]) -> int:
    about = os.fstat(found)
    if is_right(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & OTHERS:
        return found
    os.close(found)
    raise Unsafe(
        f"{name} must belong to this user alone (it has mode {stat.S_IMODE(about.st_mode):o}); set {VARIABLE} to a private directory"
    )
