"""The child process of a fleet. It reads lines of JSON, replies to each line with one line, and ends when its input ends."""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

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
    host: InThread | None = None
    reply: dict[str, Any]
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if host is None:
                starting = InThread(FleetSpec(endpoints=tuple(map(from_data, question["endpoints"]))), fast_loop())
                starting.start()
                host, reply = starting, {"ok": None}
            else:
                args = [from_data(each) if isinstance(each, dict) else each for each in question["args"]]
                reply = {"ok": host.call(question["verb"], *args)}
        except Exception as error:
            reply = {"error": str(error), "config": isinstance(error, ConfigError)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if host is None:
            return
    if host is not None:
        host.stop()


if __name__ == "__main__":
    main()
