"""The workloads of the prefix benchmark: prompts made of nested parts, of which only the lengths and the names matter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from random import Random

from fakes.model_server import ModelRequest, ideal_prefill
from simulation.doors import Job

from qreward.scheduler.prefixes import Prefix

CHARACTERS = 4
"""Number of characters of a token."""
TEXT_BLOCK = 256
TEXT_BLOCKS = 16
"""``TEXT_BLOCK``: number of characters of a block of text, where prefixes are found by hashing. ``TEXT_BLOCKS``: number of blocks after
which the size of a block doubles, again and again."""

Part = tuple[str, int]
Path = tuple[Part, ...]
Draw = Callable[[float, float], int]


def stable_hash(text: str) -> int:
    """Return a hash that is the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


class PrefixJob(Job):
    """One request.

    Attributes:
        path: name and tokens of the parts of its prompt, from the outermost to the innermost.
        keys, ends: a hash of the text up to the end of each part, and the tokens up to there.
        shared: how many of the parts are groups that a caller would name.
    """

    __slots__ = ("ends", "keys", "path", "shared")

    def __init__(self, path: Path, output: int, shared: int) -> None:
        self.path, self.shared = path, shared
        self.ends = tuple(accumulate(tokens for _, tokens in path))
        self.keys = tuple(stable_hash(repr(path[: depth + 1])) for depth in range(len(path)))
        super().__init__(output, self.ends[-1])

    def request(self, handle: object = None) -> ModelRequest:
        """Return the request in the form that a model server gets."""
        return ModelRequest(self.prompt, int(self.tokens), self.keys, self.ends, handle)


def told(job: PrefixJob) -> Prefix:
    """Return the prefix of a job whose groups are named."""
    lengths = tuple(float(CHARACTERS * end) for end in job.ends[: job.shared])
    return Prefix(job.keys[: job.shared], lengths, float(CHARACTERS * job.prompt), named=True)


def found(job: PrefixJob) -> Prefix:
    """Return the prefix of a job as the client finds it: by chained hashes of blocks of its text."""
    keys: list[int] = []
    lengths: list[float] = []
    previous, read = 0, 0
    begun: list[tuple[int, int]] = []  # the parts of the present block: the text up to the end of a part, and where the block begins in it
    end = block_end(0)
    for part, tokens in zip(job.keys, job.ends, strict=True):
        first, last = read, CHARACTERS * tokens
        while read < last:
            begun.append((part, read - first))
            read = min(end, last)
            if read == end:
                previous = hash((previous, *begun))
                keys.append(previous)
                lengths.append(float(end))
                begun, end = [], block_end(end)
    return Prefix(tuple(keys), tuple(lengths), float(CHARACTERS * job.prompt))


def block_end(begin: int) -> int:
    """Return the end of the block of text that begins at a character: 256 later below 4,096, and twice as far after each doubling."""
    size = TEXT_BLOCK
    while begin >= TEXT_BLOCKS * size:
        size *= 2
    return begin + size


@dataclass(frozen=True)
class Workload:
    """A kind of batch.

    Attributes:
        name: its name for ``--workloads`` and in the tables.
        title: its description, in a line of Markdown.
        build: yields the jobs in the order in which a caller has them, group after group.
    """

    name: str
    title: str
    build: Callable[[Draw, float], Iterator[PrefixJob]]

    def jobs(self, seed: int, order: str, scale: float = 1.0) -> list[PrefixJob]:
        """Return the jobs of a seed, ``grouped`` or ``shuffled``; ``scale`` multiplies the number of groups."""
        rng = Random(f"{self.name} {seed}")
        jobs = list(self.build(lambda median, sigma: max(1, round(rng.lognormvariate(0, sigma) * median)), scale))
        if order == "shuffled":
            rng.shuffle(jobs)
        return jobs


def ideal(jobs: Iterable[PrefixJob]) -> int:
    """Return the fewest prompt tokens that must be computed for the jobs."""
    return ideal_prefill([job.request() for job in jobs])


def _graded(draw: Draw, scale: float, *, groups: int, each: int, votes: int, rubrics: int, rubric: int, answer: int) -> Iterator[PrefixJob]:
    """Yield answers to questions that are judged by a rubric. The parts of a prompt are the rubric, the question and the answer."""
    for group in range(_count(groups, scale)):
        number = group % rubrics
        head = ((f"rubric {number}", rubric), (f"question {group}", max(64, draw(1500, 0.5))))
        for place in range(each):
            text = (f"answer {place}", max(32, draw(answer, 0.6)))
            for _ in range(votes):
                yield PrefixJob((*head, text), draw(150, 0.4), 3)


def _criteria(draw: Draw, scale: float) -> Iterator[PrefixJob]:
    for group in range(_count(480, scale)):
        head = (("instructions", 300), (f"question {group}", max(64, draw(600, 0.5))), ("answer", max(64, draw(1500, 0.5))))
        for place in range(10):
            yield PrefixJob((*head, (f"criterion {place}", 100)), 1, 3)


def _documents(draw: Draw, scale: float) -> Iterator[PrefixJob]:
    for group in range(_count(120, scale)):
        head = (("instructions", 300), (f"document {group}", max(1000, draw(12000, 0.5))))
        for place in range(20):
            yield PrefixJob((*head, (f"question {place}", max(16, draw(100, 0.5)))), draw(60, 0.4), 2)


def _alone(draw: Draw, scale: float) -> Iterator[PrefixJob]:
    for group in range(_count(4800, scale)):
        yield PrefixJob(((f"text {group}", max(64, draw(2000, 0.5))),), draw(150, 0.4), 1)


def _count(groups: int, scale: float) -> int:
    return max(1, round(groups * scale))


WORKLOADS = (
    Workload("grpo", "16 answers to a question, one rubric of 1,200 tokens, 150 tokens of verdict",
             partial(_graded, groups=300, each=16, votes=1, rubrics=1, rubric=1200, answer=500)),
    Workload("rubrics", "the same with 32 rubrics of 3,000 tokens",
             partial(_graded, groups=300, each=16, votes=1, rubrics=32, rubric=3000, answer=500)),
    Workload("votes", "8 answers to a question and 3 votes on each, one rubric, 150 tokens",
             partial(_graded, groups=200, each=8, votes=3, rubrics=1, rubric=1200, answer=1500)),
    Workload("criteria", "10 criteria on one answer, a decision of one token", _criteria),
    Workload("documents", "20 questions on a document of 12,000 tokens, 60 tokens", _documents),
    Workload("nothing", "prompts of 2,000 tokens that share nothing, 150 tokens", _alone),
)  # fmt: skip
