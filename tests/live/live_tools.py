"""A channel of this process in a directory of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from qreward.live import channel
from qreward.live.channel import Channel
from qreward.live.processes import VARIABLE


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory for sockets. The path of a socket may have about a hundred characters, so it is not that of the test."""
    with tempfile.TemporaryDirectory(prefix="qr-") as folder, mock.patch.dict("os.environ", {VARIABLE: folder}):
        yield Path(folder)


@contextmanager
def opened() -> Iterator[Channel]:
    with own_directory(), mock.patch.object(channel, "_channel", None):
        made = channel.open_channel()
        try:
            yield made
        finally:
            made.close()
