"""The child process of a fleet. It reads lines of JSON, replies to each line with one line, and ends when its input ends."""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any, TextIO

from qreward.errors import ConfigError
from qreward.testing.server import InThread, fast_loop, from_data
from qreward.testing.spec import FleetSpec


def main() -> None:
    """Start the fleet that the first input line describes. Then read one call from each further line, and reply to it."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of a responder goes to stderr, because it must not mix with the replies
    # With thousands of requests in flight and the default thresholds, garbage collection takes a third of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        host = InThread(FleetSpec(endpoints=tuple(map(from_data, json.loads(sys.stdin.readline())["endpoints"]))), fast_loop())
        host.start()
    except Exception as error:
        _reply(replies, _failure(error))
        return
    _reply(replies, {"ok": None})
    for line in sys.stdin:
        _reply(replies, _answer(host, json.loads(line)))
    host.stop()


def _answer(host: InThread, question: dict[str, Any]) -> dict[str, Any]:
    try:
        args = [from_data(each) if isinstance(each, dict) else each for each in question["args"]]
        return {"ok": host.call(question["verb"], *args)}
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": str(error), "config": isinstance(error, ConfigError)}


def _reply(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
