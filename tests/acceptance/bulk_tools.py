"""Inputs, a fleet that counts what it served, and runs in a process of their own that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from qreward.bulk.inputs import digest_of
from qreward.bulk.journal import decode

MODEL = "judge-7b"


def chat_line(number: int, **body: Any) -> dict[str, Any]:
    """A line of OpenAI's Batch API."""
    messages = [{"role": "user", "content": f"item {number}"}]
    line = {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions"}
    return {**line, "body": {"model": MODEL, "messages": messages, **body}}


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class ThreadServer(ABC):
    """A server in a thread. A subclass sets its own attributes before it calls ``open``.

    Attributes:
        url: its base URL.
        route: method and path that it answers.
    """

    url: str
    route = "*", "/{tail:.*}"

    @abstractmethod
    async def _answer(self, request: web.Request) -> web.Response: ...

    def open(self) -> None:
        """Start, and wait until requests can come."""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        left = asyncio.all_tasks(self._loop)
        for task in left:  # answers that a killed client does not wait for
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route(*self.route, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class CountingServer(ThreadServer):
    """An OpenAI server in a thread that counts how often it has answered each text.

    Attributes:
        served: text of the last message -> times that it was answered, or would have been had the client not left.
        refused: texts that are answered with the status 400.
        peak: the most requests that were open at once.
    """

    route = "POST", "/v1/chat/completions"

    def __init__(self, seconds: float = 0.0, seed: int = 0) -> None:
        self.served: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.peak = self._open_now = 0
        self._seconds, self._dice = seconds, random.Random(seed)
        self.open()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body["messages"][-1]["content"]
        self.served[text] += 1
        if text in self.refused:
            return web.json_response({"error": {"message": "the prompt is too long"}}, status=400)
        self._open_now += 1
        self.peak = max(self.peak, self._open_now)
        try:
            await asyncio.sleep(self._dice.random() * 2 * self._seconds)
        finally:
            self._open_now -= 1
        message = {"role": "assistant", "content": f"answer to {text}"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": MODEL}
        return web.json_response({**head, "choices": [choice], "usage": usage})


@contextmanager
def counting_server(seconds: float = 0.0, seed: int = 0) -> Iterator[CountingServer]:
    server = CountingServer(seconds, seed)
    try:
        yield server
    finally:
        server.close()


def command(source: Path, output: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "qreward", "run", str(source), "--output", str(output), "--progress", "none", *options]


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key-of-the-test"}


def start(source: Path, output: Path, url: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(source, output, *options), env=environment(url), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(source: Path, output: Path, url: str, *options: str) -> tuple[int, str]:
    """Run to the end. Returns the exit code and what was printed."""
    process = start(source, output, url, *options)
    printed, _ = process.communicate(timeout=300)
    return process.returncode, printed


def kill_after(process: subprocess.Popen[str], records: int, journal: Path, number: int = signal.SIGKILL) -> str:
    """Send a signal as soon as the journal has so many records, and wait for the end. Returns what was printed."""
    while process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") > records:
            process.send_signal(number)
            break
    printed, _ = process.communicate(timeout=300)
    return printed


def in_flight(journal: Path, source: Path | None = None) -> set[int]:
    """The lines that were sent and have no result, by a journal that was left behind: their numbers in the source, or their keys."""
    numbers = {} if source is None else {digest_of(line): number for number, line in enumerate(source.read_bytes().splitlines())}
    sent: set[int] = set()
    for line in journal.read_bytes().splitlines(keepends=True)[1:]:
        record = decode(line)
        if record is None:
            continue  # the process was killed while it wrote this record
        if record.kind == "S":
            sent.add(record.key)
        elif record.kind in ("D", "F"):
            sent.discard(record.key)
    return {numbers[key] for key in sent} if source is not None else sent
