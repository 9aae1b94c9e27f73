"""Predicts which prefixes of prompts are in the prefix cache of each source.

Model servers keep the attention state of prompts that they have computed (vLLM's automatic prefix caching, SGLang's RadixAttention, prompt
caching of hosted APIs). A prompt that begins like an earlier prompt at the same server costs the server less time. ``PredictedCache``
predicts the cache of one source. ``Holders`` says which sources of a pool hold a prefix. This module does not depend on messages, hashing
or queues.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from qreward.scheduler.outcome import Answer, Cancelled, Failure, FailureKind

CAPACITY = 500_000.0
"""Tokens that a prefix cache is assumed to hold until answers show more or less (llm-d assumes 31,250 blocks of 16 tokens)."""
LEAST, MOST = 1_000.0, 1e8
"""``LEAST``: minimum of the learned capacity, in tokens. ``MOST``: maximum of the learned capacity, in tokens."""
CHARACTERS = 4.0
"""Number of characters per token that is assumed until answers have shown the real number."""
IDLE = 600.0
"""Seconds without a request after which a source is taken to have dropped its cache. Hosted APIs drop it after 5 to 10 minutes."""
WEIGHT = 0.1
"""Weight (0 to 1) of the latest answer in the learned means and in the learned capacity."""
WARM = 0.9
"""Maximum of ``warm_share``. Even if an answer with a cached prefix takes no less time, the source that has the prefix is preferred this
much, because the computation that is saved also makes other requests faster."""
UNKNOWN = 0.7
"""Value of ``warm_share`` until answers have shown it."""
SOON = 0.125
"""Share (0 to 1) of the capacity. If a prefix is missing from the cache at an age below this share, the prefix was not evicted. Instead it
was still being computed, or the server caches nothing."""
LIMIT, GROWTH = 0.9, 1.05
"""If a prefix is found at an age above ``LIMIT`` times the capacity, the cache probably holds more. The capacity is then multiplied by
``GROWTH``."""
SWEEP = 4096
"""Number of prefixes that are remembered before a first sweep drops old prefixes. The next sweep comes at this number plus twice the number
of prefixes that are left."""
REMEMBERED = 65_536
"""Minimum number of recent prefixes whose holders are remembered. The maximum is about twice this number."""
IN_VAIN = 256
"""Prefix affinity is taken to be of no use after this number of consecutive prompts without a common beginning with other prompts, or of
consecutive answers that report no cached tokens although some were expected."""
MOST_HOLDERS = 32
"""Maximum number of sources that are remembered for a prefix. These are the sources to which the prefix was sent last."""
COMPUTED = frozenset({FailureKind.TRANSIENT, FailureKind.TIMEOUT})
"""Kinds of failure after which a server may have computed the prompt. After a failure of another kind, the server has not computed the
prompt."""


class Prefix(NamedTuple):
    """A ``Prefix`` describes the beginning of a task's prompt as nested prefixes, from the outermost to the innermost.

    Equal keys mean equal text from the beginning of the prompt, for one model.
    """

    keys: tuple[int, ...]  # a hash per nested prefix, salted by the model; at least one
    lengths: tuple[float, ...]  # characters from the beginning of the prompt to the end of each nested prefix; never decreasing
    total: float  # characters of the whole prompt
    named: bool = False  # True if the keys are groups that the caller named; False if they are hashes of blocks of text


class Expected(NamedTuple):
    """An ``Expected`` says what a request was expected to find in the prefix cache of its source when the request was sent."""

    tokens: float  # prompt tokens that are read from the cache
    computed: float  # prompt tokens that are computed
    age: float  # tokens that were computed since the innermost known prefix was used, even if it is no longer cached
    known: int  # how many of the nested prefixes were used before
    warm: int  # how many of the nested prefixes were expected to be cached
    clock: float  # tokens that the source has computed, including the tokens of this request


COLD = Expected(0.0, 0.0, 0.0, 0, 0, 0.0)
make_prefix = _new = tuple.__new__  # takes a third of the time of a normal call; this is a hot path


class PredictedCache:
    """Predicts what is in the prefix cache of one source.

    A server evicts the prefix that was used least recently. The *age* of a prefix is the number of tokens that were computed since its last
    use. A prefix is cached until its age reaches the capacity of the cache. Whenever an inner prefix is used, its outer prefixes are used
    too. So an outer prefix is never evicted before its inner prefixes.

    Args:
        capacity: number of tokens that the cache holds. With None, this number is learned from the cached tokens that answers report.
    """

    __slots__ = (
        "_cold", "_learns", "_reported", "_sent_at", "_sweep_at", "_used", "_warm", "capacity", "characters", "clock",
        "predicted_tokens",
    )  # fmt: skip

    def __init__(self, capacity: float | None = None) -> None:
        self._used: dict[int, float] = {}  # by key: the clock when the prefix was last used
        self.clock = 0.0  # tokens computed so far
        self._sent_at = 0.0  # when a request was last sent, in seconds
        self._sweep_at = SWEEP
        self.characters = CHARACTERS  # per token
        self._warm = self._cold = 0.0  # mean seconds of answers with a cached prefix, and of answers without; 0 if unknown
        self.predicted_tokens = 0.0  # expected cached tokens, summed over the answers that report cached tokens
        self.set_capacity(capacity)

    def set_capacity(self, tokens: float | None) -> None:
        """Set the number of tokens that the cache holds. With None, this number is learned."""
        self._learns = tokens is None
        self.capacity = CAPACITY if tokens is None else tokens
        self._reported = 0.0  # the last size that the server reported

    def report_capacity(self, tokens: float) -> None:
        """Record how many tokens the cache holds, as the server reports. If the capacity is learned, learning continues from there."""
        if self._learns and tokens != self._reported:
            self._reported = tokens
            self.capacity = min(max(LEAST, tokens), MOST)

    def is_warm(self, key: int) -> bool:
        """Return whether a prefix is expected to be cached."""
        used = self._used.get(key)
        return used is not None and self.clock - used < self.capacity

    def warm_since(self, key: int) -> float | None:
        """Return the clock at the last use of a prefix that is expected to be cached, else None."""
        used = self._used.get(key)
        return used if used is not None and self.clock - used < self.capacity else None

    def use(self, now: float, prefix: Prefix) -> Expected:
        """Record that a request with this prefix is sent. Returns what the request is expected to find in the cache."""
        if now - self._sent_at > IDLE:
            self.forget()
        self._sent_at = now
        keys, lengths, total, _ = prefix
        used, clock, characters = self._used, self.clock, self.characters
        known = warm = len(keys)
        while (last := used.get(keys[known - 1])) is None and known > 1:
            known -= 1
        tokens = age = 0.0
        if last is None:
            known = warm = 0
        else:
            age, warm = clock - last, known
            if age >= self.capacity:  # the innermost known prefix was evicted; perhaps an outer prefix was not
                warm = next((outer for outer in range(known - 1, 0, -1) if self.is_warm(keys[outer - 1])), 0)
            if warm:
                tokens = lengths[warm - 1] / characters
        computed = total / characters - tokens
        self.clock = clock = clock + computed
        used.update(dict.fromkeys(keys, clock))
        if len(used) > self._sweep_at:
            self._sweep()
        return _new(Expected, (tokens, computed, age, known, warm, clock))

    def failed(self, prefix: Prefix, expected: Expected, outcome: Failure | Cancelled) -> None:
        """Record that a request ended without an answer. A prefix that only this request has used is forgotten."""
        used = self._used
        for key in prefix.keys[expected.warm :]:
            if used.get(key) == expected.clock:
                del used[key]
        if isinstance(outcome, Failure) and outcome.kind not in COMPUTED:
            self.clock -= expected.computed

    def answered(self, prefix: Prefix, expected: Expected, answer: Answer, seconds: float) -> None:
        """Record that a request was answered."""
        prompt, cached = answer.prompt_tokens, answer.cached_tokens
        tokens = expected[0]
        self.clock += answer.output_tokens or 0
        if tokens:
            self._warm += WEIGHT * (seconds - self._warm) if self._warm else seconds
        else:
            self._cold += WEIGHT * (seconds - self._cold) if self._cold else seconds
        if prompt:
            self.characters += WEIGHT * (prefix[2] / prompt - self.characters)
        if cached is None:
            return
        self.predicted_tokens += tokens
        if self._learns and expected.age > SOON * self.capacity:
            self._learn(prefix, expected, cached)

    def warm_share(self) -> float:
        """Return the time of an answer whose prefix is cached, divided by the time of an answer whose prefix is not cached."""
        return min(WARM, self._warm / self._cold) if self._warm and self._cold else UNKNOWN

    def forget(self) -> None:
        """Forget all prefixes, because the source has lost its cache: it was restarted, or had no requests for long."""
        self._used.clear()

    def _learn(self, prefix: Prefix, expected: Expected, cached: int) -> None:
        """Move the capacity towards the age of a prefix that was found although it was older, or was missing although it was younger. If
        the age was just below the capacity, the capacity grows."""
        lengths, known = prefix.lengths, expected.known
        least = (lengths[known - 1] + (lengths[known - 2] if known > 1 else 0.0)) / 2 / self.characters
        capacity, age, found = self.capacity, expected.age, cached > least
        if found == (age >= capacity):
            capacity += WEIGHT * (age - capacity)
        elif found and age > LIMIT * capacity:
            capacity *= GROWTH
        self.capacity = min(max(capacity, LEAST), MOST)

    def _sweep(self) -> None:
        """Drop prefixes older than twice the capacity. Younger ones can show that the learned capacity is too small."""
        oldest = self.clock - 2 * self.capacity
        self._used = {key: then for key, then in self._used.items() if then > oldest}
        self._sweep_at = SWEEP + 2 * len(self._used)


class HasCache(Protocol):
    """A source, with the one attribute that this module uses."""

    prefix_cache: PredictedCache


S = TypeVar("S", bound=HasCache)


class Holders(Generic[S]):
    """Remembers the holders of each prefix. A holder is a source of the pool that was sent the prefix and is expected to have it cached."""

    __slots__ = ("_before", "_recent", "uncached", "unshared")

    def __init__(self) -> None:
        self.unshared = 0  # number of tasks in a row whose prompts shared nothing with prompts that were sent before
        self.uncached = 0  # number of answers in a row that reported no cached tokens although some were expected
        self._recent: dict[int, tuple[S, ...]] = {}
        self._before: dict[int, tuple[S, ...]] = {}

    def is_affinity_useful(self, prefix: Prefix | None = None) -> bool:
        """Return whether prompts share beginnings and servers cache them, as far as is known. A group named by the caller always counts."""
        return (self.unshared < IN_VAIN and self.uncached < IN_VAIN) or (prefix is not None and prefix.named)

    def add(self, prefix: Prefix, source: S, first: bool = True) -> None:
        """Record that a source was sent a request with this prefix. ``first``: it is the first request of its task."""
        recent, before = self._recent, self._before
        if first:
            outermost = prefix[0][0]
            self.unshared = 0 if outermost in recent or outermost in before else self.unshared + 1
        if len(recent) > REMEMBERED:
            self._before, self._recent = before, recent = recent, {}
        alone = (source,)
        for key in reversed(prefix[0]):
            holders = recent.get(key) or before.get(key)
            if holders is None:
                recent[key] = alone
            elif source not in holders:
                recent[key] = (*(holders if len(holders) < MOST_HOLDERS else self.of(key)), source)[-MOST_HOLDERS:]
            elif key in recent:  # then it also holds the outer prefixes
                return
            else:
                recent[key] = holders

    def of(self, key: int) -> tuple[S, ...]:
        """Return the sources that hold a prefix."""
        holders = self._recent.get(key) or self._before.get(key)
        return tuple([source for source in holders if source.prefix_cache.is_warm(key)]) if holders else ()

    def last_held(self, keys: tuple[int, ...], place: int) -> int:
        """Return the number of keys up to the innermost one that a source holds, or ``place`` if no source holds a key from there on."""
        recent, before = self._recent, self._before
        rest = keys[place:]
        if recent.keys().isdisjoint(rest) and (not before or before.keys().isdisjoint(rest)):  # usual; faster than one by one
            return place
        for end in range(len(keys), place, -1):
            if self.of(keys[end - 1]):
                return end
        return place
