"""Several samples of one prompt: one request each, or one request with ``n``. Compares them on a simulated server with a prefix cache.

python benchmarks/samples.py
"""

from __future__ import annotations

import random
from math import inf

from fakes.model_server import MODELS, ModelRequest, ModelServer

ITEMS, SAMPLES = 500, 4
SHARED, OWN = 600, 400  # prompt tokens of the rubric, and of the item
IN_FLIGHT = 64  # sequences


def run(model: str, *, together: bool, caching: bool) -> tuple[float, int]:
    """Return the seconds until all samples are generated, and the prompt tokens that were computed."""
    rng = random.Random(1)
    server = ModelServer(MODELS[model].model_copy(update={"caching": caching}))
    items = [[max(1, int(rng.lognormvariate(4, 0.7))) for _ in range(SAMPLES)] for _ in range(ITEMS)]
    waiting = [(item, lengths) for item, lengths in enumerate(items)]
    if not together:
        waiting = [(item, [length]) for item, lengths in waiting for length in lengths]
    waiting.reverse()
    now, free = 0.0, IN_FLIGHT
    while True:
        for request in server.run(now):
            request.handle[0] -= 1
            if not request.handle[0]:  # an answer with n choices ends with its longest
                free += request.handle[1]
        while waiting and free >= len(waiting[-1][1]):
            item, lengths = waiting.pop()
            unfinished = [len(lengths), len(lengths)]
            free -= len(lengths)
            for length in lengths:
                server.submit(now, ModelRequest(SHARED + OWN, length, ("rubric", item), (SHARED, SHARED + OWN), unfinished))
        server.run(now)
        if server.next_at == inf:
            return now, server.prefilled
        now = server.next_at


def main() -> None:
    for model in MODELS:
        for caching in (True, False):
            for together in (False, True):
                seconds, computed = run(model, together=together, caching=caching)
                form = f"1 request with n={SAMPLES}" if together else f"{SAMPLES} requests"
                cache = "prefix cache" if caching else "no cache"
                print(f"{model:4} {cache:12} {form:18} {seconds:6.1f} s {computed:9,} prompt tokens computed")


if __name__ == "__main__":
    main()
