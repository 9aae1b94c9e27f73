"""One stream through the engine: fail-over, interruption, restarts, back-pressure, time limits, and every way out. On virtual time."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterable
from typing import Any

import pytest
from engine_tools import MODEL, broken, chat, client_of, endpoints, leftovers, now
from stream_wire import ENDS, OPENED, Step, StreamWire, ask, failing_at, heard, spoken, words

from qreward import (
    ClientClosed,
    ConfigError,
    Endpoint,
    Hedge,
    InvalidResponse,
    Limits,
    NoEndpoint,
    QRewardClient,
    RequestTimeout,
    Retry,
    ServerError,
    StreamInterrupted,
    StreamRestarted,
    Timeouts,
)
from qreward.engine.streams import AHEAD, GRACE
from qreward.scheduler.outcome import Failure, FailureKind, RateLimit, RateLimitInfo
from qreward.scheduler.stats import GAP_LEAST, KNOWN
from qreward.scheduler.task import CancelReason


async def heard_from_a_first(client: QRewardClient, stream: Any, seconds: float = 0) -> list[Any]:
    """What a stream says whose first attempt goes to ``a``; ``b`` can be used after some seconds."""
    client.mark_unhealthy("b")
    reading = asyncio.ensure_future(heard(stream))
    await asyncio.sleep(seconds)
    client.mark_healthy("b")
    return await reading


async def test_the_pieces_come_one_by_one_and_then_the_whole_with_its_usage() -> None:
    async with client_of(StreamWire()) as client:
        stream = ask(client)
        seen = [(token, now(), stream.text) async for token in stream]
        assert seen == [("re", 1, "re"), (": ", 2, "re: "), ("hi", 3, "re: hi")]
        assert await stream.final() == "re: hi"
        assert stream.result.usage.completion_tokens == 3
        assert [attempt.outcome for attempt in stream.result.attempts] == ["ok"]
        assert await heard(stream) == []
        stats = client.stats()["a"]
        assert (stats.sent, stats.won, stats.prompt_tokens, stats.completion_tokens) == (1, 1, 7, 3)


async def test_nothing_is_sent_before_it_is_begun_in_one_of_four_ways() -> None:
    wire = StreamWire()
    async with client_of(wire) as client:
        streams = [ask(client, number) for number in range(4)]
        await asyncio.sleep(1)
        assert wire.sent == []
        assert await anext(aiter(streams[0])) == "re"
        assert wire.prompts == ["0"]
        async with streams[1]:
            await asyncio.sleep(0)
            assert wire.prompts == ["0", "1"]
        assert await streams[2] is streams[2]
        assert wire.prompts == ["0", "1", "2"]
        assert await streams[3].final() == "re: 3"


async def test_a_stream_that_an_endpoint_should_not_be_sent_goes_to_another_one_and_without_another_to_that_one() -> None:
    class Withholding(StreamWire):
        def withheld(self, endpoint: Endpoint, call: Any) -> Failure | None:
            never = InvalidResponse("such streams have no ending there")
            return None if endpoint.name == "c" else Failure(FailureKind.UNSUITABLE, never, hurts_health=False)

    for names, sent_to in (("abc", "c"), ("a", "a"), ("ab", "ab")):
        wire = Withholding()
        async with client_of(wire, dict.fromkeys(names, 4)) as client:
            for number in range(4):
                assert await ask(client, number).final() == f"re: {number}"
        assert {name for name, _, _ in wire.sent} <= set(sent_to), names
        assert len(wire.sent) == 4, names
    wire = Withholding()
    async with client_of(wire, dict.fromkeys("ac", 4)) as client:
        client.mark_unhealthy("c")
        assert await ask(client).final() == "re: hi"
    assert [name for name, _, _ in wire.sent] == ["a"]


async def test_what_is_wrong_is_said_at_once() -> None:
    wire = StreamWire()
    async with client_of(wire, endpoints({"a": 1}, models=["judge-*"])) as client:
        with pytest.raises(NoEndpoint):
            client.stream_chat_completion(chat(1), "gpt-9")
        with pytest.raises(ConfigError, match="on_interrupt must be 'raise' or 'restart', not 'ignore'"):
            ask(client, on_interrupt="ignore")
        with pytest.raises(ConfigError, match="max_concurrent_streams must be a whole number"):
            client.batch_stream_chat_completion([], MODEL, max_concurrent_streams=-1)
        restarting = ask(client, on_interrupt="restart")
        for read in (lambda: aiter(restarting), restarting.chunks):
            with pytest.raises(ConfigError, match=r"iterate events\(\)"):
                read()
    assert wire.sent == []


async def test_a_failure_before_the_first_token_or_together_with_it_goes_elsewhere_unnoticed() -> None:
    cases: dict[str, tuple[Step, ...]] = {
        "refused": (),
        "late": (0.5,),
        "opened": (OPENED, 0.5),
        "without output": (OPENED, "", 0.5),
        "with the first token": (OPENED, ("no", broken("a"))),
    }
    for name, steps in cases.items():
        wire = StreamWire(failing_at("a", *steps))
        async with client_of(wire, {"a": 1, "b": 1}) as client:
            stream = ask(client)
            assert await heard_from_a_first(client, stream) == ["re", ": ", "hi"], name
            assert [where for where, _, _ in wire.sent] == ["a", "b"], name
            assert [(attempt.endpoint, attempt.outcome) for attempt in stream.result.attempts] == [("a", "transient"), ("b", "ok")], name


async def test_after_the_first_token_a_failure_is_an_error_with_the_text_so_far() -> None:
    wire = StreamWire(lambda name, prompt: ["so", 1.0, " far", 1.0, broken(name)])
    async with client_of(wire, {"a": 1, "b": 1}) as client:
        stream = ask(client)
        seen: list[str] = []
        with pytest.raises(StreamInterrupted, match=r"the stream broke off after 6 characters: endpoint '.' answered 500") as caught:
            await heard(stream, seen)
        assert seen == ["so", " far"]
        error = caught.value
        assert (error.text, error.status_code, error.endpoint) == ("so far", 500, wire.sent[0][0])
        assert isinstance(error.__cause__, ServerError)
        assert [attempt.outcome for attempt in error.attempts] == ["transient"]
        with pytest.raises(StreamInterrupted):
            await stream.final()
        assert len(wire.sent) == 1
        assert client.stats()[wire.sent[0][0]].failed == 1


async def test_a_restart_begins_the_answer_anew_elsewhere_and_says_so() -> None:
    wire = StreamWire()
    wire._steps = lambda name, prompt: ["so", 1.0, " far", 1.0, broken(name)] if len(wire.sent) % 2 else spoken(name, prompt)
    async with client_of(wire, {"a": 1, "b": 1}) as client:
        stream = ask(client, on_interrupt="restart")
        first, second, event, *rest = await heard(stream.events())
        assert (first, second, rest) == ("so", " far", ["re", ": ", "hi"])
        assert isinstance(event, StreamRestarted)
        assert event.text == "so far"
        assert isinstance(event.error, ServerError)
        assert await stream.final() == stream.text == "re: hi"
        assert sorted(name for name, _, _ in wire.sent) == ["a", "b"]
        again = ask(client, on_interrupt="restart")
        assert await again.final() == again.text == "re: hi"
        assert await heard(again.events()) == [], "who asks for the whole is told of no restart"


async def test_restarts_end_with_the_attempts_and_the_last_text() -> None:
    wire = StreamWire(words(3, then=broken()))
    async with client_of(wire, {"a": 1}, retry=Retry(attempts=3)) as client:
        with pytest.raises(StreamInterrupted) as caught:
            await ask(client, on_interrupt="restart").final()
        assert (caught.value.text, len(caught.value.attempts), len(wire.sent)) == ("0 1 2 ", 3, 3)


async def test_an_answer_without_any_output_is_an_answer() -> None:
    async with client_of(StreamWire(lambda *_: ["", 1.0, ""])) as client:
        stream = ask(client)
        assert await heard(stream.chunks()) == ["<>", "<>"]
        assert await stream.final() == ""
        assert len(stream.result.attempts) == 1


async def test_a_slow_consumer_stops_the_reading_and_all_comes_in_the_end() -> None:
    wire = StreamWire(words(1000, gap=0.0))
    async with client_of(wire, {"a": 1}) as client:
        reader = aiter(ask(client))
        assert await anext(reader) == "0 "
        await asyncio.sleep(500)  # longer than any pause a server may make
        assert AHEAD <= wire.reads["hi"] <= AHEAD + 2
        for _ in range(AHEAD // 2 - 1):
            await anext(reader)
        await asyncio.sleep(1)
        assert wire.reads["hi"] <= AHEAD + 2, "it goes on when half is taken"
        await anext(reader)
        await asyncio.sleep(1)
        assert wire.reads["hi"] > AHEAD + 2
        assert await heard(reader) == [f"{number} " for number in range(AHEAD // 2 + 1, 1000)]
        source = client._runtime.fleet.source("a")
        assert source.latency.mean < 10  # the wait was not the source's


async def test_what_is_learned_of_pauses_is_not_those_of_a_slow_consumer() -> None:
    async with client_of(StreamWire(words(3000, gap=0.0)), {"a": 1}, timeout=None) as client:
        read = 0
        async for _ in ask(client):
            read += 1
            if read % (AHEAD // 2) == 0:
                await asyncio.sleep(30)
        tempo = client._runtime.fleet.source("a").stream_timing
        assert tempo is not None
        assert tempo.gap_limit() == GAP_LEAST


async def test_final_reads_on_what_had_stopped_for_a_slow_consumer_and_keeps_nothing_back() -> None:
    async with client_of(StreamWire(words(1000, gap=0.0)), {"a": 1}) as client:
        stream = ask(client)
        reader = aiter(stream)
        assert await anext(reader) == "0 "
        await asyncio.sleep(5)
        whole = await stream.final()
        assert (whole[:6], whole[-9:]) == ("0 1 2 ", " 998 999 ")
        assert now() < 7
        assert await heard(stream) == []


async def test_two_tasks_cannot_read_one_stream() -> None:
    async with client_of(StreamWire()) as client:
        stream = ask(client)
        first = asyncio.ensure_future(heard(stream))
        await asyncio.sleep(0.5)
        with pytest.raises(RuntimeError, match="one task at a time"):
            await anext(aiter(stream))
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], StreamInterrupted)


async def test_a_hedge_may_win_with_the_first_token_and_the_other_is_stopped() -> None:
    wire = StreamWire(lambda name, prompt: [30.0, "late"] if name == "a" else spoken(name, prompt))
    async with client_of(wire, {"a": 1, "b": 1}, hedge=Hedge(after=2.0)) as client:
        stream = ask(client)
        assert await heard_from_a_first(client, stream, 0.1) == ["re", ": ", "hi"]
        assert wire.cancelled == ["hi"]
        assert now() < 8
        assert [(record.endpoint, record.outcome) for record in stream.result.attempts] == [("a", "cancelled"), ("b", "ok")]


async def test_a_first_token_of_a_request_that_another_thread_has_just_given_up_is_not_given_out() -> None:
    wire = StreamWire(lambda name, prompt: [1.0, "late"] if name == "a" else spoken(name, prompt))
    heard_of: list[Any] = []

    class Observer:
        def first_chunk(self, event: Any) -> None:
            heard_of.append(event.endpoint)

    async with client_of(wire, {"a": 1, "b": 1}, observers=[Observer()]) as client:
        reading = asyncio.ensure_future(heard_from_a_first(client, ask(client), 0.5))
        await asyncio.sleep(0.7)
        (attempt,) = client._runtime.fleet.sources()[0].attempts
        attempt.cancel_reason = CancelReason.OVERDUE  # and the command to cancel it has not reached this loop
        assert await reading == ["re", ": ", "hi"]
    assert heard_of == ["b"]


async def test_rate_limits_that_the_head_tells_are_heeded() -> None:
    wire = StreamWire()
    wire.limits = RateLimitInfo(requests=RateLimit(limit=60, remaining=0, reset=30.0))
    fleet = [Endpoint("http://a.example/v1", name="a", limits=Limits(max_concurrency=8))]
    async with client_of(wire, fleet) as client, ask(client, 0) as first:
        await first
        assert await ask(client, 1).final() == "re: 1"
    assert wire.sent[1][2] > 1.5  # the head of the first, which is still under way, said that no more may be sent


# time limits, learned from what the endpoint has shown


def mostly(speaks: Any, then: Any, seen: int = KNOWN) -> Any:
    """The first streams go by one script, so that they are learned from; the rest by another."""
    count = 0

    def script(name: str, prompt: str) -> Iterable[Step]:
        nonlocal count
        count += 1
        return speaks(name, prompt) if count <= seen else then(name, prompt)

    return script


async def learn(client: Any) -> None:
    for number in range(KNOWN):
        await ask(client, number).final()


async def test_a_first_token_that_is_far_later_than_usual_ends_the_attempt() -> None:
    for opened in (False, True):

        def hangs(_: str, __: str, opened: bool = opened) -> Iterable[Step]:
            yield from [OPENED] if opened else []
            yield from [2.0, OPENED] * 100  # signs of life are no tokens

        wire = StreamWire(mostly(spoken, hangs))
        async with client_of(wire, {"a": 1}, timeout=30, hedge=None) as client:
            await learn(client)
            began = now()
            stream = ask(client, "x")
            with pytest.raises(RequestTimeout):
                await stream.final()
            first, *_ = stream.result.attempts
            assert (first.outcome, "no first token from endpoint 'a' within 5.0 s" in first.detail) == ("timeout", True)
            assert 5 <= first.latency < 5.1
            assert wire.sent[KNOWN + 1][2] - began >= 5


async def test_a_pause_that_is_far_longer_than_usual_ends_the_stream() -> None:
    pauses: list[list[Step]] = [[1000.0], [2.0, OPENED] * 500]  # silent, and with signs of life
    for pause, waits in [*((pause, False) for pause in pauses), (pauses[0], True)]:
        pieces = ["x"] * (AHEAD if waits else 1)
        wire = StreamWire(mostly(words(20), lambda *_, said=pieces, pause=pause: [*said, *pause, "never"]))
        async with client_of(wire, {"a": 1}) as client:
            await learn(client)
            reader = aiter(ask(client))
            assert await anext(reader) == "x"
            if waits:  # the stream waits for its reader first
                await asyncio.sleep(60)
            began = now()
            with pytest.raises(StreamInterrupted, match=r"endpoint 'a' sent nothing for 5.0 s amid its answer") as caught:
                await heard(reader)
            assert 5 <= now() - began < 5.1, (pause, waits)
            assert isinstance(caught.value.__cause__, RequestTimeout)
            assert [attempt.outcome for attempt in caught.value.attempts] == ["timeout"]
            assert wire.cancelled == ["hi"]


async def test_a_stream_that_is_left_in_the_turn_in_which_it_has_paused_for_too_long_is_no_failure_of_its_endpoint() -> None:
    loop: Any = asyncio.get_running_loop()
    async with client_of(StreamWire(mostly(words(20), lambda *_: ["x", 1000.0])), {"a": 1}) as client:
        await learn(client)
        reading = asyncio.ensure_future(heard(ask(client)))
        await asyncio.sleep(1)
        (timer,) = [timer for timer in loop.timers() if "StreamAttempt" in repr(timer)]
        loop.call_at(timer.when() - 1e-10, reading.cancel)
        await asyncio.wait([reading])
        await asyncio.sleep(1)
        stats = client.stats()["a"]
    assert (reading.cancelled(), stats.cancelled, stats.failed) == (True, 1, 0)


async def test_pauses_that_are_usual_end_nothing_and_are_recorded_once() -> None:
    async with client_of(StreamWire(words(150, gap=3.0)), {"a": 1}, timeout=None) as client:
        for number in range(3):
            assert len((await ask(client, number).final()).split()) == 150
            tempo: Any = client._runtime.fleet.source("a").stream_timing
            assert tempo._gaps.count == 149 * (number + 1)


async def test_pieces_without_output_do_not_keep_a_stream_that_hangs() -> None:
    def hangs(_: str, __: str) -> Iterable[Step]:
        yield "a"
        for _step in range(200):
            yield from (1.0, "")

    async with client_of(StreamWire(hangs), {"a": 1}) as client:
        with pytest.raises(StreamInterrupted, match="far longer than it ever pauses"):
            await ask(client).final()
        assert 60 <= now() < 62


async def test_a_stream_over_its_timeout_says_how_far_it_came() -> None:
    async with client_of(StreamWire(words(100, gap=1.0)), {"a": 1}) as client:
        with pytest.raises(StreamInterrupted) as caught:
            await ask(client, timeout=10).final()
        assert isinstance(caught.value.__cause__, RequestTimeout)
        assert len(caught.value.text.split()) == 10
        assert 10 <= now() < 10.1
        with pytest.raises(RequestTimeout):
            await ask(client, timeout=0.5).final()


async def test_the_time_an_endpoint_has_for_an_attempt_holds_for_the_whole_stream_but_not_while_it_waits_for_its_reader() -> None:
    fleet = endpoints({"a": 1}, timeouts=Timeouts(attempt=20.0))
    async with client_of(StreamWire(words(100, gap=1.0)), fleet) as client:
        with pytest.raises(StreamInterrupted, match=r"set Timeouts\(attempt=...\)") as caught:
            await ask(client).final()
        assert len(caught.value.text.split()) >= 19
        assert 20 <= now() < 31
    async with client_of(StreamWire(words(500, gap=0.0)), fleet) as client:
        reader = aiter(ask(client))
        assert await anext(reader) == "0 "
        await asyncio.sleep(60)
        assert len(await heard(reader)) == 499
        assert all(source.health.in_service for source in client._runtime.fleet.sources())


# ways out


async def leave_by_break(stream: Any) -> None:
    async for _ in stream:
        break


async def leave_by_aclose(stream: Any) -> None:
    await anext(stream.chunks())
    await stream.aclose()
    await stream.aclose()


async def leave_by_with(stream: Any) -> None:
    async with stream:
        await stream


async def leave_by_cancel(stream: Any) -> None:
    reading = asyncio.ensure_future(heard(stream))
    await asyncio.sleep(1.5)
    reading.cancel()
    await asyncio.wait([reading])


async def leave_by_cancelled_final(stream: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.final(), 1.5)


async def leave_while_another_waits_for_the_whole(stream: Any) -> None:
    waits = asyncio.ensure_future(stream.final())
    await asyncio.sleep(1.5)
    await stream.aclose()
    with pytest.raises(StreamInterrupted, match="left before its end"):
        await waits


async def after(seconds: float, what: Any) -> Any:
    await asyncio.sleep(seconds)
    return await what


async def test_leaving_early_closes_the_request_and_frees_its_slot() -> None:
    for way in (
        leave_by_break,
        leave_by_aclose,
        leave_by_with,
        leave_by_cancel,
        leave_by_cancelled_final,
        leave_while_another_waits_for_the_whole,
    ):
        wire, began = StreamWire(), now()
        async with client_of(wire, {"a": 1}) as client:
            stream = ask(client, 0)
            other = asyncio.ensure_future(after(0.1, ask(client, 1).final()))
            await way(stream)
            await asyncio.sleep(0.001)
            assert (wire.cancelled, wire.prompts, now() - began < 2) == (["0"], ["0", "1"], True), way
            assert stream.result is None
            with pytest.raises(StreamInterrupted, match="left before its end") as caught:
                await heard(stream)
            assert caught.value.text == "re", way
            with pytest.raises(StreamInterrupted, match="left before its end"):
                await stream.final()
            assert await other == "re: 1"
            assert client.stats()["a"].cancelled == 1, way


async def test_a_stream_or_a_loop_over_it_that_is_let_go_of_is_closed_also_amid_our_own_work() -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 1}) as client:
        stream = await ask(client, 0)
        assert leftovers(client) != {}
        with client._runtime.engine.lock:  # as the garbage collector may do
            del stream
            gc.collect()
        await asyncio.sleep(0.001)
        assert (wire.cancelled, leftovers(client)) == (["0"], {})
        reading = heard(ask(client, 1))
        reading.send(None)
        await asyncio.sleep(0.5)
        with client._runtime.engine.lock:
            reading.close()
        await asyncio.sleep(0.001)
        assert (wire.cancelled, leftovers(client)) == (["0", "1"], {})
        ask(client)  # never begun


async def test_text_that_arrived_unread_is_dropped_when_the_stream_is_closed() -> None:
    for seconds in (1.5, 10):  # amid the stream, and when all has arrived
        async with client_of(StreamWire(), {"a": 1}) as client:
            reader = aiter(stream := ask(client))
            assert await anext(reader) == "re"
            await asyncio.sleep(seconds)
            await stream.aclose()
            with pytest.raises(StreamInterrupted, match="left before its end"):
                await anext(reader)


async def test_a_stream_that_waits_for_a_slot_or_has_not_begun_is_left_unsent() -> None:
    wire = StreamWire()
    async with client_of(wire, {"a": 1}) as client:
        first = asyncio.ensure_future(ask(client, 0).final())
        await asyncio.sleep(0)
        async with ask(client, 1):
            pass
        waits = ask(client, 3)
        unbegun = ask(client, 2)
        await unbegun.aclose()
        with pytest.raises(StreamInterrupted, match="left before"):
            await unbegun.final()
        assert await waits.final() == "re: 3"
        assert waits.result.queued == pytest.approx(3), "the seconds until it was sent"
        assert await first == "re: 0"
        assert wire.prompts == ["0", "3"]


async def test_closing_the_client_ends_a_stream_after_what_has_come() -> None:
    wire = StreamWire()
    client = client_of(wire, {"a": 1})
    begun, waiting = ask(client, 0), ask(client, 1)
    reader = aiter(begun)
    assert await anext(reader) == "re"
    queued = asyncio.ensure_future(waiting.final())
    await asyncio.sleep(1.5)
    await client.aclose()
    assert await anext(reader) == ": "
    with pytest.raises(ClientClosed):
        await anext(reader)
    with pytest.raises(ClientClosed):
        await queued
    with pytest.raises(ClientClosed):
        await ask(client).final()
    assert (wire.cancelled, leftovers(client)) == (["0"], {})


STAYS_OPEN: dict[str, list[Step]] = {
    "the ending alone": [1.0, "re: hi", ENDS, 1000.0],
    "and usage": [1.0, "re: hi", ENDS, 1.0, ENDS, 1000.0],
    "and signs of life": [1.0, "re: hi", ENDS, *[1.0, OPENED] * 500],
    "no output": [1.0, ENDS, 1000.0],
}


async def test_an_answer_that_has_ended_counts_after_a_grace_although_its_stream_stays_open() -> None:
    for name, steps in STAYS_OPEN.items():
        wire = StreamWire(lambda *_, steps=steps: steps)
        async with client_of(wire, {"a": 1}) as client:
            began = now()
            stream = ask(client)
            said = await heard(stream)
            text = "" if name == "no output" else "re: hi"
            assert ("".join(said), await stream.final(), stream.result.error) == (text, text, None), name
            assert 1 + GRACE <= now() - began < 1.1 + GRACE, name
            assert [attempt.outcome for attempt in stream.result.attempts] == ["ok"]
            assert (client.stats()["a"].won, client.stats()["a"].failed) == (1, 0)


async def test_an_ending_in_a_chunk_with_output_has_the_time_of_a_pause_because_more_output_may_follow() -> None:
    steps: list[Step] = [1.0, "re" + ENDS, 2 * GRACE, ": ", 1.0, "hi" + ENDS, 1000.0]
    async with client_of(StreamWire(lambda *_: steps), {"a": 1}, timeout=None) as client:
        assert await ask(client).final() == "re: hi"
    async with client_of(StreamWire(lambda *_: steps), {"a": 1}, timeout=1.5) as client:
        assert await ask(client).final() == "re"


async def test_deadlines_and_closing_ask_whether_the_answer_is_whole() -> None:
    endings: list[Step] = [1.0, "re: ", "hi", ENDS, 1000.0]
    for fleet, options in (({"a": 1}, {"timeout": 1.5}), (endpoints({"a": 1}, timeouts=Timeouts(attempt=1.5)), {})):
        async with client_of(StreamWire(lambda *_: endings), fleet, retry=Retry(attempts=1)) as client:  # type: ignore[arg-type]
            assert await ask(client, **options).final() == "re: hi"
    for way in ("client", "stream"):
        wire = StreamWire(lambda *_: endings)
        client = client_of(wire, {"a": 1})
        stream = ask(client)
        reader = aiter(stream)
        assert await anext(reader) == "re: "
        await asyncio.sleep(0.5)
        await (client if way == "client" else stream).aclose()
        assert (stream.result.ok, await stream.final()) == (True, "re: hi"), way
        await asyncio.sleep(0.001)
        assert (client.stats()["a"].won, client.stats()["a"].cancelled, leftovers(client)) == (1, 0, {}), way
        await client.aclose()


async def test_a_stream_that_is_cancelled_in_the_turn_in_which_its_grace_ends_is_cancelled() -> None:
    loop: Any = asyncio.get_running_loop()
    async with client_of(StreamWire(lambda *_: STAYS_OPEN["the ending alone"]), {"a": 1}) as client:
        reading = asyncio.ensure_future(heard(ask(client)))
        await asyncio.sleep(1.5)
        (timer,) = [timer for timer in loop.timers() if "StreamAttempt" in repr(timer)]
        loop.call_at(timer.when() - 1e-10, reading.cancel)
        await asyncio.wait([reading])
        assert reading.cancelled()


async def test_nothing_is_left_after_hundreds_of_random_streams_and_ways_out() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def erratic(name: str, _: str) -> Iterable[Step]:
        yield rng.choice([0.0, 0.01, 0.3, 5.0])
        if rng.random() < 0.1:
            yield broken(name)
        for number in range(rng.randrange(200)):
            yield f"{number} "
            yield rng.choice([0.0, 0.0, 0.01])
            if rng.random() < 0.001:
                yield broken(name)

    async def use(client: Any, number: int) -> str:
        await asyncio.sleep(rng.uniform(0, 20))
        stream = ask(client, number, timeout=rng.choice([None, 0.3, 5]), on_interrupt=rng.choice(["raise", "restart"]))
        reading: asyncio.Future[Any] = asyncio.ensure_future(rng.choice([lambda: heard(stream.events()), stream.final, stream._begun])())
        if rng.random() < 0.3:
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(rng.choice([0, 0, 0, 0.01, 0.3]))
            reading.cancel()
        outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
        await stream.aclose()
        return type(outcome).__name__

    wire = StreamWire(erratic)
    limits = {"a": 10, "b": 3, "c": 30}
    async with client_of(wire, limits) as client:
        outcomes = await asyncio.gather(*(use(client, number) for number in range(400)))
        await asyncio.sleep(1)
        assert leftovers(client) == {}
        assert wire.live.total() == 0
        assert all(wire.peak[name] <= limit for name, limit in limits.items())
    assert set(outcomes) - {"ServerError", "CancelledError"} == {"list", "str", "Stream", "RequestTimeout", "StreamInterrupted"}, seed
