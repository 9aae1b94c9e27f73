"""A program in a terminal: it is typed at, and what it shows is read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import TracebackType

CTRL_C = b"\x03"
PATIENCE = 60.0  # seconds without a sign of life
DROPPED = re.compile(r"Exception ignored in[^\0]*?\nKeyboardInterrupt")
SIZE = struct.pack("HHHH", 40, 140, 0, 0)  # lines and columns
_OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that Ctrl-C reaches it


class Terminal:
    """Runs a program in a terminal of its own; ``with`` sees that it ends.

    Attributes:
        shown: all that it has shown, as it was read.
    """

    def __init__(self, program: str, folder: Path) -> None:
        path = folder / "program.py"
        path.write_text(_OWN_TERMINAL + program)
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, SIZE)
        command = [sys.executable, "-u", "-W", "error", str(path)]
        self._process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
        os.close(inside)
        self.shown, self._dropped = "", 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)

    def type(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def wait_for(self, text: str) -> None:
        """Read until it has shown a text."""
        while text not in self.shown:
            assert self._read(), f"it ended without {text!r}: {self.shown}"

    def wait(self) -> int:
        """Read to its end; returns its exit code, negative for a signal."""
        while self._read():
            pass
        return self._process.wait()

    def _read(self) -> bool:
        """Take what it shows next; False if it has ended.

        Ctrl-C is typed again if Python says that it dropped an interrupt, which it does amid a finalizer or a weak reference's callback.
        """
        assert select.select([self._screen], [], [], PATIENCE)[0], f"it neither goes on nor ends: {self.shown}"
        try:
            piece = os.read(self._screen, 65536)
        except OSError:  # how Linux says that nobody has the other end
            return False
        self.shown += piece.decode(errors="replace")
        if len(DROPPED.findall(self.shown)) > self._dropped:
            self._dropped += 1
            self.type(CTRL_C)
        return bool(piece)
