"""One simulated server: admission control, processing, and faults. It receives attempts and reports their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from qreward.errors import ConnectionFailed, InvalidResponse, RateLimited, ServerError
from qreward.scheduler.outcome import Answer, Failure, FailureKind, Outcome, RateLimitInfo
from qreward.scheduler.task import Attempt
from simulation.agenda import Agenda
from simulation.doors import Away, Cap, Door, Job, Stray
from simulation.engine import make_engine
from simulation.specs import Spec
from simulation.steps import Walk

Report = Callable[[Attempt, Outcome], None]

NO_ROOM = RateLimited("no room", status_code=503)
BROKE = Failure(FailureKind.TRANSIENT, ServerError("it broke", status_code=500))
RESET = Failure(FailureKind.TRANSIENT, ConnectionFailed("connection reset"))
UNREADABLE = Failure(FailureKind.TRANSIENT, InvalidResponse("the JSON is cut off"))
NOBODY = Failure(FailureKind.UNREACHABLE, ConnectionFailed("no connection within 5 s"))


class Server:
    """A simulated server.

    Args:
        agenda: the event queue.
        spec: its parameters, after ``drawn``.
        rng: random generator of its faults.
        report: called with each attempt and its outcome.

    Attributes:
        held: admitted requests that are not finished, with the failure in which they will end, or None.
    """

    def __init__(self, agenda: Agenda, spec: Spec, rng: Random, report: Report) -> None:
        self.spec = spec
        self.held: dict[Attempt, Outcome | None] = {}
        self._agenda, self._rng, self._report = agenda, rng, report
        self._doors, self.rates = doors(spec, rng), [rate.door() for rate in spec.rates]
        self._doors += self.rates
        self._told = {rate.unit: door for rate, door in zip(spec.rates, self.rates, strict=True) if rate.told}
        self._said: dict[Attempt, RateLimitInfo] = {}  # reported to admitted requests, as of their admission
        self._charged = [door for rate, door in zip(spec.rates, self.rates, strict=True) if rate.used]
        self._engine = make_engine(agenda, spec.law, self._done)
        self._prefill = spec.prefill
        self._faulty = spec.resets + spec.broken + spec.hangs + spec.sudden > 0
        if spec.dead is not None:
            agenda.at(spec.dead[0], self._die)

    def receive(self, attempt: Attempt) -> None:
        """Receive a request."""
        agenda, job, held = self._agenda, attempt.task.payload, self.held
        now, spec = agenda.now, self.spec
        if spec.dead is not None and spec.dead[0] <= now < spec.dead[1]:
            agenda.at(now + spec.dead_after, self._say, (attempt, NOBODY))
            return
        for door in self._doors:
            if door.refuses(now, len(held), job):
                agenda.at(now + spec.reject_after, self._say, (attempt, refusal(door.hint(now, job), self._says())))
                return
        for door in self.rates:
            door.admit(now, job)
        if self._faulty or job.poison:
            self._try(attempt, job)
        else:
            self._work(attempt, job, 1.0, None)

    def stop(self, attempt: Attempt) -> None:
        """Drop a request, because the client has closed the connection."""
        if attempt in self.held:
            del self.held[attempt]
            self._said.pop(attempt, None)
            self._engine.stop(attempt)

    def useful(self) -> float:
        """Work done until now that was not wasted."""
        return self._engine.delivered() - self._engine.wasted

    def _try(self, attempt: Attempt, job: Job) -> None:
        spec, chance = self.spec, self._rng.random()
        if job.poison == 2:
            self._work(attempt, job, 1.0, UNREADABLE)
        elif chance < spec.sudden or (job.poison and chance < 0.5):
            self._agenda.at(self._agenda.now + spec.sudden_after, self._say, (attempt, BROKE))
        elif chance < (at := spec.sudden + spec.hangs) or job.poison:
            self.held[attempt] = None
        elif chance < (at := at + spec.resets):
            self._work(attempt, job, self._rng.random(), RESET)
        elif chance < at + spec.broken:
            self._work(attempt, job, 1.0, UNREADABLE)
        else:
            self._work(attempt, job, 1.0, None)

    def _work(self, attempt: Attempt, job: Job, share: float, trouble: Failure | None) -> None:
        self.held[attempt] = trouble
        if (limits := self._says()) is not None:
            self._said[attempt] = limits
        self._engine.start(attempt, (job.tokens + self._prefill) * share)

    def _done(self, attempt: Attempt) -> None:
        outcome, job, limits = self.held.pop(attempt), attempt.task.payload, self._said.pop(attempt, None)
        if outcome is None:
            prompt, tokens = (job.prompt, max(1, round(job.tokens))) if self.spec.usage else (None, None)
            outcome = Answer(None, prompt, tokens, limits)
        else:
            self._engine.wasted += job.tokens + self._prefill
        for door in self._charged:
            door.settle(self._agenda.now, job)
        self._report(attempt, outcome)

    def _says(self) -> RateLimitInfo | None:
        now = self._agenda.now
        return RateLimitInfo(**{unit: door.says(now) for unit, door in self._told.items()}) if self._told else None

    def _die(self, _: None) -> None:
        for attempt in list(self.held):
            self.stop(attempt)

    def _say(self, said: tuple[Attempt, Failure]) -> None:
        self._report(*said)


def refusal(hint: float | None, limits: RateLimitInfo | None) -> Failure:
    """Return a rejection, with ``hint`` as ``Retry-After`` in seconds, or without one."""
    return Failure(FailureKind.OVERLOADED, NO_ROOM, retry_after=hint, limits=limits)


def doors(spec: Spec, rng: Random) -> list[Door]:
    """Return all doors of a server except its rate limits."""
    found: list[Door] = []
    if spec.away is not None:
        found.append(Away(*spec.away))
    if spec.stray:
        found.append(Stray(spec.stray, rng))
    if spec.cap is not None:
        assert not isinstance(spec.cap, Walk), "drawn() first"
        found.append(Cap(spec.cap, spec.cap_hint))
    return found
