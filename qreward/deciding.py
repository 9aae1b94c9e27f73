"""The decisions of a client: the dialect of each endpoint, and decisions with more questions than a server accepts, which are divided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import reduce
from itertools import pairwise
from math import inf
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions import MOST_KNOWN, PROBE, DecisionCodec, DecisionInput, DecisionReply, Dialect
from qreward.decisions import FoundAnswer, check_questions
from qreward.engine.background import report_error
from qreward.engine.batch import BatchWaiter
from qreward.engine.driver import LoopDriver, Single, result_of
from qreward.engine.instrumentation import LOG
from qreward.errors import BadRequest, ConfigError, InvalidResponse, QRewardError, RequestTimeout
from qreward.options import preparer, request_options
from qreward.records import AttemptRecord, added
from qreward.results import Result
from qreward.scheduler.outcome import Answer
from qreward.scheduler.pool import Pool
from qreward.scheduler.source import Source
from qreward.scheduler.task import Task
from qreward.settings.policies import Endpoint

T = TypeVar("T")

REFUSED = "refused"
"""The ``outcome`` of an attempt whose request the server rejected as wrong (400, 413, 422 or a content filter). If the input is too long,
the attempt has another ``outcome``."""
TIMEOUT = 10.0
"""Maximum seconds for the small decision that shows a dialect."""


class DialectFinder(DecisionCodec):
    """Finds the dialects of a client's endpoints. ``most`` has the largest number of questions in a request that all endpoints of a model
    accept, and ``works`` whether its servers answer with probabilities, as far as it is known."""

    def __init__(self) -> None:
        super().__init__()
        self.most: dict[str, int] = {}
        self.works: dict[str, bool] = {}
        self._asked: dict[tuple[LoopDriver, str], asyncio.Task[None]] = {}

    def changed(self) -> None:
        """Forget what is known of models, because endpoints or routes have changed."""
        self.most.clear()
        self.works.clear()

    def remember(self, endpoint: Endpoint, model: str, dialect: Dialect) -> None:
        super().remember(endpoint, model, dialect)
        self.most.clear()
        LOG.debug("endpoint %r, model %r: speaks the dialect %r of decisions", endpoint.name, model, dialect.name)

    def most_at(self, pool: Pool, model: str) -> int:
        known = self.most.get(model)
        return self.most_questions(_endpoints_of(pool), model) if known is None else known

    async def find(self, driver: LoopDriver, pool: Pool, model: str, seconds: float | None = None, *, works: bool = False) -> None:
        """Send a small decision, unless an endpoint has shown its dialect, and wait for it, at most ``seconds`` or ``TIMEOUT``. Concurrent
        calls share it. The other endpoints show their dialect with their first decision. ``works`` sends it until ``works`` is known."""
        endpoints, key = _endpoints_of(pool), (driver, model)
        if (works and model not in self.works) or not any(self.is_certain(endpoint, model) for endpoint in endpoints):
            if key not in self._asked:
                task = self._asked[key] = driver.loop.create_task(self._ask(driver, pool, model), context=Context())
                task.add_done_callback(report_error)
                task.add_done_callback(lambda _: self._asked.pop(key, None))
            await asyncio.wait([self._asked[key]], timeout=min(TIMEOUT, inf if seconds is None else seconds))
        if any(self.is_certain(endpoint, model) for endpoint in endpoints):
            if len(self.most) >= MOST_KNOWN:
                self.most.clear()
            self.most[model] = self.most_questions(endpoints, model)

    async def _ask(self, driver: LoopDriver, pool: Pool, model: str) -> None:
        waiter, options = Single(driver), request_options({}, TIMEOUT)
        result = await waiter.result(options.task(WireRequest(self, model, PROBE, {}, None), pool, waiter, 0))
        if len(self.works) >= MOST_KNOWN:
            self.works.clear()
        if result.error is None or isinstance(result.error, BadRequest | InvalidResponse):
            self.works[model] = result.ok and not result.value.errors
            LOG.info("model %r: its servers %s decisions with probabilities", model, "answer" if self.works[model] else "do not answer")


def _endpoints_of(pool: Pool) -> list[Endpoint]:
    return [cast("Endpoint", source.endpoint) for source in tuple(pool.sources)]


def divided(call: WireRequest, most: int) -> list[WireRequest]:
    """Divide a request into parts of about the same size with at most ``most`` questions each. The order of the questions is kept."""
    parts = evenly(call.inputs.questions, most)
    return [call] if len(parts) == 1 else [replace(call, inputs=call.inputs._replace(questions=part)) for part in parts]


def evenly(items: tuple[T, ...], most: int) -> list[tuple[T, ...]]:
    count = -(-len(items) // most)
    ends = [len(items) * place // count for place in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def smaller(call: WireRequest, error: QRewardError, attempts: Sequence[AttemptRecord], most: int) -> list[WireRequest]:
    """Divide a request that failed, so that in the end only the invalid question fails."""
    count = len(call.inputs.questions)
    wrong = isinstance(error, BadRequest) and (error.status_code is None or (attempts and attempts[-1].outcome == REFUSED))
    return divided(call, min(most, (count + 1) // 2)) if count > 1 and wrong else []


def joined(calls: Sequence[WireRequest], outcomes: Sequence[DecisionReply | QRewardError]) -> DecisionReply | QRewardError:
    """Join the outcomes of all parts into one decision. The questions of a failed part have the error of the part."""
    replies = [outcome for outcome in outcomes if isinstance(outcome, DecisionReply)]
    if not replies:
        return outcomes[0]
    questions = tuple(question for call in calls for question in call.inputs.questions)
    found = list[FoundAnswer | QRewardError]()
    for call, outcome in zip(calls, outcomes, strict=True):
        found += [outcome] * len(call.inputs.questions) if isinstance(outcome, QRewardError) else outcome.found
    return DecisionReply(questions, found, replies[0].model, reduce(added, [reply.usage for reply in replies]))


def decision_preparer(
    codec: DecisionCodec, given: Mapping[str, Any], params: Mapping[str, Any], model: str, min_label_mass: float, questions: object = None
) -> Callable[[Any], WireRequest]:
    """Return a function that makes the request for one item. The arguments that all items share are checked once, here."""
    if type(min_label_mass) not in (int, float) or not 0 <= min_label_mass <= 1:
        raise ConfigError(f"min_label_mass must be a number from 0 to 1, not {min_label_mass!r}")
    group: Any = given.get("group")
    of_input = (lambda inputs: group(inputs[0])) if callable(group) else group
    prepare = preparer(codec, model, params, **{**given, "group": of_input})
    checked = None if questions is None else check_questions(questions)

    def request(item: Any) -> WireRequest:
        if checked is not None:
            return prepare(DecisionInput(item, checked, min_label_mass))
        if not isinstance(item, tuple | list) or len(item) != 2:
            found = f"{len(item)} values" if isinstance(item, tuple) else f"a {type(item).__name__}"
            told = "pass questions= if all items have the same ones"
            raise BadRequest(f"without questions= an item is (input, questions), not {found}; {told}")
        return prepare(DecisionInput(item[0], check_questions(item[1]), min_label_mass))

    return request


class DividedItem:
    """Collects the results of an item that is sent in parts. A part may be divided again."""

    __slots__ = ("ended", "failed", "places")

    def __init__(self) -> None:
        self.places: dict[Task, int] = {}  # each request under way, and the place of its first question in the item
        self.ended: list[tuple[int, WireRequest, Result[Any], DecisionReply | QRewardError]] = []
        self.failed: list[AttemptRecord] = []

    def result(self, index: int) -> Result[Any]:
        """Return the result of the item. All requests of the item must have ended."""
        _, calls, results, outcomes = zip(*sorted(self.ended, key=lambda each: each[0]), strict=True)
        joint = joined(calls, outcomes)
        last = max(results, key=lambda each: (each.ok, each.latency))  # the last attempt of this result is the last attempt of the item
        others = [attempt for each in results if each is not last for attempt in each.attempts]
        trail = (*self.failed, *others, *(last.attempts[:-1] if last.ok else last.attempts))
        queued = min(each.queued for each in results)
        reply, error = (None, joint) if isinstance(joint, QRewardError) else (joint, None)
        return Result(index, reply, error, last.endpoint, last.latency if last.ok else 0.0, queued, trail)


class DecisionBatch(BatchWaiter):
    """A batch of decisions. ``most`` returns the largest number of questions in a request. The deadline of a batch that is one call is the
    timeout of this call."""

    _items_at_once = 1
    _is_one_request = False

    def __init__(self, *args: Any, most: Callable[[], int], is_call: bool = False) -> None:
        super().__init__(*args)
        self._most, self._is_call = most, is_call
        self._divided: dict[int, DividedItem] = {}  # by index

    def _late(self, why: str) -> QRewardError:
        return RequestTimeout(f"no answer within the timeout of {self.deadline:g} s; {why}") if self._is_call else super()._late(why)

    def _queue_item(self, index: int, payload: WireRequest) -> None:
        calls = divided(payload, self._most())
        if len(calls) == 1:
            super()._queue_item(index, payload)
            return
        feed = self._feed
        for task in self._tasks(index, 0, calls, self._request_options.timeout):
            feed.add(task)
        if feed.left is not None:
            with self.driver.engine.lock:
                feed.left += len(calls) - 1

    def _tasks(self, index: int, place: int, calls: list[WireRequest], timeout: float | None) -> list[Task]:
        item, tasks = self._divided.setdefault(index, DividedItem()), []
        for call in calls:
            task = self._request_options._replace(timeout=timeout).task(call, self._pool, self, index)
            self._live[task] = None
            item.places[task] = place
            place += len(call.inputs.questions)
            tasks.append(task)
        return tasks

    def finish(self, task: Task, outcome: Answer | QRewardError, source: Source | None, seconds: float) -> None:
        self._live.pop(task, None)
        result = result_of(task, outcome, source, seconds)
        if result.error is None or not self._send_again(task, result):
            self._end_task(task, result, outcome.response if isinstance(outcome, Answer) else None)
        self._end_if_done()

    def _send_again(self, task: Task, result: Result[Any]) -> bool:
        """Divide a failed request and send its parts, if an invalid question or the number of questions may be the cause."""
        assert result.error is not None
        if self._ending or self._error is not None:
            return False
        calls = smaller(task.payload, result.error, result.attempts, self._most())
        if not calls:
            return False
        self.tallies.add(result)
        item = self._divided.setdefault(task.index, DividedItem())
        item.failed += result.attempts
        place = item.places.pop(task, 0)
        left = None if task.deadline == inf else max(task.deadline - self.driver.engine.clock(), 1e-3)
        self.driver.refill(self._feed, self._tasks(task.index, place, calls, left))
        return True

    def _end_task(self, task: Task, result: Result[Any], reply: DecisionReply | None = None) -> None:
        self.tallies.add(result)
        if (item := self._divided.get(task.index)) is not None:
            item.ended.append((item.places.pop(task), task.payload, result, reply or cast("QRewardError", result.error)))
            if item.places:
                return
            result = self._divided.pop(task.index).result(task.index)
        self._settle(result)
