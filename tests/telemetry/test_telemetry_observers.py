"""Observers hear each event of a call, in order, and harm nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from shared_tools import each
from telemetry_server import MODEL, Do, Judges, chat, client_of
from telemetry_tools import Seen

from qreward import Hedge, QRewardClient, QRewardError, QueueFull, RequestTimeout, Retry
from qreward.observers import AttemptEnded, CallEnded, CallStarted, MetricsCallback, Observer


class Diary(Observer):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def call_started(self, event: Any) -> None:
        self.heard.append(event)

    attempt_started = first_chunk = attempt_ended = call_ended = call_started

    def words(self) -> list[str]:
        """The events in a few words each."""
        return [_words(event) for event in self.heard]


def _words(event: Any) -> str:
    kind = type(event).__name__
    if kind in ("AttemptStarted", "AttemptEnded"):
        return " ".join([kind, str(event.number), event.type, event.endpoint, getattr(event, "outcome", "")]).strip()
    return f"{kind} {event.outcome}" if kind == "CallEnded" else kind


async def hear(use: Any, script: Any = None, names: str = "ab", **settings: Any) -> Diary:
    """What an observer hears of one use of a client that has no telemetry."""
    diary = Diary()
    given = {"telemetry": None, "observers": [diary], "hedge": None, "retry": Retry(base=0.01), **settings}
    async with client_of(Judges(script), names, **given) as client:
        await use(client)
        await asyncio.sleep(0.01)
    return diary


async def ask(client: Any) -> None:
    await client.chat_completion(chat(), MODEL)


async def test_a_failover_is_heard_attempt_by_attempt() -> None:
    diary = await hear(ask, {"a": [Do(0.1, 500)]})
    assert diary.words() == [
        "CallStarted",
        "AttemptStarted 1 original a",
        "AttemptEnded 1 original a failed",
        "AttemptStarted 2 retry b",
        "AttemptEnded 2 retry b won",
        "CallEnded ok",
    ]
    started, failed, ended = diary.heard[0], diary.heard[2], diary.heard[-1]
    assert len({event.call for event in diary.heard}) == 1
    assert (started.operation, started.model, started.route, started.streamed) == ("chat", MODEL, "*", False)
    assert (failed.status_code, type(failed.error).__name__, failed.seconds) == (500, "ServerError", pytest.approx(0.1))
    assert (ended.endpoint, ended.attempts, ended.hedges, ended.prompt_tokens, ended.completion_tokens) == ("b", 2, 0, 11, 3)
    assert (ended.seconds, ended.queued, ended.error) == (pytest.approx(0.6), pytest.approx(0.0), None)


async def test_each_of_several_observers_hears_everything_also_beside_telemetry() -> None:
    diaries = [Diary(), Diary()]
    with Seen() as seen:
        async with client_of(Judges(None), "a", telemetry=seen.telemetry, observers=diaries) as client:
            await ask(client)
    for diary in diaries:
        assert diary.words() == ["CallStarted", "AttemptStarted 1 original a", "AttemptEnded 1 original a won", "CallEnded ok"]


async def test_hedges_and_the_first_piece_of_a_stream_are_heard() -> None:
    async def read(client: Any) -> None:
        await client.stream_chat_completion(chat(), MODEL).final()

    assert (await hear(ask, {"a": [Do(60)]}, hedge=Hedge(after=1.0))).words() == [
        "CallStarted",
        "AttemptStarted 1 original a",
        "AttemptStarted 2 hedge b",
        "AttemptEnded 2 hedge b won",
        "CallEnded ok",
        "AttemptEnded 1 original a cancelled",
    ]
    diary = await hear(read, names="a")
    assert diary.words() == ["CallStarted", "AttemptStarted 1 original a", "FirstChunk", "AttemptEnded 1 original a won", "CallEnded ok"]
    assert diary.heard[2].seconds == pytest.approx(0.5)


async def test_each_item_of_a_batch_is_a_call_and_what_a_deadline_cuts_off_has_failed() -> None:
    async def batch(client: Any) -> None:
        await client.batch_chat_completion([chat(str(number)) for number in range(12)], MODEL, deadline=1.2)

    diary = await hear(batch, names="a")
    ended = [event for event in diary.heard if isinstance(event, CallEnded)]
    started = [event for event in diary.heard if isinstance(event, CallStarted)]
    assert len({event.call for event in ended}) == len(ended) == len(started) == 12
    assert sorted(event.outcome for event in ended) == ["failed"] * 4 + ["ok"] * 8
    assert {type(event.error).__name__ for event in ended if event.error} == {"DeadlineExceeded"}


async def test_a_call_that_is_given_up_is_cancelled_and_one_that_the_client_drops_has_failed() -> None:
    async def leave(client: Any) -> None:
        given_up = asyncio.ensure_future(client.chat_completion(chat(), MODEL))
        dropped = asyncio.ensure_future(client.chat_completion(chat(), MODEL))
        await asyncio.sleep(0.1)
        given_up.cancel()
        await asyncio.sleep(0.1)
        await client.aclose()
        await asyncio.gather(given_up, dropped, return_exceptions=True)

    diary = await hear(leave, {"a": [Do(60)]}, names="a")
    ended = [event for event in diary.heard if isinstance(event, CallEnded)]
    assert [(event.outcome, type(event.error).__name__) for event in ended] == [("cancelled", "NoneType"), ("failed", "ClientClosed")]
    assert [event.outcome for event in diary.heard if isinstance(event, AttemptEnded)] == ["cancelled", "cancelled"]


async def test_an_observer_is_given_the_same_error_as_the_caller_and_a_call_that_finds_the_queue_full_was_never_sent() -> None:
    caught: list[Any] = []

    async def overfill(client: Any) -> None:
        found = await asyncio.gather(*(client.chat_completion(chat(), MODEL) for _ in range(6)), return_exceptions=True)
        caught.extend(each for each in found if isinstance(each, QRewardError))

    diary = await hear(overfill, {"a": [Do(200), Do(0.1)]}, names="a", max_queued=1, retry=Retry(attempts=1))
    failed = {type(event.error): event for event in diary.heard if isinstance(event, CallEnded) and event.outcome == "failed"}
    assert {id(event.error) for event in failed.values()} == {id(error) for error in caught}
    assert set(failed) == {QueueFull, RequestTimeout}
    assert (failed[QueueFull].attempts, failed[QueueFull].endpoint) == (0, None)
    (attempt,) = [event for event in diary.heard if isinstance(event, AttemptEnded) and event.outcome == "failed"]
    assert type(attempt.error) is RequestTimeout
    assert "within 120.0 s" in str(attempt.error)


@each("kind", [ValueError, asyncio.CancelledError])
async def test_an_observer_that_raises_breaks_no_call_is_not_called_again_and_is_logged_once(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(Observer):
        calls = 0

        def attempt_ended(self, event: AttemptEnded) -> None:
            self.calls += 1
            raise kind(f"secret of {event.endpoint}")

        def call_ended(self, _: CallEnded) -> None:
            self.calls += 1

    async def thrice(client: Any) -> None:
        for _ in range(3):
            await ask(client)

    caplog.clear()
    raising, diary = Raising(), Diary()
    with caplog.at_level(logging.WARNING, "qreward"):
        await hear(thrice, names="a", observers=[raising, diary])
    assert raising.calls == 1
    assert diary.words().count("CallEnded ok") == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"the observer Raising raised {kind.__name__} in attempt_ended; it is not called any more"
    ]


async def test_any_object_with_some_of_the_methods_will_do_and_events_cannot_be_changed() -> None:
    class Counting:
        ended = 0

        def call_ended(self, event: CallEnded) -> None:
            self.ended += 1
            with pytest.raises(AttributeError):
                event.model = "other"  # type: ignore[misc]

    counting = Counting()
    await hear(ask, names="a", observers=[counting])
    assert counting.ended == 1
    assert QRewardClient(["http://a.example/v1"], telemetry=None)._runtime.engine.watch is None


async def test_a_metrics_callback_gets_a_plain_mapping_of_each_call() -> None:
    seen: list[Any] = []
    await hear(ask, {"a": [Do(0.1, 500)]}, observers=[MetricsCallback(seen.append)])
    (metrics,) = seen
    assert set(metrics) == {field.name for field in msgspec.structs.fields(CallEnded)}
    assert (metrics["outcome"], metrics["endpoint"], metrics["attempts"], metrics["error"]) == ("ok", "b", 2, None)
