"""Situations in which nothing moves, over real sockets: what a user sees names the cause. Times are shortened, so that it takes seconds."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qreward import BatchResult, DeadlineExceeded, Endpoint, Limits, NoEndpoint, QRewardClient, QueueFull, RequestTimeout, progress
from qreward.engine import driver, instrumentation
from qreward.results import Explanation, ReasonCode
from qreward.scheduler import health, why
from qreward.testing import FakeEndpoint, FakeFleet, Faults, Latency

KEY, PROMPT, SERVER = "sk-planted-key", "planted prompt", "planted text of the server"
DEADLINE = 3600.0
PATIENCE = 60.0
"""Seconds until a test gives up on what is to be shown. No test passes because of it."""
HANGS = Faults(hang=1)
FAILS = Faults(error_500=1)


def chats(count: int) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"{PROMPT} {number}"}] for number in range(count)]


async def slow_input() -> AsyncIterator[list[dict[str, str]]]:
    for number, chat in enumerate(chats(9)):
        await asyncio.sleep(60 if number == 3 else 0)
        yield chat


@dataclass
class Situation:
    """A batch in a situation, and what is said of it."""

    code: ReasonCode
    said: str
    fakes: list[FakeEndpoint] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    change: dict[str, Any] = field(default_factory=dict)  # of the endpoints
    prepare: Callable[[QRewardClient, FakeFleet, str], object] = lambda _client, _fleet, _name: None
    items: Callable[[], Any] = lambda: chats(12)
    ends: bool = False  # the items fail at once, with an error that contains ``said`` or this text
    error: str = ""
    moves: bool = False  # items end, slowly, so that nothing is logged


def situations() -> dict[str, Situation]:
    def pause(client: QRewardClient, _fleet: FakeFleet, _name: str) -> None:
        client.pause(reason="new weights")

    def mark(client: QRewardClient, _fleet: FakeFleet, name: str) -> None:
        client.mark_unhealthy(f"{name}-0")

    def kill(_client: QRewardClient, fleet: FakeFleet, name: str) -> None:
        fleet.kill(f"{name}-0")

    one, hangs = FakeEndpoint("0"), FakeEndpoint("0", faults=HANGS)
    quick = FakeEndpoint("0", latency=Latency(base=0.4))
    again = FakeEndpoint("1", faults=HANGS)
    return {
        "rate": Situation("rate_limit", "0 takes the next in ", [one], Limits(rpm=1)),
        "tokens": Situation("token_limit", "limit of 100 tokens a minute", [one], Limits(tpm=100)),
        "slots": Situation(
            "concurrency_limit",
            "0 is at its limit of 1 in flight (configured",
            [quick],
            Limits(max_concurrency=1),
            items=lambda: chats(500),
            moves=True,
        ),
        "shared": Situation("quota", "waits for its share of a limit that it shares with", [one], Limits(rpm=2, shared="local")),
        "hangs": Situation("no_answer", "0 has answered nothing for", [hangs], Limits(max_concurrency=4)),
        "flies": Situation("no_answer", "12 in flight for model-flies: flies-0 has answered nothing for", [hangs]),
        "429": Situation("cooldown", "because it turned requests away (", [FakeEndpoint("0", rpm=2, burst=1, retry_after="seconds")]),
        "hour": Situation("cooldown", "it asked for 3600 s", [FakeEndpoint("0", rpm=1 / 60, burst=1, retry_after="seconds")]),
        "breaker": Situation("out_of_service", "it answered 500", [FakeEndpoint("0", faults=FAILS), again], Limits(max_concurrency=2)),
        "dead": Situation("out_of_service", "no connection (Connect call failed", [one], prepare=kill),
        "dns": Situation("out_of_service", "no connection (", [one], change={"base_url": "http://no-such-host.invalid:8000/v1"}),
        "tls": Situation("out_of_service", "does not speak TLS", [one], change={"base_url": "https"}),
        "paused": Situation("paused", "0 is paused: new weights", [one], prepare=pause),
        "marked": Situation("no_answer", "marked-0 is marked unhealthy, until mark_healthy", [hangs, again], prepare=mark),
        "input": Situation("input", "1 batch waits for the next item of the input", [one], items=slow_input),
        "key": Situation("failing", "it answered 401", [FakeEndpoint("0", api_key="right")], ends=True, error="check api_key"),
        "model": Situation("failing", "it answered 404", [FakeEndpoint("0", models=("other",))], ends=True, error="model_names"),
    }


@dataclass
class Seen:
    why: Explanation
    stats: str
    document: str
    lines: list[str]
    batch: BatchResult[Any]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """What each situation showed. All situations run at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(driver, "EVERY", 3600.0)  # ``show`` looks for work that does not move
        patch.setattr(health, "OPEN", 3600.0)  # what is out of service stays so
        patch.setenv("QREWARD_SHARE_DIR", str(tmp_path_factory.mktemp("shared")))
        return asyncio.run(run_all())


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


async def run_all() -> dict[str, Seen]:
    log, handler = logging.getLogger("qreward"), Lines()
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    listed = situations()
    fakes = [fake.model_copy(update={"name": f"{name}-{fake.name}"}) for name, each in listed.items() for fake in each.fakes]
    async with FakeFleet(fakes) as fleet:
        found = await asyncio.gather(*(show(name, each, fleet, handler) for name, each in listed.items()))
    log.removeHandler(handler)
    log.setLevel(level)
    return dict(zip(listed, found, strict=True))


def shorten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(instrumentation, "FIRST", 1.0)
    patch.setattr(instrumentation, "GROWTH", 9.0)
    patch.setattr(instrumentation, "EVERY", 0.2)
    patch.setattr(driver, "EVERY", 0.2)
    patch.setattr(instrumentation._Seen, "__init__", _seen)
    patch.setattr(progress, "QUIET", 0.7)
    patch.setattr(why, "SILENT", 0.5)


def _seen(self: Any, ended: int, since: float, due: float = 1.0) -> None:
    self.ended, self.since, self.due = ended, since, due


def endpoint_of(name: str, situation: Situation, endpoint: Endpoint) -> Endpoint:
    change = dict(situation.change)
    if change.get("base_url") == "https":
        change["base_url"] = str(endpoint.base_url).replace("http:", "https:")
    settings = endpoint.model_dump(exclude_unset=True) | change
    settings |= {"models": (f"model-{name}",), "limits": situation.limits, "api_key": KEY}
    return Endpoint(**settings)


async def until(holds: Callable[[], bool]) -> None:
    with suppress(TimeoutError):  # the test then says what is missing
        async with asyncio.timeout(PATIENCE):
            while not holds():  # noqa: ASYNC110 - servers and timers make it true
                await asyncio.sleep(0.05)


async def show(name: str, situation: Situation, fleet: FakeFleet, handler: Lines) -> Seen:
    model = f"model-{name}"
    known = {endpoint.name: endpoint for endpoint in fleet.endpoints}
    endpoints = [endpoint_of(name, situation, known[f"{name}-{fake.name}"]) for fake in situation.fakes]
    async with QRewardClient(endpoints) as client:
        situation.prepare(client, fleet, name)
        plain: Any = "plain"
        batch = asyncio.create_task(client.batch_chat_completion(situation.items(), model=model, progress=plain, deadline=DEADLINE))

        def is_shown() -> bool:
            (found,) = client.explain(model)
            line = situation.ends or situation.moves or any(situation.said in each for each in handler.lines if f"INFO {model}:" in each)
            return line and (found.code, situation.said in found.text) == (situation.code, True)

        await until(is_shown)
        (found,) = client.explain(model)
        stats, document = str(client.stats()), client.snapshot().model_dump_json()
        engine: Any = client._runtime.engine
        engine.stalls.look(engine, engine.clock())
        answered = client.snapshot().totals.answered
        await until(lambda: not situation.moves or client.snapshot().totals.answered > answered)
        later = SimpleNamespace(
            lock=engine.lock, clock=lambda: engine.clock() + instrumentation.FIRST
        )  # without a wait, which the machine could stretch
        engine.stalls.look(later, later.clock() - instrumentation.EVERY)
        waiters: Any = list(engine.driver().waiters)
        for waiter in waiters:
            waiter._expire()
        done = await batch
    return Seen(found, stats, document, [line for line in handler.lines if model in line or f"{name}-" in line], done)


def test_each_situation_is_explained_with_its_code_and_its_numbers(seen: dict[str, Seen]) -> None:
    listed = situations()
    assert {name: each.why.code for name, each in seen.items()} == {name: each.code for name, each in listed.items()}
    assert [(name, each.why.text) for name, each in seen.items() if listed[name].said not in each.why.text] == []
    assert [name for name, each in seen.items() if f"model-{name}" not in each.why.text or not each.why.is_stuck] == []
    assert {name: (each.why.waiting, each.why.in_flight) for name, each in seen.items() if name in ("hangs", "flies", "paused")} == {
        "hangs": (8, 4), "flies": (0, 12), "paused": (12, 0),
    }  # fmt: skip


def test_the_statistics_and_the_snapshot_say_it(seen: dict[str, Seen]) -> None:
    listed = situations()
    assert [(name, each.stats) for name, each in seen.items() if listed[name].said not in each.stats] == []
    assert [name for name, each in seen.items() if listed[name].said not in each.document] == []


def test_the_progress_line_and_one_warning_say_it(seen: dict[str, Seen]) -> None:
    listed = situations()
    still = {name: each.lines for name, each in seen.items() if not listed[name].ends and not listed[name].moves}
    shown = {name: [line for line in lines if line.startswith(f"INFO model-{name}:")] for name, lines in still.items()}
    assert [(name, lines) for name, lines in shown.items() if not any(listed[name].said in line for line in lines)] == []
    warned = {name: [line for line in lines if line.startswith("WARNING nothing has ended for 1 s: ")] for name, lines in still.items()}
    assert [(name, lines) for name, lines in warned.items() if len(lines) != 1 or listed[name].said not in lines[0]] == []
    moving = [line for name, each in seen.items() if listed[name].moves for line in each.lines if "nothing has ended" in line]
    assert moving == []


def test_the_errors_of_the_items_say_it(seen: dict[str, Seen]) -> None:
    listed = situations()
    errors = {name: [result.error for result in each.batch if result.error is not None] for name, each in seen.items()}
    late = {name for name, each in listed.items() if not each.ends and name != "input"}  # the length of an async input is not known
    assert [name for name in late if not any(isinstance(error, DeadlineExceeded) for error in errors[name])] == []
    said = {name: {str(error) for error in each} for name, each in errors.items()}
    assert [(name, said[name]) for name in late if not any(listed[name].said in text for text in said[name])] == []
    failed = [name for name, each in listed.items() if each.ends]
    assert [name for name in failed if not all(listed[name].error in text for text in said[name])] == []


def test_no_key_and_no_content_is_in_anything_that_is_shown(seen: dict[str, Seen]) -> None:
    for name, each in seen.items():
        shown = "\n".join((each.why.text, each.stats, each.document, *each.lines))
        assert KEY not in shown, name
        assert PROMPT not in shown, name


# situations of other work than a batch


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    shorten(monkeypatch)
    caplog.set_level(logging.INFO, "qreward")
    return caplog


async def test_a_slow_reader_of_a_stream_is_the_reason(short: pytest.LogCaptureFixture) -> None:
    fake = FakeEndpoint("a", latency=Latency(per_token=0.0005, tokens=2000))
    async with FakeFleet([fake]) as fleet, QRewardClient(fleet.endpoints) as client:
        stream = aiter(client.stream_chat_completion(chats(1)[0], model="m"))
        await anext(stream)
        await until(lambda: any(text.startswith("nothing has ended") for text in short.messages))
        (found,) = client.explain()
        assert (found.code, found.in_flight) == ("consumer", 1)
        assert found.text.startswith("1 stream waits for the reader to take what has arrived, for ")
        assert found.text[:50] in str(client.stats())
        await stream.aclose()  # type: ignore[attr-defined]
    assert "the reader" in next(text for text in short.messages if text.startswith("nothing has ended"))


async def test_a_full_queue_and_a_timeout_say_what_holds_the_requests_up() -> None:
    async with FakeFleet([FakeEndpoint("a", faults=HANGS)]) as fleet:
        slow = fleet.endpoints[0].model_copy(update={"limits": Limits(max_concurrency=1)})
        async with QRewardClient([slow], max_queued=2, timeout=0.5) as client:
            calls = (client.chat_completion(chat, model="m") for chat in chats(5))
            errors = await asyncio.gather(*calls, return_exceptions=True)
    by_kind = {type(error): str(error) for error in errors}
    assert set(by_kind) == {QueueFull, RequestTimeout}
    assert all("a is at its limit of 1 in flight (configured)" in text for text in by_kind.values()), by_kind


async def test_a_model_without_a_route_is_explained() -> None:
    async with QRewardClient([Endpoint("http://127.0.0.1:9/v1", name="a", models=["judge-7b"])]) as client:
        (found,) = client.explain("judge-8b")
        assert found.code == "no_endpoint"
        with pytest.raises(NoEndpoint, match="judge-8b") as caught:
            await client.chat_completion(chats(1)[0], model="judge-8b")
        assert str(caught.value) == found.text


def test_a_blocked_event_loop_is_named_from_another_thread_and_logged_after_it(
    short: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrumentation, "BLOCKED", 1.0)
    ready, over, clients = threading.Event(), threading.Event(), list[QRewardClient]()

    async def work() -> None:
        async with FakeFleet([FakeEndpoint("a", faults=HANGS)]) as fleet, QRewardClient(fleet.endpoints) as client:
            clients.append(client)
            call = asyncio.create_task(client.chat_completion(chats(1)[0], model="m"))
            await asyncio.sleep(0.1)
            ready.set()
            time.sleep(2.0)  # noqa: ASYNC251 - what is tested
            over.set()
            await asyncio.sleep(0.3)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    assert ready.wait(10)
    clients[0].snapshot()
    time.sleep(1.4)
    began = time.monotonic()
    document, found = clients[0].snapshot(), clients[0].explain()
    assert time.monotonic() - began < 0.2
    assert not over.is_set()
    assert (found[0].code, document.loops[0].blocked, document.loops[0].thread) == ("event_loop", True, thread.ident)
    assert document.lag >= 1.0
    assert document.why[0].startswith("the event loop is blocked for 1.")
    thread.join(20)
    assert any(text.startswith("the event loop was blocked for ") for text in short.messages), short.messages


async def test_a_budget_that_requests_in_flight_hold_is_the_reason_and_a_spent_one_ends_the_run(
    tmp_path: Path, short: pytest.LogCaptureFixture
) -> None:
    lines = [{"messages": chat, "max_tokens": 50} for chat in chats(9)]
    async with FakeFleet([FakeEndpoint("a", faults=HANGS)]) as fleet, QRewardClient(fleet.endpoints) as client:
        given: dict[str, Any] = {"model": "m", "max_tokens": 1000, "progress": "plain"}
        run = asyncio.create_task(client.run(lines, tmp_path / "out.jsonl", **given))
        await until(lambda: any("waits for its budget" in text for text in short.messages))
        found = {each.code: each.text for each in client.explain()}
        assert "the next line of qreward run waits for its budget" in found["budget"]
        assert "of 1000 tokens spent" in found["budget"]
        assert "waits for its budget" in str(client.stats())
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
    assert any("waits for its budget" in text for text in short.messages), short.messages
    async with FakeFleet([FakeEndpoint("a")]) as fleet, QRewardClient(fleet.endpoints) as client:
        report = await client.run(lines, tmp_path / "spent.jsonl", model="m", max_tokens=300)
    assert "could pass max_cost or max_tokens" in str(report.reason)


async def test_a_full_disk_is_the_reason_of_a_run_that_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_at = os.pwrite

    def unsupported(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    def full(file: int, data: bytes, offset: int) -> int:
        if offset + len(data) > 6000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_at(file, data, offset)

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    monkeypatch.setattr(os, "pwrite", full)
    async with FakeFleet([FakeEndpoint("a")]) as fleet, QRewardClient(fleet.endpoints) as client:
        report = await client.run([{"messages": chat} for chat in chats(99)], tmp_path / "out.jsonl", model="m")
    assert "no space is left for" in str(report.reason)


async def test_no_answer_of_a_broken_server_is_quoted_in_a_snapshot_or_a_reason() -> None:
    def answer(_messages: Any) -> str:
        return SERVER * 9

    faults = ("malformed", "error_in_200", "truncated", "cut", "reset", "error_500", "error_503")
    always: Any = [{fault: 1.0} for fault in faults]
    fakes = [
        FakeEndpoint(fault, models=(fault,), responder=answer, faults=Faults(**one)) for fault, one in zip(faults, always, strict=True)
    ]
    async with FakeFleet(fakes) as fleet, QRewardClient(fleet.endpoints) as client:
        batches = [asyncio.create_task(client.batch_chat_completion(chats(4), model=fault, deadline=0.8)) for fault in faults]
        await asyncio.sleep(0.5)
        shown = f"{client.snapshot().model_dump_json()}{client.stats()}{client.explain()}"
        await asyncio.gather(*batches)
    assert "it answered 200 for model 'malformed'" in shown
    assert [planted for planted in (SERVER, PROMPT) if planted in shown] == []
