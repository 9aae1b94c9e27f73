"""Routers that consider prefix caches, for comparison. They choose a replica when a request arrives, and never change that choice.

They are published algorithms with their published constants, read in their sources in 2026. Here they know more than in reality. CHWBL
knows the group of a request, while KubeAI hashes the first 100 characters. Loads and the use of KV caches are never stale. A dead replica
is known at once.
"""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from prefix_workloads import PrefixJob, stable_hash

Chooser = Callable[[PrefixJob, Sequence["View"]], "View"]


class View(Protocol):
    """What a router sees of a replica: its requests in flight, those that it has not admitted, and the used share of its KV cache."""

    name: str
    inflight: int

    @property
    def waiting(self) -> int: ...
    @property
    def load(self) -> float: ...


def least(replicas: Sequence[View]) -> View:
    return min(replicas, key=lambda replica: replica.inflight)


class BoundedHash:
    """Consistent hashing with bounded loads (Mirrokni et al. 2018) as in KubeAI, ``balance_chwbl.go``: 256 virtual nodes, bound 1.25.

    The key is the innermost named group that several requests share: the answer if several requests ask about it, else the question.
    """

    VIRTUAL, BOUND = 256, 1.25

    def __init__(self, jobs: Sequence[PrefixJob]) -> None:
        counts: dict[int, int] = {}
        for job in jobs:
            for key in job.keys[: job.shared]:
                counts[key] = counts.get(key, 0) + 1
        self._shared = {key for key, count in counts.items() if count > 1}
        self._ring: list[tuple[int, View]] = []

    def __call__(self, job: PrefixJob, replicas: Sequence[View]) -> View:
        if not self._ring:
            ring = [(stable_hash(f"{replica.name}-{node}"), replica) for replica in replicas for node in range(self.VIRTUAL)]
            self._ring = sorted(ring, key=lambda entry: entry[0])
        bound = self.BOUND * (1 + sum(replica.inflight for replica in replicas)) / len(replicas)
        start = bisect(self._ring, stable_hash(str(self._key(job))), key=lambda entry: entry[0])
        for place in range(start, start + len(self._ring)):
            replica = self._ring[place % len(self._ring)][1]
            if replica in replicas and replica.inflight <= bound:
                return replica
        return least(replicas)

    def _key(self, job: PrefixJob) -> int:
        shared = [key for key in job.keys[: job.shared] if key in self._shared]
        return shared[-1] if shared else job.keys[0]


class CacheAware:
    """SGLang's ``cache_aware`` (``model_gateway/src/policies/cache_aware.rs``).

    If the loads differ by more than 64 and by more than a factor of 1.5, the replica with the least load is chosen. Otherwise it is the
    replica whose tree of past prompts holds the longest part of the prompt, if this part is more than 0.3 of the prompt. Otherwise the
    replica with the least load is chosen. The trees hold 2^26 characters, so nothing is evicted from them here.
    """

    ABSOLUTE, RELATIVE, MATCH = 64, 1.5, 0.3

    def __init__(self) -> None:
        self._trees: dict[View, set[int]] = {}

    def __call__(self, job: PrefixJob, replicas: Sequence[View]) -> View:
        loads = [replica.inflight for replica in replicas]
        chosen = least(replicas)
        if max(loads) - min(loads) <= self.ABSOLUTE or max(loads) <= self.RELATIVE * min(loads):
            matches = [self._match(job, self._trees.setdefault(replica, set())) for replica in replicas]
            if max(matches) > self.MATCH * job.prompt:
                chosen = replicas[matches.index(max(matches))]
        self._trees.setdefault(chosen, set()).update(job.keys)
        return chosen

    @staticmethod
    def _match(job: PrefixJob, tree: set[int]) -> int:
        return max((end for key, end in zip(job.keys, job.ends, strict=True) if key in tree), default=0)


class ApproximatePrefix:
    """llm-d's ``approximateprefix`` scorer with the weights prefix 3, queue 2 and KV cache 2.

    The index of a replica keeps the most recently used parts, up to the number of tokens that the replica's cache holds, as with llm-d's
    automatic setting.
    """

    PREFIX, QUEUE, KV = 3.0, 2.0, 2.0

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # tokens
        self._known: dict[View, _Recent] = {}

    def __call__(self, job: PrefixJob, replicas: Sequence[View]) -> View:
        queues = [replica.waiting for replica in replicas]
        low, span = min(queues), max(queues) - min(queues)

        def score(replica: View) -> tuple[float, int]:
            prefix = self._of(replica).match(job) / job.prompt
            queue = 1.0 if not span else 1 - (replica.waiting - low) / span
            return self.PREFIX * prefix + self.QUEUE * queue + self.KV * (1 - replica.load), -replica.inflight

        chosen = max(replicas, key=score)
        self._of(chosen).add(job)
        return chosen

    def _of(self, replica: View) -> _Recent:
        return self._known.setdefault(replica, _Recent(self._capacity))


class _Recent:
    """The parts of prompts that were sent to one replica most recently."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._tokens = capacity, 0
        self._parts: OrderedDict[int, int] = OrderedDict()

    def match(self, job: PrefixJob) -> int:
        matched = 0
        for key, end in zip(job.keys, job.ends, strict=True):
            if key not in self._parts:
                break
            matched = end
        return matched

    def add(self, job: PrefixJob) -> None:
        for key, (_, tokens) in zip(reversed(job.keys), reversed(job.path), strict=True):
            if key not in self._parts:
                self._tokens += tokens
            self._parts[key] = tokens
            self._parts.move_to_end(key)
        while self._tokens > self._capacity:
            self._tokens -= self._parts.popitem(last=False)[1]


ROUTERS: dict[str, Callable[[Sequence[PrefixJob], int], Chooser]] = {
    "chwbl": lambda jobs, _: BoundedHash(jobs),
    "sglang": lambda _jobs, _: CacheAware(),
    "llm-d": lambda _, capacity: ApproximatePrefix(capacity),
}
"""Maps the name of a policy to a function that makes its router from the jobs and the number of tokens that a replica's cache holds."""
