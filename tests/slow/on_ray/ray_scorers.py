"""What the actors of these tests score with. They note each batch in a directory, so that it is known who scored what, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any


class Noting:
    """Lengths of texts. "poison" kills the process, "bad" is an error of its own, "worse" one of the batch."""

    def __init__(self, notes: str, seconds: float = 0.0) -> None:
        self.notes = Path(notes)
        self.seconds = seconds
        self.count = 0

    def __call__(self, texts: list[str]) -> list[Any]:
        self.note(texts)
        time.sleep(self.seconds)
        return self.scores(texts)

    def note(self, texts: list[str]) -> None:
        self.count += 1
        (self.notes / f"{os.getpid()}-{self.count}-{time.time_ns()}").write_text("\n".join(texts))

    def scores(self, texts: list[str]) -> list[Any]:
        if "poison" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if "worse" in texts:
            raise LookupError("worse")
        return [ValueError("bad") if text == "bad" else len(text) for text in texts]

    def close(self) -> None:
        (self.notes / "closed").write_text("closed")


class AwaitedNoting(Noting):
    """The same, awaited; it notes when it is cancelled."""

    async def __call__(self, texts: list[str]) -> list[Any]:
        self.note(texts)
        try:
            await asyncio.sleep(3600 if "wait" in texts else self.seconds)
        except asyncio.CancelledError:
            (self.notes / "cancelled").write_text("cancelled")
            raise
        return self.scores(texts)


class Rewards(Noting):
    """Rewards of completions by their metadata."""

    def __call__(self, completions: list[str], metadata: list[dict[str, Any]]) -> list[Any]:
        time.sleep(self.seconds)
        scores = self.scores(completions)
        return [one if isinstance(one, Exception) else one * meta.get("scale", 1.0) for one, meta in zip(scores, metadata, strict=True)]


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no weights")

    def __call__(self, texts: list[str]) -> list[Any]:
        return texts


def noted(notes: Path) -> list[list[str]]:
    """The batches that were begun, in the order of their beginning."""
    files = sorted(notes.glob("*-*-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return [path.read_text().split("\n") for path in files]


def workers(notes: Path) -> list[int]:
    """The processes that began a batch, each once, in that order."""
    files = sorted(notes.glob("*-*-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return list(dict.fromkeys(int(path.name.partition("-")[0]) for path in files))
