"""The server of the overhead benchmark: answers every chat call with one prepared completion, and costs as little as it can.

It knows nothing of the clients. One process listens on several ports of 127.0.0.1, one for each endpoint; the delay is
the first part of the path (``/d200/v1/chat/completions`` answers after 200 ms), so that one process serves a whole run.
``GET /stats`` gives the requests served and the most that were open at once since it was last asked.

    python benchmarks/server.py --ports 4 --core 1     # prints {"ports": [...], "verdict": "..."} and serves until it is stopped
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from typing import cast

VERDICT = (
    "Score: 7. The answer follows the instruction and its arithmetic is right, but the last step is asserted and not shown, "
    "one unit is missing, and the closing paragraph repeats the opening. A reader would trust the result and still have to "
    "redo the final conversion to be sure of it. A correct unit and one more line of work would have made it an eight."
)
COMPLETION = {
    "id": "chatcmpl-9f2c1d7be6a04c5f8f6f0a3f5b7d1e42",
    "object": "chat.completion",
    "created": 1760000000,
    "model": "judge",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": VERDICT, "refusal": None}, "logprobs": None, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 291, "completion_tokens": 62, "total_tokens": 353, "prompt_tokens_details": {"cached_tokens": 0}},
    "system_fingerprint": "fp_44709d6fcb",
}
REQUEST_LINE = re.compile(rb"POST /d(\d+)/v1/chat/completions HTTP/1\.1")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    """A whole HTTP/1.1 answer with a JSON body."""
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


ANSWER = http_answer(json.dumps(COMPLETION, separators=(",", ":")).encode())


class Stats:
    """What all endpoints together saw since the last look."""

    def __init__(self) -> None:
        self.served = self.open = self.peak = 0

    def enter(self) -> None:
        self.open += 1
        self.peak = max(self.peak, self.open)

    def leave(self) -> None:
        self.open -= 1
        self.served += 1

    def take(self) -> bytes:
        answer = http_answer(json.dumps({"served": self.served, "peak": self.peak}).encode())
        self.served, self.peak = 0, self.open
        return answer


class Connection(asyncio.Protocol):
    """One keep-alive connection. A request line that was seen before costs one look into a dictionary."""

    transport: asyncio.Transport

    def __init__(self, stats: Stats, delays: dict[bytes, float]) -> None:
        self.stats = stats
        self.delays = delays
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(self.buffer, 0, end + 2)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self.buffer) < size:
                return
            line, self.buffer = self.buffer[: self.buffer.index(b"\r\n")], self.buffer[size:]
            self.serve(line)

    def serve(self, line: bytes) -> None:
        delay = self.delays.get(line)
        if delay is None:
            self.serve_new_line(line)
            return
        self.stats.enter()
        if delay:
            asyncio.get_running_loop().call_later(delay, self.answer)
        else:
            self.answer()

    def serve_new_line(self, line: bytes) -> None:
        if found := REQUEST_LINE.fullmatch(line):
            self.delays[line] = int(found[1]) / 1000
            self.serve(line)
        elif line.startswith(b"GET /stats "):
            self.transport.write(self.stats.take())
        else:
            self.transport.write(http_answer(b'{"error": {"message": "no such path"}}', "404 Not Found"))

    def answer(self) -> None:
        self.stats.leave()
        if not self.transport.is_closing():
            self.transport.write(ANSWER)


async def serve(ports: int) -> None:
    loop = asyncio.get_running_loop()
    stats, delays = Stats(), dict[bytes, float]()
    servers = [await loop.create_server(lambda: Connection(stats, delays), "127.0.0.1", 0, backlog=4096) for _ in range(ports)]
    print(json.dumps({"ports": [server.sockets[0].getsockname()[1] for server in servers], "verdict": VERDICT}), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description="The server of the overhead benchmark.")
    parser.add_argument("--ports", type=int, default=4, help="endpoints, one port each (default %(default)s)")
    parser.add_argument("--core", type=int, help="pin the process to this core")
    args = parser.parse_args()
    if args.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {args.core})
    raise_file_limit()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(args.ports))


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: the less the server costs, the more of a shared machine is left to the client."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def raise_file_limit() -> None:
    """Allow as many connections as the system lets this process have."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
