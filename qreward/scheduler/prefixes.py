"""Predicts which prefixes of prompts are in the prefix cache of each source, and which waiting task a source takes because of it.

Model servers keep the attention state of prompts that they have computed (vLLM's automatic prefix caching, SGLang's RadixAttention, prompt
caching of hosted APIs). A prompt that begins like an earlier prompt at the same server costs the server less time. ``PredictedCache``
predicts the cache of one source. ``Holders`` says which sources of a pool hold a prefix. ``AffineQueue`` keeps waiting tasks, of which each
source takes the one that its prefix cache suits best. This module does not depend on messages or hashing.

Tasks whose prompts begin alike form a group. Groups are nested: for example, the group of a rubric contains the groups of its questions. A
source *holds* a group while the prefix of the group is expected to be in the cache of the source. A group that no source holds is *cold*. A
source chooses among the oldest ``look_ahead`` tasks:

1. If the source holds groups with tasks, it takes a task of the most deeply nested of those that it used last. Of equally nested groups,
   it chooses the group that it used last. If the chosen group contains cold groups, the tasks of the cold groups are taken first.
2. If the source holds no group with tasks, it takes a task of the cold group that saves the most text, of the oldest ones. A group saves
   text because the common prefix is computed only once. The saved text is estimated as the length of the prefix times the number of tasks
   and inner groups.
3. If there is no cold group, the source takes a task without a group.
4. If there is no task without a group, the source takes a task of a large group that other sources hold, first of its cold groups.

So no source is idle while tasks wait, and a source computes a prefix that other sources hold only if it has no other task to take, or if a
task has waited long. If n tasks are before a task when it arrives, at most 2 n + ``look_ahead`` other tasks are sent before it. If no two
tasks share a prefix, tasks are taken in the order of arrival.

A group exists while one of its tasks waits. What sources hold outlives it (``Holders``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from qreward.scheduler.outcome import Answer, Cancelled, Failure, FailureKind

if TYPE_CHECKING:
    from qreward.scheduler.source import Source
    from qreward.scheduler.task import Task

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
"""Number of keys of recent tasks at which the older half of them is forgotten. Holders are remembered of twice as many."""
IN_VAIN = 256
"""Prefix affinity is taken to be of no use after this number of consecutive prompts without a common beginning with other prompts, or of
consecutive answers that report no cached tokens although some were expected."""
MOST_HOLDERS = 32
"""Maximum number of sources that are remembered for a prefix. These are the sources to which the prefix was sent last."""
COMPUTED = frozenset({FailureKind.TRANSIENT, FailureKind.TIMEOUT})
"""Kinds of failure after which a server may have computed the prompt. After a failure of another kind, the server has not computed the
prompt."""


class Prefix(msgspec.Struct, frozen=True, gc=False):
    """A ``Prefix`` describes the beginning of a task's prompt as nested prefixes, from the outermost to the innermost.

    Equal keys mean equal text from the beginning of the prompt, for one model.
    """

    keys: tuple[int, ...]  # a hash per nested prefix, salted by the model; at least one
    lengths: tuple[float, ...]  # characters from the beginning of the prompt to the end of each nested prefix; never decreasing
    total: float  # characters of the whole prompt
    named: bool = False  # True if the keys are groups that the caller named; False if they are hashes of blocks of text


class Expected(msgspec.Struct, frozen=True, gc=False):
    """An ``Expected`` says what a request was expected to find in the prefix cache of its source when the request was sent."""

    tokens: float  # prompt tokens that are read from the cache
    computed: float  # prompt tokens that are computed
    age: float  # tokens that were computed since the innermost known prefix was used, even if it is no longer cached
    known: int  # how many of the nested prefixes were used before
    warm: int  # how many of the nested prefixes were expected to be cached
    clock: float  # tokens that the source has computed, including the tokens of this request


COLD = Expected(0.0, 0.0, 0.0, 0, 0, 0.0)


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
        keys, lengths = prefix.keys, prefix.lengths
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
        computed = prefix.total / characters - tokens
        self.clock = clock = clock + computed
        used.update(dict.fromkeys(keys, clock))
        if len(used) > self._sweep_at:
            self._sweep()
        return Expected(tokens, computed, age, known, warm, clock)

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
        tokens = expected.tokens
        self.clock += answer.output_tokens or 0
        if tokens:
            self._warm += WEIGHT * (seconds - self._warm) if self._warm else seconds
        else:
            self._cold += WEIGHT * (seconds - self._cold) if self._cold else seconds
        if prompt:
            self.characters += WEIGHT * (prefix.total / prompt - self.characters)
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


class Holders:
    """Remembers the holders of each prefix. A holder is a source of the pool that was sent the prefix and is expected to have it cached."""

    __slots__ = ("_before", "_recent", "uncached", "unshared")

    def __init__(self) -> None:
        self.unshared = 0  # number of tasks in a row whose prompts shared nothing with prompts that were sent before
        self.uncached = 0  # number of answers in a row that reported no cached tokens although some were expected
        self._recent: dict[int, tuple[Source, ...]] = {}  # by key
        self._before: dict[int, tuple[Source, ...]] = {}  # those that were used before the recent ones

    def is_affinity_useful(self, prefix: Prefix | None = None) -> bool:
        """Return whether prompts share beginnings and servers cache them, as far as is known. A group named by the caller always counts."""
        return (self.unshared < IN_VAIN and self.uncached < IN_VAIN) or (prefix is not None and prefix.named)

    def add(self, prefix: Prefix, source: Source, first: bool = True) -> None:
        """Record that a source was sent a request with this prefix. ``first``: it is the first request of its task."""
        if len(self._recent) > REMEMBERED:
            self._before, self._recent = self._recent, {}
        recent, before, keys = self._recent, self._before, prefix.keys
        outermost = recent.get(keys[0]) or before.get(keys[0])
        if outermost:
            recent[keys[0]] = outermost
        if first:
            self.unshared = 0 if outermost else self.unshared + 1
        alone = (source,)
        for key in reversed(keys):
            holders = recent.get(key) or before.get(key)
            if holders is None:
                recent[key] = alone
            elif source in holders:  # then it also holds the outer prefixes
                recent[key] = holders
                return
            else:
                recent[key] = (*(holders if len(holders) < MOST_HOLDERS else self.of(key)), source)[-MOST_HOLDERS:]

    def of(self, key: int) -> tuple[Source, ...]:
        """Return the sources that hold a prefix."""
        holders = self._recent.get(key) or self._before.get(key)
        return tuple([source for source in holders if source.prefix_cache.is_warm(key)]) if holders else ()

    def last_held(self, keys: tuple[int, ...], place: int) -> int:
        """Return the number of keys up to the innermost one that a source holds, or ``place`` if no source holds a key from there on."""
        rest = keys[place:]
        if self._recent.keys().isdisjoint(rest) and self._before.keys().isdisjoint(rest):  # usual; faster than one by one
            return place
        for end in range(len(keys), place, -1):
            if self.of(keys[end - 1]):
                return end
        return place


COMPARED = 32
"""Number of groups that are compared when a source leaves its group: of those that it holds the ones that it used last, of others the
oldest ones. With 16, the single calls of one workload took 4 % longer; 64 gained nothing (simulated)."""
BATCH = 16
"""Divisor of the look-ahead. The queue sorts more tasks into groups only when the number of sorted tasks that wait has fallen below the
look-ahead by more than the look-ahead divided by this number. So several tasks are sorted together, which costs less per task."""
SLICE = 256
"""Maximum number of tasks that are sorted in one call. A longer call would delay requests."""
SEVERAL = -1
"""Stands for the position of a task if several tasks had a key."""
Groups = OrderedDict["Group", None]


class Group:
    """A group holds the waiting tasks with a common prefix. Tasks that share a longer prefix are in inner groups."""

    __slots__ = ("cold", "depth", "holders", "inner", "key", "length", "listed", "parent", "tasks")

    def __init__(self, key: int, length: float, depth: int, parent: Group | None) -> None:
        self.key, self.length, self.parent = key, length, parent
        self.depth = depth  # number of keys of its prefix
        self.tasks: deque[Task] = deque()  # tasks that are in no inner group; the first one waits, later ones may have left
        self.inner = 0  # number of inner groups
        self.cold: Groups = OrderedDict()  # the cold inner groups
        self.holders: dict[Source, None] = {}  # the sources that held this group when they last checked
        self.listed: Groups = self.cold  # the list in which sources that do not hold this group find it

    def has_work(self) -> bool:
        """Return whether a source that holds this group would find a task: a task of the group itself, or of a cold inner group."""
        return bool(self.tasks or self.cold)

    def saves(self) -> float:
        return (len(self.tasks) + self.inner) * self.length


class AffineQueue:
    """Keeps waiting tasks of one batch or tenant in the order of arrival. A source may take a later task by prefix affinity."""

    __slots__ = (
        "_ahead", "_current", "_formed", "_grouped", "_groups", "_head", "_held", "_left", "_line", "_of_others", "_root",
        "_seen", "_ungrouped", "append", "extend",
    )  # fmt: skip

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._ahead: deque[Task] = deque()  # tasks that go before all other tasks
        self._line: list[Task | None] = []  # the tasks that are sorted into groups, oldest first; None for a task that has left
        self._head = 0  # index in ``_line``; all tasks before this index have left
        self._grouped = self._left = 0  # number of tasks that were ever sorted into groups, and number of these that have left
        self._ungrouped: deque[Task] = deque(tasks)  # younger tasks, which are not sorted yet
        self._root: Group = Group(0, 0.0, 0, None)  # root of the tree of groups; its tasks are the tasks without a group
        self._groups: dict[int, Group] = {}  # by key
        self._formed: set[int] = set()  # keys of the groups that existed so far; they exist again around new inner groups
        self._current: dict[Source, Group] = {}  # source -> the group from which it took last
        self._held: dict[Source, Groups] = {}  # source -> the groups that it holds, the one used last at the end
        self._of_others: Groups = OrderedDict()  # groups that some source holds
        self._seen: dict[int, int] = {}  # key -> position of the only task that had it, or SEVERAL
        self.append = self._ungrouped.append
        self.extend = self._ungrouped.extend

    # in order of arrival

    def appendleft(self, task: Task) -> None:
        self._ahead.appendleft(task)

    def first(self) -> Task | None:
        if self._ahead:
            return self._ahead[0]
        if self._grouped > self._left:
            return self._oldest()
        return self._ungrouped[0] if self._ungrouped else None

    def popleft(self) -> Task:
        if self._ahead or self._grouped == self._left:
            return (self._ahead or self._ungrouped).popleft()
        task = self._oldest()
        self.discard(task)
        return task

    def discard(self, task: Task) -> None:
        group = task.group
        if group is None:
            return
        task.group = None
        self._line[task.position - self._grouped] = None
        self._left += 1
        self._tidy(group)

    def _tidy(self, group: Group) -> None:
        """Drop tasks that have left from the head of a group. Forget the group, and the groups around it, if nothing of it waits."""
        tasks = group.tasks
        while tasks and tasks[0].group is not group:
            tasks.popleft()
        while (parent := group.parent) is not None and not (group.tasks or group.inner):
            del self._groups[group.key], group.listed[group]
            for source in group.holders:
                del self._held[source][group]
            parent.inner -= 1
            group = parent

    def clear(self) -> None:
        for task in self._in_groups():
            task.group = None
        self.__init__()  # type: ignore[misc]

    def keep(self, tasks: list[Task]) -> None:
        """Keep only the given tasks. They must be tasks of this queue, in the order of this queue."""
        self.clear()
        self.extend(tasks)

    def __iter__(self) -> Iterator[Task]:
        return chain(self._ahead, self._in_groups(), self._ungrouped)

    def __len__(self) -> int:
        return len(self._ahead) + self._grouped - self._left + len(self._ungrouped)

    def __bool__(self) -> bool:
        return bool(self._ungrouped or self._grouped > self._left or self._ahead)

    def _in_groups(self) -> Iterator[Task]:
        return (task for task in islice(self._line, self._head, None) if task is not None)

    def _oldest(self) -> Task:
        line, head = self._line, self._head
        while (task := line[head]) is None:
            head += 1
        self._head = head
        return task

    # by prefix affinity

    def take(self, source: Source, look_ahead: int, holders: Holders) -> Task:
        """Remove and return the task that a source should take among the ``look_ahead`` oldest ones. The queue must not be empty."""
        if self._ahead or not look_ahead:
            return self.popleft()
        ungrouped, waiting = self._ungrouped, self._grouped - self._left
        if not waiting:
            task = ungrouped[0]
            if len(ungrouped) == 1 or task.prefix is None or not holders.is_affinity_useful(task.prefix):  # no choice
                return ungrouped.popleft()
        if ungrouped and waiting < look_ahead - look_ahead // BATCH:
            self.form_groups(look_ahead, holders)
        task = self._line[self._head] or self._oldest()
        group = task.group
        passed = self._left - task.position  # upper bound of the number of younger tasks that have left before this task
        if passed >= task.slack or (2 * passed >= task.slack and source in group.holders and source.prefix_cache.is_warm(group.key)):
            self._join(group, source)
        else:
            group = self._current.get(source)
            if group is None or group.cold or not group.tasks:  # otherwise it stays with its group
                group = self._choose(source)
            task = group.tasks[0]
        self.discard(task)
        return task

    def _choose(self, source: Source) -> Group:
        """Return the group from which a source takes from now on. This group has tasks of its own."""
        group = self._held_group(source) or self._root
        if not group.has_work():  # each group with work is held by other sources
            others = islice((group for group in self._of_others if group.has_work()), COMPARED)
            group = max(others, key=lambda group: (bool(group.cold), len(group.tasks) + group.inner))
        while group.cold:
            group = max(islice(group.cold, COMPARED), key=Group.saves)
        self._join(group, source)
        return group

    def _join(self, group: Group, source: Source) -> None:
        if group.parent is not None:
            self._current[source] = group
            self._hold(group, source)

    def _held_group(self, source: Source) -> Group | None:
        """Return the group with work that a source holds and should take from. Of its groups it has lost some."""
        held, lost = self._held.get(source), []
        best, depth, at = None, 0, 0.0
        for group in islice(reversed(held), COMPARED) if held else ():
            if group.depth >= depth and (group.tasks or group.cold):
                used = source.prefix_cache.warm_since(group.key)
                if used is None:
                    lost.append(group)
                elif group.depth > depth or used > at:
                    best, depth, at = group, group.depth, used
        for group in reversed(lost):  # inner ones first
            if len(group.cold) == group.inner:  # else the list in which it is found would hide inner groups that are listed as held
                del self._held[source][group], group.holders[source]
                self._list(group)
        return best

    # the tree of groups

    def form_groups(self, look_ahead: int, holders: Holders) -> None:
        """Sort some of the oldest unsorted tasks into groups, unless no sorted task waits and the oldest one needs no group."""
        ungrouped, position = self._ungrouped, self._grouped
        waiting = position - self._left
        if not ungrouped or not look_ahead:
            return
        prefix = ungrouped[0].prefix
        if (prefix is None and not waiting) or not holders.is_affinity_useful(prefix):
            return
        line, groups = self._line, self._groups
        if 2 * self._head > len(line) or not waiting:
            del line[: self._head if waiting else None]
            self._head = 0
        slack = waiting + look_ahead
        for _ in range(min(SLICE, len(ungrouped), look_ahead - waiting)):
            task = ungrouped.popleft()
            prefix = task.prefix
            line.append(task)
            task.position = position
            task.slack = slack
            position += 1
            slack += 1
            group = self._root if prefix is None else groups.get(prefix.keys[-1]) or self._find_group(task, prefix, holders)
            task.group = group
            group.tasks.append(task)
        self._grouped = position

    def _find_group(self, task: Task, prefix: Prefix, holders: Holders) -> Group:
        """Return the group of a task: its longest prefix that another task has had, or that a source holds.

        If the only other task with this prefix still waits, it is moved to the group.
        """
        keys = prefix.keys
        seen, other = self._shared(keys, task.position)
        held = holders.last_held(keys, seen)
        outer = group = self._root
        for shared in (seen, held):
            if shared:
                outer, group = group, self._groups.get(keys[shared - 1]) or self._add_group(prefix, shared, holders)
            if shared == seen and other is not None and other.group.depth < shared:
                self._move(other, group)
        if outer is not group:  # if the inner group was there before, the outer one may be empty
            self._tidy(outer)
        return group

    def _shared(self, keys: tuple[int, ...], position: int) -> tuple[int, Task | None]:
        """Return how many keys of the task at ``position`` other tasks have had, and the task that alone had the last one, if it waits."""
        seen = self._seen
        if len(seen) > REMEMBERED:
            seen = self._seen = dict(islice(seen.items(), len(seen) // 2, None))
            self._formed.intersection_update(seen)
        shared, at = 0, SEVERAL
        if not seen.keys().isdisjoint(keys):  # unusual; faster than one by one
            shared = next(place for place in range(len(keys), 0, -1) if keys[place - 1] in seen)
            at = seen[keys[shared - 1]]
            seen.update(dict.fromkeys(keys[:shared], SEVERAL))
        seen.update(dict.fromkeys(keys[shared:], position))
        age = position - at + 1  # the task at ``position`` is the last one of the line
        return shared, self._line[-age] if shared and at != SEVERAL and age <= len(self._line) else None

    def _move(self, task: Task, group: Group) -> None:
        before, task.group = task.group, group
        group.tasks.append(task)
        self._tidy(before)

    def _add_group(self, prefix: Prefix, blocks: int, holders: Holders) -> Group:
        """Add the group of ``blocks`` keys of a prefix, and those around it that were groups before."""
        keys, groups, formed = prefix.keys, self._groups, self._formed
        outer = next((count for count in range(blocks - 1, 0, -1) if keys[count - 1] in groups), 0)
        group = groups[keys[outer - 1]] if outer else self._root
        between = () if formed.isdisjoint(keys[outer : blocks - 1]) else range(outer + 1, blocks)
        for count in (*between, blocks):
            key, parent = keys[count - 1], group
            if count < blocks and (key not in formed or key in groups or key == keys[blocks - 1]):  # keys may be equal by chance
                continue
            group = groups[key] = Group(key, prefix.lengths[count - 1], count, parent)
            formed.add(key)
            parent.inner += 1
            parent.cold[group] = None
            group.listed = parent.cold
            for source in holders.of(key):
                self._hold(group, source)
        return group

    def _hold(self, group: Group, source: Source) -> None:
        """Record that a source holds a group and the groups around it, and used them last."""
        held = self._held.setdefault(source, OrderedDict())
        while (parent := group.parent) is not None:
            if source in group.holders:
                held.move_to_end(group)
            else:
                group.holders[source] = held[group] = None
                self._list(group)
            group = parent

    def _list(self, group: Group) -> None:
        """Enter a group in the list where sources look for it that do not hold it."""
        assert group.parent is not None
        listed = self._of_others if group.holders else group.parent.cold
        if listed is not group.listed:
            del group.listed[group]
            listed[group] = None
            group.listed = listed
