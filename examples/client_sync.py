"""The client for blocking code: one call, a batch with its progress and cost, a stream, and calls from several threads.

Run it: ``python examples/client_sync.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from connect import MODEL, OWN, conversation

from qreward import Progress, SyncQRewardClient
from qreward.testing import FakeEndpoint, FakeFleet, Latency

PACE = Latency(base=0.02, per_token=0.002, tokens=30)
FLEET = [FakeEndpoint(name, models=["judge-*"], responder="judge", latency=PACE, max_concurrency=4) for name in ("judge-0", "judge-1")]
ROLLOUTS = [conversation(f"What is {n} times 7?", str(n * 7), str(n * 7 + n % 2)) for n in range(60)]


@contextmanager
def connect() -> Iterator[SyncQRewardClient]:
    """As in connect.py; the fake endpoints have a price: US dollars for a million prompt and completion tokens."""
    if any(os.environ.get(name) for name in OWN):
        with SyncQRewardClient.from_env() as client:
            yield client
        return
    with FakeFleet(FLEET) as fleet:
        priced = [endpoint.model_copy(update={"price": (0.15, 0.60)}) for endpoint in fleet.endpoints]
        with SyncQRewardClient(priced) as client:
            yield client


def show(progress: Progress) -> None:
    """Called a few times a second, and at the end. ``progress=True`` shows a bar instead."""
    cost = "" if progress.cost is None else f", ${progress.cost:.6f}"
    print(f"{progress.done}/{progress.total} judged, {progress.failed} failed{cost}")


def main() -> None:
    with connect() as client:
        completion = client.chat_completion(ROLLOUTS[0], model=MODEL, temperature=0, timeout=60)
        print(f"one call:  {completion.choices[0].message.content}")
        batch = client.batch_chat_completion(ROLLOUTS, model=MODEL, temperature=0, timeout=60, progress=show)
        right = [text for text in batch.texts(default="") if '"correct"' in text]
        print(f"the batch: {len(right)} of {len(batch)} candidates are right")
        print("a stream:  ", end="")
        for token in client.stream_chat_completion(ROLLOUTS[1], model=MODEL, temperature=0, timeout=60):
            print(token, end="|", flush=True)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda messages: client.chat_completion(messages, model=MODEL, timeout=60), ROLLOUTS[:16]))
        print(f"\n8 threads: {len(answers)} answers, within the limits of one client")


if __name__ == "__main__":
    main()
