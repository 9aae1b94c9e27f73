"""A simulated model server with continuous batching and a prefix cache.

A :class:`ModelServer` takes requests and the time. It returns the finished requests and the time at which its next step ends. This module
uses no HTTP, no clock and no event loop.

The simulation is a simplified form of the scheduler of vLLM (v1). Each step generates one token for every running request, and spends the
remaining token budget of the step on prompts, first come first served. A prompt that does not fit into the budget continues in the next
step. A request is admitted if the step has budget left, fewer than ``sequences`` requests run, and the KV cache has room for the prompt and
the output. This room is reserved, so no request is ever preempted.

A full block of a prompt is shared as soon as the step that computes it has begun. The block stays cached until its space is needed. The
least recently used blocks are evicted first. At least one token of each prompt is computed, even if the whole prompt is cached.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from typing import Any

from pydantic import Field

from qreward.settings.base import Policy

_SECONDS = Field(ge=0, allow_inf_nan=False)


class ServedModel(Policy):
    """Holds the speed and memory of one replica of a model.

    A step that computes ``p`` prompt tokens and generates ``d`` output tokens takes ``time_scale * (step + prefill * p + decode * d)``
    seconds.

    Args:
        step: seconds that every step takes, without its tokens.
        prefill: seconds for each prompt token that is computed.
        decode: seconds for each output token. A running request gets one output token per step.
        cache_tokens: number of tokens that the KV cache can hold.
        budget: maximum number of tokens in a step.
        sequences: maximum number of requests that run at once.
        block: number of tokens in a block of the cache.
        caching: whether the blocks of equal prefixes are reused.
        time_scale: factor for all times. 2 halves the speed of the server; 0.01 suits tests.

    Example:
        >>> MODELS["8B"].model_copy(update={"time_scale": 2.0}).cache_tokens
        300000
    """

    step: float = _SECONDS
    prefill: float = _SECONDS
    decode: float = _SECONDS
    cache_tokens: int = Field(ge=1)
    budget: int = Field(default=2048, ge=1)
    sequences: int = Field(default=256, ge=1)
    block: int = Field(default=16, ge=1)
    caching: bool = True
    time_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)


MODELS = {
    "8B": ServedModel(step=0.010, prefill=0.00006, decode=0.00005, cache_tokens=300_000),
    "70B": ServedModel(step=0.025, prefill=0.0003, decode=0.0001, cache_tokens=120_000),
}
"""Speed and memory of two models, by name. The values have the order of magnitude of an 8B model on one GPU, which computes 16,000 prompt
tokens a second, and of a 70B model on several GPUs, which computes 3,300 prompt tokens a second."""


class ModelRequest:
    """Holds one request to a model server.

    Args:
        prompt: number of prompt tokens, at least 1.
        output: number of output tokens, at least 1.
        keys: one hash for each prefix of the prompt that other prompts may share, from the shortest prefix to the longest. Requests with
            an equal key share that prefix.
        ends: number of prompt tokens in each of these prefixes, in increasing order.
        handle: any object of the caller. The model server does not use it.

    Attributes:
        cached: prompt tokens that were read from the cache; None until the request is admitted.
        admitted_at: time in seconds at which the request was admitted.
        first_at: time in seconds at which the step ended that generated the first token of the request.
    """

    __slots__ = (
        "admitted_at", "blocks", "cached", "ends", "first_at", "handle", "keys", "left", "nodes", "output", "over", "private", "prompt",
    )  # fmt: skip

    def __init__(self, prompt: int, output: int, keys: Sequence[Hashable] = (), ends: Sequence[int] = (), handle: Any = None) -> None:
        self.prompt, self.output, self.keys, self.ends, self.handle = max(1, prompt), max(1, output), keys, ends, handle
        self.cached: int | None = None
        self.admitted_at = self.first_at = inf
        self.left = 0  # prompt tokens still to be computed
        self.blocks = self.private = 0  # blocks that this request needs, and blocks that it does not share
        self.nodes: list[_Node] = []  # nodes that this request pins, from the beginning of the prompt to its end
        self.over = False  # cancelled or finished


class _Node:
    """Holds the cached blocks of one part of a prompt. ``key`` identifies this part and all parts before it."""

    __slots__ = ("cached", "end", "key", "pins", "size")

    def __init__(self, key: Hashable, size: int, end: int) -> None:
        self.key, self.size, self.end = key, size, end  # size: blocks of the part; end: blocks from the beginning of the prompt to its end
        self.cached = self.pins = 0  # cached: blocks of the part that are cached; pins: requests that use the part


class BlockCache:
    """Counts and shares the blocks of a KV cache.

    Shared blocks are found by key. Private blocks belong to one request and are only counted. Blocks that a request uses are pinned, and
    pinned blocks are never evicted.

    Attributes:
        used: blocks that are in use or cached.
        spare: cached blocks that are not in use, and may be evicted.
    """

    def __init__(self, capacity: float, block: int, *, caching: bool = True) -> None:
        self.capacity, self.block = capacity, block
        self.used = self.spare = 0
        self._caching = caching
        self._nodes: dict[Hashable, _Node] = {}
        self._idle: OrderedDict[_Node, None] = OrderedDict()  # unpinned nodes, least recently used first, children before parents

    def admit(self, request: ModelRequest) -> bool:
        """Reserve blocks for a request, and count the cached tokens of its prompt. Return False if the cache has no room."""
        path = self._path(request) if self._caching else []
        hit, free = 0, self.capacity - self.used + self.spare
        for node in path:
            hit += node.cached
            if node.cached < node.size:
                break
        hit = min(hit, (request.prompt - 1) // self.block)
        blocks = ceil((request.prompt + request.output) / self.block)
        if blocks - hit > free - sum(node.cached for node in path if not node.pins):
            return False
        for node in path:
            if not node.pins:
                self._nodes[node.key] = node
                self._idle.pop(node, None)
                self.spare -= node.cached
            node.pins += 1
        request.nodes, request.private = path, blocks - hit
        request.cached = hit * self.block
        request.left = request.prompt - request.cached
        self._evict(request.private)
        self.used += request.private
        return True

    def computed(self, request: ModelRequest) -> None:
        """Share the full blocks of a prompt that have been computed so far."""
        done = (request.prompt - request.left) // self.block
        for node in request.nodes:
            begin = node.end - node.size
            if done <= begin:
                break
            if (more := min(done - begin, node.size) - node.cached) > 0:
                node.cached += more
                request.private -= more

    def release(self, request: ModelRequest) -> None:
        """Free the private blocks of a request, and unpin its shared blocks."""
        self.used -= request.private
        for node in reversed(request.nodes):  # the end of a prompt is evicted before its beginning
            node.pins -= 1
            if node.pins:
                continue
            if node.cached:
                self._idle[node] = None
                self.spare += node.cached
            else:
                del self._nodes[node.key]
        request.nodes, request.private = [], 0

    def _path(self, request: ModelRequest) -> list[_Node]:
        """Return the nodes of a request. New nodes are not yet in the cache."""
        path, begin, block, nodes = [], 0, self.block, self._nodes
        for key, tokens in zip(request.keys, request.ends, strict=True):
            end = min(tokens, request.prompt) // block
            if end > begin:
                path.append(nodes.get(key) or _Node(key, end - begin, end))
                begin = end
        return path

    def _evict(self, need: int) -> None:
        while (short := self.used + need - self.capacity) > 0:
            node = next(iter(self._idle))
            gone = int(min(short, node.cached))
            node.cached -= gone
            self.used -= gone
            self.spare -= gone
            if not node.cached:
                del self._idle[node], self._nodes[node.key]


class ModelServer:
    """Simulates one replica of a model.

    The caller calls ``submit`` for each new request and ``cancel`` for each abandoned request. After each of these calls, and at the time
    ``next_at``, the caller calls ``run``.

    Attributes:
        next_at: time in seconds at which the planned steps end; inf while nothing runs.
        queried: prompt tokens of all admitted requests.
        hits: prompt tokens of admitted requests that were cached.
        prefilled: prompt tokens that were computed.
        decoded: output tokens that were generated.
        steps: steps that have ended.
    """

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.next_at = inf
        self.queried = self.hits = self.prefilled = self.decoded = self.steps = 0
        self.waiting: deque[ModelRequest] = deque()
        self.running = 0
        self._budget, self._sequences = model.budget, model.sequences
        self._step, self._prefill, self._decode = (model.time_scale * each for each in (model.step, model.prefill, model.decode))
        self._number = count().__next__
        self._ends: list[tuple[int, int, ModelRequest]] = []  # (last step, order, request) of each request whose prompt is computed
        self._decoding = 0  # requests that were past their prompt when the present step began; each gets a token in this step
        self._starting: list[ModelRequest] = []  # requests whose prompt is completed in the present step
        self._partial: ModelRequest | None = None  # the request of whose prompt only a part is computed
        self._begun = 0.0  # time in seconds at which the planned steps began
        self._planned = 0  # number of steps until ``next_at``; all of them take the same time
        self.clear()

    def clear(self) -> None:
        """Empty the cache, as a restart does. This method may only be called while no request runs."""
        self.cache = BlockCache(self.model.cache_tokens // self.model.block, self.model.block, caching=self.model.caching)

    @property
    def load(self) -> float:
        """The share of the KV cache that running requests hold, from 0 to 1."""
        return (self.cache.used - self.cache.spare) / self.cache.capacity

    def submit(self, now: float, request: ModelRequest) -> None:
        """Queue a request.

        Raises:
            ValueError: the request needs more than the whole cache.
        """
        if request.prompt + request.output > self.cache.capacity * self.model.block:
            raise ValueError(f"{request.prompt} prompt tokens and {request.output} output tokens do not fit into the KV cache")
        if not self.waiting and self.running < self._sequences:
            self._cut(now)
        self.waiting.append(request)

    def cancel(self, now: float, request: ModelRequest) -> None:
        """Drop a waiting or running request. The present step still computes the tokens of the request."""
        if request.over:
            return
        request.over = True
        if request.cached is None:
            self.waiting.remove(request)
            return
        self._cut(now)
        self._leave(request)
        if request is self._partial:
            self._partial = None
        elif request in self._starting:
            self._starting.remove(request)
        else:
            self._decoding -= 1

    def run(self, now: float) -> list[ModelRequest]:
        """End the steps that are over at the time ``now``, and begin the next step. Return the finished requests, in order."""
        done: list[ModelRequest] = []
        while self.next_at <= now:
            at = self.next_at
            self._end(at, done)
            self._begin(at)
        if self.next_at == inf and self.waiting:
            self._begin(now)
        return done

    def _end(self, at: float, done: list[ModelRequest]) -> None:
        """Complete the planned steps."""
        self.steps += self._planned
        self.decoded += self._decoding * self._planned + len(self._starting)
        for request in self._starting:
            request.first_at = at
            heappush(self._ends, (self.steps + request.output - 1, self._number(), request))
        self._decoding += len(self._starting)
        self._starting.clear()
        ends = self._ends
        while ends and (ends[0][0] <= self.steps or ends[0][2].over):
            request = heappop(ends)[2]
            if not request.over:
                request.over = True
                self._decoding -= 1
                self._leave(request)
                done.append(request)

    def _begin(self, at: float) -> None:
        """Plan the next step. If this step computes no prompt tokens, plan all steps until the next request ends."""
        budget = self._budget - self._decoding
        spent = self._compute(self._partial, budget) if self._partial is not None else 0
        while self.waiting and spent < budget and self._partial is None and self.running < self._sequences:
            request = self.waiting[0]
            if not self.cache.admit(request):
                break
            self.waiting.popleft()
            self._enter(at, request)
            spent += self._compute(request, budget - spent)
        if not self.running:
            self.next_at = inf
            return
        self.prefilled += spent
        self._planned = 1 if spent else max(1, self._ends[0][0] - self.steps)
        self._begun = at
        self.next_at = at + self._planned * (self._step + self._prefill * spent + self._decode * self._decoding)

    def _enter(self, at: float, request: ModelRequest) -> None:
        self.running += 1
        request.admitted_at = at
        self.queried += request.prompt
        self.hits += request.cached or 0

    def _compute(self, request: ModelRequest, budget: int) -> int:
        """Compute as much of a prompt as the budget allows. Return the number of computed tokens."""
        tokens = min(budget, request.left)
        request.left -= tokens
        self.cache.computed(request)
        if request.left:
            self._partial = request
        else:
            self._partial = None
            self._starting.append(request)
        return tokens

    def _leave(self, request: ModelRequest) -> None:
        self.running -= 1
        self.cache.release(request)

    def _cut(self, now: float) -> None:
        """Drop the planned steps that begin after ``now``, because a request came or went at ``now``."""
        if self._planned > 1 and now < self.next_at < inf:
            each = (self.next_at - self._begun) / self._planned
            self._planned = min(self._planned, max(1, ceil((now - self._begun) / each - 1e-9)))
            self.next_at = self._begun + self._planned * each


def ideal_prefill(requests: Sequence[ModelRequest], block: int = 16) -> int:
    """Return the smallest number of prompt tokens that any number of servers must compute for these requests.

    Prompts with a common prefix share this prefix in whole blocks. Each shared block is computed once.
    """
    cache, tokens = BlockCache(inf, block), 0
    for given in requests:
        request = ModelRequest(given.prompt, given.output, given.keys, given.ends)
        cache.admit(request)
        tokens += request.left
        request.left = 0
        cache.computed(request)
        cache.release(request)
    return tokens
