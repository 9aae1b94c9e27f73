"""One table of what may happen to a call, and the spans and points that it must leave."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from telemetry_server import MODEL, Do, Judges, Script, chat, client_of
from telemetry_tools import Seen, attributes, tree

from qreward import Hedge, Retry
from qreward.codecs.chat import ChatAnswer
from qreward.codecs.chat_stream import Event, StreamAccumulator, read_chunk
from qreward.telemetry.spans import metadata_of
from qreward.testing.virtual_time import run_in_virtual_time

Use = Callable[[Any], Awaitable[Any]]


async def ask(client: Any) -> Any:
    return await client.chat_completion(chat(), MODEL, temperature=0)


async def ask_in_vain(client: Any) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - the table says which
        await ask(client)


async def read_stream(client: Any) -> None:
    assert len([token async for token in client.stream_chat_completion(chat(), MODEL)]) == 3


async def give_up(client: Any) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ask(client)


async def ask_with_timeout(client: Any) -> None:
    with pytest.raises(TimeoutError):
        await client.chat_completion(chat(), MODEL, timeout=2)


async def run_batch(client: Any) -> None:
    assert (await client.batch_chat_completion([chat(str(number)) for number in range(3)], MODEL)).stats.ok == 3


CLIENT, INTERNAL = "CLIENT", "INTERNAL"


def call(*attempts: str, status: str = "UNSET") -> tuple[Any, ...]:
    return (f"chat {MODEL}", CLIENT, status, tuple(("attempt", INTERNAL, each, ()) for each in attempts))


def attempt(number: int, kind: str, endpoint: str, outcome: str, **more: Any) -> dict[str, Any]:
    what = {"qreward.attempt.number": number, "qreward.attempt.type": kind, "qreward.attempt.outcome": outcome}
    where = {"qreward.endpoint": endpoint, "server.address": f"{endpoint}.example", "server.port": 8000}
    return what | where | {name.replace("__", "."): value for name, value in more.items()}


WON = {"http__response__status_code": 200}
ANSWERED = {
    "gen_ai.response.id": "c1",
    "gen_ai.response.model": f"{MODEL}-0613",
    "gen_ai.response.finish_reasons": ("stop",),
    "gen_ai.usage.input_tokens": 11,
    "gen_ai.usage.output_tokens": 3,
}
WHOLE = ANSWERED | {
    "openai.response.system_fingerprint": "fp_1",
    "gen_ai.usage.cache_read.input_tokens": 4,
    "gen_ai.usage.reasoning.output_tokens": 2,
    "gen_ai.request.temperature": 0,
}


@dataclass(frozen=True)
class Case:
    """What happens, and what is to be seen of it."""

    name: str
    script: Script
    use: Use = ask
    names: str = "ab"
    settings: dict[str, Any] = field(default_factory=dict)
    tree: tuple[Any, ...] = ()
    attempts: tuple[dict[str, Any], ...] = ()
    call: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Attempts by ``type outcome``, as the metric counts them."""
    durations: dict[str | None, int] = field(default_factory=lambda: {None: 1})
    """``error.type`` -> calls, as the metric counts them."""


OK, ERROR = "UNSET", "ERROR"
FAST = Do(0.5)
FAILS = Do(0.1, 500)
CASES = [
    Case(
        "a call that goes well has one span, and none for its attempt",
        {},
        names="a",
        tree=(call(),),
        call=WHOLE | {"qreward.attempt.count": 1, "qreward.hedge.count": None, "qreward.endpoint": "a", "server.address": "a.example"},
        counts={"original won": 1},
    ),
    Case(
        "a retry",
        {"a": [FAILS, FAST]},
        names="a",
        tree=(call(ERROR, OK),),
        attempts=(
            attempt(1, "original", "a", "failed", http__response__status_code=500, error__type="500"),
            attempt(2, "retry", "a", "won", **WON),
        ),
        call=WHOLE | {"qreward.attempt.count": 2, "qreward.hedge.count": 0},
        counts={"original failed": 1, "retry won": 1},
    ),
    Case(
        "a failover",
        {"a": [Do(0.1, breaks=True)]},
        tree=(call(ERROR, OK),),
        attempts=(
            attempt(1, "original", "a", "failed", error__type="connection_error"),
            attempt(2, "retry", "b", "won", **WON),
        ),
        call=WHOLE | {"qreward.attempt.count": 2, "qreward.endpoint": "b", "server.address": "b.example"},
        counts={"original failed": 1, "retry won": 1},
    ),
    Case(
        "a hedge that wins, and the loser that is cancelled",
        {"a": [Do(60)]},
        settings={"hedge": Hedge(after=1.0)},
        tree=(call(OK, OK),),
        attempts=(attempt(1, "original", "a", "cancelled"), attempt(2, "hedge", "b", "won", **WON)),
        call=WHOLE | {"qreward.attempt.count": 2, "qreward.hedge.count": 1, "qreward.endpoint": "b"},
        counts={"original cancelled": 1, "hedge won": 1},
    ),
    Case(
        "a stream",
        {},
        read_stream,
        names="a",
        tree=(call(),),
        call=ANSWERED | {"gen_ai.request.stream": True, "gen_ai.response.time_to_first_chunk": pytest.approx(0.5)},
        counts={"original won": 1},
    ),
    Case(
        "a call that fails",
        {"a": [Do(0.1, 400)]},
        ask_in_vain,
        names="a",
        tree=(call(ERROR, status=ERROR),),
        attempts=(attempt(1, "original", "a", "failed", http__response__status_code=400, error__type="400"),),
        call={"error.type": "400", "qreward.attempt.count": 1, "server.address": "a.example"},
        counts={"original failed": 1},
        durations={"400": 1},
    ),
    Case(
        "a call that its caller gives up is no error",
        {"a": [Do(60)]},
        give_up,
        names="a",
        tree=(call(OK),),
        attempts=(attempt(1, "original", "a", "cancelled"),),
        call={"qreward.attempt.count": 1},
        counts={"original cancelled": 1},
        durations={},
    ),
    Case(
        "a call that runs out of time",
        {"a": [Do(60)]},
        ask_with_timeout,
        names="a",
        tree=(call(OK, status=ERROR),),
        attempts=(attempt(1, "original", "a", "cancelled"),),
        call={"error.type": "timeout"},
        counts={"original cancelled": 1},
        durations={"timeout": 1},
    ),
    Case(
        "a batch is its items",
        {},
        run_batch,
        tree=(call(), call(), call()),
        counts={"original won": 3},
        durations={None: 3},
    ),
]


@contextmanager
def played(case: Case) -> Iterator[Seen]:
    """What is seen of a case that has been played."""

    async def play() -> None:
        judges = Judges(case.script)
        async with client_of(
            judges, case.names, telemetry=seen.telemetry, retry=Retry(base=0.01), **{"hedge": None, **case.settings}
        ) as client:
            await case.use(client)
            await asyncio.sleep(0.01)  # losers are being stopped

    with Seen() as seen:
        run_in_virtual_time(play())
        yield seen


def counted(seen: Seen, metric: str, key: Callable[[dict[str, Any]], Any] = lambda _: "all") -> dict[Any, int]:
    """Points of a metric, by a word for their attributes."""
    counts: Counter[Any] = Counter()
    for count, point in seen.points(metric):
        counts[key(point)] += count
    return dict(counts)


def mismatches(case: Case, seen: Seen) -> Iterator[str]:
    won = sum(count for error, count in case.durations.items() if error is None)
    claims: dict[str, tuple[Any, Any]] = {
        "spans": (tree(seen.spans), list(case.tree)),
        "attempts": ([attributes(span) for span in seen.attempts()], list(case.attempts)),
        "attempts as points": (
            counted(seen, "qreward.client.attempt.duration", lambda of: f"{of['qreward.attempt.type']} {of['qreward.attempt.outcome']}"),
            case.counts,
        ),
        "calls": (counted(seen, "gen_ai.client.operation.duration", lambda of: of.get("error.type")), case.durations),
        "tokens": (
            counted(seen, "gen_ai.client.token.usage", lambda of: of["gen_ai.token.type"]),
            {"input": won, "output": won} if won else {},
        ),
        "waits": (counted(seen, "qreward.client.queue.wait_time"), {} if case.use is run_batch else {"all": 1}),
        "first chunks": (
            counted(seen, "gen_ai.client.operation.time_to_first_chunk"),
            {"all": 1} if case.use is read_stream else {},
        ),
    }
    if len(case.tree) == 1:
        found = attributes(seen.span("chat"))
        expected = ALWAYS | case.call
        claims["call"] = ({name: found.get(name) for name in expected}, expected)
    for what, (found, expected) in claims.items():
        if found != expected:
            yield f"{case.name}: {what}: {found} instead of {expected}"


ALWAYS = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": MODEL,
    "qreward.route": "*",
    "qreward.queue.wait_time": pytest.approx(0.0),
}


def test_spans_and_points_are_those_of_the_table() -> None:
    wrong: list[Any] = []
    for case in CASES:
        with played(case) as seen:
            wrong += mismatches(case, seen)
    assert wrong == []


def test_the_finish_reasons_of_a_call_are_those_of_its_choices_in_order_and_each_is_told_once() -> None:
    stream = StreamAccumulator(MODEL)
    for index, reason in ((1, "length"), (0, "stop")):
        choice = {"index": index, "delta": {"content": "a"}, "finish_reason": reason}
        chunk = read_chunk(Event(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1}}).encode()), MODEL)
        assert chunk is not None
        stream.add(chunk)
    whole = ChatAnswer(json.dumps({"choices": stream.document()["choices"][::-1]}).encode(), MODEL, "a", None)
    for answer in (stream, whole):
        assert metadata_of(answer)["gen_ai.response.finish_reasons"] == ("stop", "length")


def test_the_span_of_a_call_lasts_from_its_making_to_its_end_and_those_of_attempts_lie_where_they_were() -> None:
    with played(CASES[1]) as seen:
        whole, (first, second) = seen.span("chat"), seen.attempts()
        times = [whole.start_time, first.start_time, first.end_time, second.start_time, second.end_time, whole.end_time]
        assert times == sorted(time for time in times if time is not None)


def test_a_failed_call_says_what_went_wrong_in_words_that_are_the_same_for_all_such_calls() -> None:
    with played(next(case for case in CASES if case.name == "a call that fails")) as seen:
        span = seen.span("chat")
        assert str(span.status.description).startswith("BadRequest: The request itself is wrong, and sending it again cannot help")
