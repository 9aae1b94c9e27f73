"""The server of the overhead and the streaming benchmarks: the same prepared response to every chat call, at minimal cost.

This module does not know the clients. One process listens on several ports of 127.0.0.1, one for each endpoint. The first part of the path
selects the kind of response, so that one process serves a whole run: ``/d200/v1/chat/completions`` responds after 200 ms,
``/s50/v1/chat/completions`` streams one chunk per write with 50 ms between two chunks (``s0``: the whole stream in one write).
``GET /stats`` returns the number of requests served, and the most open requests, since the last such call.

    python benchmarks/server.py --ports 4 --core 1    # prints {"ports": [...], "verdict": "...", "chunks": 100}, serves until stopped
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
CHUNKS = 100
"""Chunks of a stream: an opening chunk, the pieces of the verdict, a closing chunk, and one with the usage. ``[DONE]`` follows."""
STREAM_ABOUT = {
    "id": COMPLETION["id"],
    "object": "chat.completion.chunk",
    "created": COMPLETION["created"],
    "model": "judge",
    "service_tier": "default",
    "system_fingerprint": COMPLETION["system_fingerprint"],
}
REQUEST_LINE = re.compile(rb"POST /([ds])(\d+)/v1/chat/completions HTTP/1\.1")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    """Return a complete HTTP/1.1 response with a JSON body."""
    return f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def stream_answer() -> list[bytes]:
    """Return the streamed response, one write per chunk. The first write includes status and headers, the last the end of the body."""
    count = CHUNKS - 3
    pieces = [VERDICT[place * len(VERDICT) // count : (place + 1) * len(VERDICT) // count] for place in range(count)]
    deltas = [{"role": "assistant", "content": "", "refusal": None}, *({"content": piece} for piece in pieces), {}]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None if delta else "stop"} for delta in deltas]
    chunks = [{**STREAM_ABOUT, "choices": [choice], "usage": None} for choice in choices]
    chunks.append({**STREAM_ABOUT, "choices": [], "usage": COMPLETION["usage"]})
    writes = [http_chunk(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n") for chunk in chunks]
    writes[0] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + writes[0]
    writes[-1] += http_chunk(b"data: [DONE]\n\n") + http_chunk(b"")
    return writes


def http_chunk(body: bytes) -> bytes:
    """Return one chunk of a chunked body; an empty chunk ends the body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


ANSWER = http_answer(json.dumps(COMPLETION, separators=(",", ":")).encode())
STREAM = stream_answer()
WHOLE_STREAM = b"".join(STREAM)


class Stats:
    """Statistics of all endpoints together since the last ``take``."""

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
    """One keep-alive connection. A known request line costs one dictionary lookup."""

    transport: asyncio.Transport

    def __init__(self, stats: Stats, ways: dict[bytes, tuple[bool, float]]) -> None:
        self.stats = stats
        self.ways = ways
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
        way = self.ways.get(line)
        if way is None:
            self.serve_new_line(line)
            return
        streams, seconds = way
        self.stats.enter()
        if streams and seconds:
            self.stream(0, seconds)
        elif seconds:
            asyncio.get_running_loop().call_later(seconds, self.answer, ANSWER)
        else:
            self.answer(WHOLE_STREAM if streams else ANSWER)

    def serve_new_line(self, line: bytes) -> None:
        if found := REQUEST_LINE.fullmatch(line):
            self.ways[line] = (found[1] == b"s", int(found[2]) / 1000)
            self.serve(line)
        elif line.startswith(b"GET /stats "):
            self.transport.write(self.stats.take())
        else:
            self.transport.write(http_answer(b'{"error": {"message": "no such path"}}', "404 Not Found"))

    def answer(self, whole: bytes) -> None:
        self.stats.leave()
        if not self.transport.is_closing():
            self.transport.write(whole)

    def stream(self, place: int, seconds: float) -> None:
        """Write the chunk at this index, and the following ones at intervals of ``seconds``."""
        if self.transport.is_closing():
            self.stats.leave()
        elif place + 1 < CHUNKS:
            self.transport.write(STREAM[place])
            asyncio.get_running_loop().call_later(seconds, self.stream, place + 1, seconds)
        else:
            self.answer(STREAM[place])


async def serve(ports: int) -> None:
    loop = asyncio.get_running_loop()
    stats, ways = Stats(), dict[bytes, tuple[bool, float]]()
    servers = [await loop.create_server(lambda: Connection(stats, ways), "127.0.0.1", 0, backlog=4096) for _ in range(ports)]
    hello = {"ports": [server.sockets[0].getsockname()[1] for server in servers], "verdict": VERDICT, "chunks": CHUNKS}
    print(json.dumps(hello), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description="The server of the overhead and the streaming benchmark.")
    parser.add_argument("--ports", type=int, default=4, help="endpoints, one port each (default %(default)s)")
    parser.add_argument("--core", type=int, help="pin the process to this core")
    args = parser.parse_args()
    if args.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {args.core})
    raise_file_limit()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(args.ports))


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop if it is installed, because a cheaper server leaves more of a shared machine to the client."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard limit."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
