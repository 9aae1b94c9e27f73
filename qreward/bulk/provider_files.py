"""Collects lines for provider batches in files. All lines of a file have one model, one ``url`` and one endpoint."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from pathlib import Path

from qreward.bulk import provider
from qreward.bulk.batch_api import BatchApi
from qreward.bulk.budget import NOTHING
from qreward.bulk.provider import HeldBatch
from qreward.bulk.spool import Spool, SpooledLine

IDLE = 5.0
"""Seconds without a new line after which files that are not full are sent. The files are then sent, because further lines
may have to wait for the budget or for the input."""


class Batch:
    """A file of lines, and the provider batch that is created from it.

    Attributes:
        held: the journal's entry, if an earlier run created the batch; otherwise None.
        number: number of the batch in the journal; None until the batch is recorded there.
        tag: tag of the batch in the provider's metadata; ``""`` until the batch is recorded in the journal.
        id: the provider's identifier of the batch; None until it is received.
        missing: for a batch of an earlier run, the number of its lines that this run still has to read from the input.
        reserved: maximum cost of the missing lines.
        spent: cost of failed attempts whose lines are sent again.
        since: time when the batch was created or found again, in seconds of the event loop's clock.
    """

    def __init__(self, api: BatchApi, url: str, model: str, spool: Spool, held: HeldBatch | None = None) -> None:
        self.api, self.url, self.model, self.spool, self.held = api, url, model, spool, held
        self.number = None if held is None else held.number
        self.tag = "" if held is None else held.tag
        self.id = None if held is None else held.id
        self.missing = 0
        self.reserved = self.spent = NOTHING
        self.since = 0.0

    @property
    def first_poll(self) -> float:
        """Seconds before the first poll, and before a failed call is repeated."""
        return min(provider.FIRST_POLL, self.longest)

    @property
    def longest(self) -> float:
        """Maximum number of seconds between two polls."""
        return self.api.endpoint.probe or provider.LONGEST_POLL

    def take_by_line_number(self, line: int) -> SpooledLine | None:
        """Take a line by its number in the file that was uploaded, from 1."""
        ordinals = self.spool.ordinals if self.held is None else self.held.written
        return self.spool.take(ordinals[line - 1]) if 0 < line <= len(ordinals) else None


class Files:
    """Holds the files that are being filled, and the complete files that wait to be sent.

    Args:
        folder: folder for the temporary files.
        loop: the running event loop.
        changed: event that is set whenever a file is complete.

    Attributes:
        ready: complete files, oldest first.
    """

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
        self._folder, self._loop, self.changed = folder, loop, changed
        self.ready: deque[Batch] = deque()
        self._collecting: dict[tuple[str, str, str], Batch] = {}  # endpoint, url and model -> the file that is being filled
        self._turns: Counter[tuple[str, str]] = Counter()  # url and model -> number of complete files
        self._most_lines: dict[str, int] = {}  # endpoint -> maximum number of lines in a file, if its queue was too small for a full file
        self._spools: set[Spool] = set()  # spools with open files
        self._timer: asyncio.TimerHandle | None = None
        self._last_line = 0.0

    def turn(self, url: str, model: str) -> int:
        """Return the number of complete files of a model. This number decides which of the model's endpoints gets the next file."""
        return self._turns[url, model]

    def limit(self, endpoint: str, lines: int) -> None:
        """Limit the number of lines in later files of an endpoint."""
        self._most_lines[endpoint] = max(1, lines)

    def new(self, api: BatchApi, url: str, model: str, held: HeldBatch | None = None) -> Batch:
        """Return a batch without lines. Raises ``OSError`` if its temporary files cannot be created."""
        spool = Spool(self._folder)
        self._spools.add(spool)
        return Batch(api, url, model, spool, held)

    def put(self, api: BatchApi, url: str, model: str, line: SpooledLine, request: bytes) -> None:
        """Add a line to the file of its endpoint, url and model. Raises ``OSError`` if the disk is full."""
        key, most = (api.endpoint.name, url, model), self._most_lines.get(api.endpoint.name, provider.LINES)
        batch = self._collecting.get(key)
        if batch is not None:
            size, inputs = batch.spool.size + len(request), batch.spool.inputs + line.inputs
            if size > provider.FILE_BYTES or inputs > provider.INPUTS:
                self._complete(key)
                batch = None
        if batch is None:
            batch = self._collecting[key] = self.new(api, url, model)
        batch.spool.add(line, request)
        if len(batch.spool) >= most:
            self._complete(key)
        self._last_line = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE, self._complete_if_idle)

    def complete_all(self) -> None:
        """Complete all files, although they are not full."""
        for key in tuple(self._collecting):
            self._complete(key)

    def drop(self, batch: Batch) -> None:
        """Remove the temporary files of a batch that has ended."""
        batch.spool.close()
        self._spools.discard(batch.spool)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for spool in self._spools:
            spool.close()

    def _complete_if_idle(self) -> None:
        self._timer = None
        if (left := self._last_line + IDLE - self._loop.time()) > 0.001:
            self._timer = self._loop.call_later(left, self._complete_if_idle)
        else:
            self.complete_all()

    def _complete(self, key: tuple[str, str, str]) -> None:
        self.ready.append(self._collecting.pop(key))
        self._turns[key[1:]] += 1
        self.changed.set()
