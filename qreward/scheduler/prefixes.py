"""Prompts that begin alike, and what of them a source still has in its prefix cache.

Model servers keep the attention state of prompts they have seen (vLLM's automatic prefix caching, SGLang's RadixAttention, prompt caching
of hosted APIs), so a prompt that begins like an earlier one at the same server is cheaper. ``PrefixCache`` is what one source is expected
to have; ``Homes`` says which sources of a pool have a prefix. The module does not know messages, hashing or queues.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

CAPACITY = 500_000.0
"""Tokens that a prefix cache is assumed to hold until answers show more or less (llm-d assumes 31,250 blocks of 16 tokens)."""
LEAST, MOST = 1_000.0, 1e8
"""Bounds of the learned capacity, in tokens."""
CHARACTERS = 4.0
"""Characters per token until answers have shown the number."""
IDLE = 600.0
"""Seconds without a request after which a source is taken to have dropped its cache. Hosted APIs drop it after 5 to 10 minutes."""
WEIGHT = 0.1
"""Weight of one answer in what is learned."""
EVIDENCE = 64.0
"""Tokens that must have been expected from the cache for an answer to say something about its capacity."""
SHARE = 0.5
"""Share of the expected tokens from which a prefix counts as found in the cache."""
SOON = 0.125
"""A prefix that is missed after less than this share of the capacity was not evicted: it was still being computed, or nothing is cached."""
LIMIT, GROWTH = 0.9, 1.05
"""A prefix found after this share of the capacity shows that the cache holds more; the growth for each."""
SWEEP = 4096
"""Prefixes that are remembered before those that are no longer cached are dropped, and as many as are cached."""
MOST_HOMES = 32
"""Sources that are remembered per prefix, those that were sent it first. What all have needs no home."""


class Prefix(NamedTuple):
    """What the prompt of a task begins with: nested prefixes, from the outermost to the innermost.

    Equal keys mean equal text from the beginning of the prompt, for one model.
    """

    keys: tuple[int, ...]  # a hash per nested prefix, salted by the model; at least one
    lengths: tuple[float, ...]  # characters from the beginning of the prompt to the end of each; increasing
    total: float  # characters of the whole prompt
    told: bool = False  # the keys are groups that the caller named; False: they are the ends of blocks of text, found by hashing


class Expected(NamedTuple):
    """What a request was expected to find in the cache of its source when it was sent."""

    tokens: float  # prompt tokens
    age: float  # tokens that were computed since the prefix was last used, also if that is too long ago to expect it


COLD = Expected(0.0, 0.0)


class PrefixCache:
    """What one source is expected to have in its prefix cache.

    A server evicts what was used least recently. So a prefix is cached until as many tokens as the cache holds were computed after its last
    use; this age is all that is kept of it. An outer prefix is used whenever an inner one is, so it never leaves before it.

    Args:
        capacity: tokens that the cache holds, if known; None learns it from the cached tokens that answers report.
    """

    __slots__ = (
        "_learns", "_sent_at", "_sweep_at", "_used", "cached_tokens", "capacity", "characters", "clock", "predicted_tokens",
        "prompt_tokens", "unreported_tokens",
    )  # fmt: skip

    def __init__(self, capacity: float | None = None) -> None:
        self._used: dict[int, float] = {}  # by key: the clock when the prefix was last used
        self.clock = 0.0  # tokens computed so far
        self._sent_at = 0.0  # when a request was last sent, in seconds
        self._sweep_at = SWEEP
        self.characters = CHARACTERS  # per token
        self.predicted_tokens = 0.0  # tokens expected from the cache, over the answers that report how many were
        self.cached_tokens = 0  # tokens that these answers report
        self.prompt_tokens = 0  # all prompt tokens of these answers
        self.unreported_tokens = 0.0  # tokens expected from the cache, over the answers that report nothing
        self.set_capacity(capacity)

    def set_capacity(self, tokens: float | None) -> None:
        """Set how many tokens the cache holds, or None to learn it."""
        self._learns = tokens is None
        self.capacity = CAPACITY if tokens is None else tokens

    def is_warm(self, key: int) -> bool:
        """Return whether a prefix is expected to be cached."""
        used = self._used.get(key)
        return used is not None and self.clock - used < self.capacity

    def used_at(self, key: int) -> float:
        """Return the clock when a prefix was last used."""
        return self._used.get(key, 0.0)

    def predicted(self, prefix: Prefix) -> float:
        """Return the prompt tokens that a request is expected to find in the cache."""
        return self._expected(prefix).tokens

    def use(self, now: float, prefix: Prefix) -> Expected:
        """A request with this prefix is sent. Returns what it is expected to find in the cache."""
        if now - self._sent_at > IDLE:
            self.forget()
        self._sent_at = now
        expected = self._expected(prefix)
        self.clock += prefix.total / self.characters - expected.tokens
        self._used.update(dict.fromkeys(prefix.keys, self.clock))
        if len(self._used) > self._sweep_at:
            self._sweep()
        return expected

    def answered(self, prefix: Prefix, expected: Expected, prompt: int | None, output: int | None, cached: int | None) -> None:
        """A request was answered. The tokens are those that the server reports, None if it does not."""
        self.clock += output or 0
        if prompt:
            self.characters += WEIGHT * (prefix.total / prompt - self.characters)
        if cached is None:
            self.unreported_tokens += expected.tokens
            return
        self.predicted_tokens += expected.tokens
        self.cached_tokens += cached
        self.prompt_tokens += prompt or 0
        if self._learns and expected.age and prefix.lengths[0] > EVIDENCE * self.characters:
            self._learn(expected, cached)

    def forget(self) -> None:
        """The source has lost its cache: it was restarted, or was silent for long."""
        self._used.clear()

    def _expected(self, prefix: Prefix) -> Expected:
        used, clock = self._used, self.clock
        for place in range(len(prefix.keys) - 1, -1, -1):
            then = used.get(prefix.keys[place])
            if then is not None:
                age = clock - then
                return Expected(prefix.lengths[place] / self.characters if age < self.capacity else 0.0, age)
        return COLD

    def _learn(self, expected: Expected, cached: int) -> None:
        """Move the capacity towards an age at which a prefix was found although it was too old, or missed although it was not."""
        capacity, age = self.capacity, expected.age
        if not expected.tokens:
            capacity += WEIGHT * (age - capacity) if cached > EVIDENCE else 0.0
        elif cached < SHARE * expected.tokens:
            capacity += WEIGHT * (age - capacity) if age > SOON * capacity else 0.0
        elif age > LIMIT * capacity:
            capacity *= GROWTH
        self.capacity = min(max(capacity, LEAST), MOST)

    def _sweep(self) -> None:
        """Drop what is no longer cached; but not at once, so that a capacity that is too small is noticed."""
        oldest = self.clock - 2 * self.capacity
        self._used = {key: then for key, then in self._used.items() if then > oldest}
        self._sweep_at = SWEEP + 2 * len(self._used)


class Cached(Protocol):
    """A source, as far as this matters here."""

    prefix_cache: PrefixCache


S = TypeVar("S", bound=Cached)


class Homes(Generic[S]):
    """Which sources of a pool were sent a prefix and still have it."""

    __slots__ = ("_known", "_sweep_at")

    def __init__(self) -> None:
        self._known: dict[int, tuple[S, ...]] = {}
        self._sweep_at = SWEEP

    def add(self, prefix: Prefix, source: S) -> None:
        """A source was sent a request with this prefix."""
        known = self._known
        if source in known.get(prefix.keys[-1], ()):
            return
        for key in prefix.keys:
            homes = known.get(key, ())
            if source not in homes:
                known[key] = (*(homes if len(homes) < MOST_HOMES else self.of(key)), source)[-MOST_HOMES:]
        if len(known) > self._sweep_at:
            self._known = {key: homes for key in known if (homes := self.of(key))}
            self._sweep_at = SWEEP + 2 * len(self._known)

    def of(self, key: int) -> tuple[S, ...]:
        """Return the sources that have a prefix."""
        return tuple(source for source in self._known.get(key, ()) if source.prefix_cache.is_warm(key))

    def __contains__(self, key: object) -> bool:
        """Return whether any source may have a prefix."""
        return key in self._known
