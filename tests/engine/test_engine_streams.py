"""One stream through the engine: fail-over unnoticed, interruption, restarts, every way out, back-pressure. On virtual time."""

from __future__ import annotations

import asyncio

import pytest
from engine_tools import MODEL, broken, chat, client_of, endpoints, leftovers, now
from stream_wire import OPENED, Step, StreamWire, ask, failing_at, heard, spoken, words

from qreward import (
    ConfigError,
    Endpoint,
    Hedge,
    Limits,
    NoEndpoint,
    RequestTimeout,
    Retry,
    ServerError,
    StreamInterrupted,
    StreamRestarted,
)
from qreward.engine.stream_sink import AHEAD
from qreward.scheduler.outcome import RateLimit, RateLimitInfo
from qreward.scheduler.state import CancelReason
from qreward.scheduler.stats import GAP_LEAST


async def test_the_pieces_come_one_by_one_and_then_the_whole_with_its_usage() -> None:
    async with client_of(StreamWire()) as client:
        stream = ask(client)
        seen = []
        async for token in stream:
            seen.append((token, now(), stream.text))
        assert seen == [("re", 1, "re"), (": ", 2, "re: "), ("hi", 3, "re: hi")]
        assert await stream.final() == "re: hi"
        assert stream.result.usage.completion_tokens == 3
        assert [attempt.outcome for attempt in stream.result.attempts] == ["ok"]
        assert await heard(stream) == []
        assert leftovers(client) == {}
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


async def test_what_is_wrong_is_said_at_once() -> None:
    wire = StreamWire()
    async with client_of(wire, endpoints({"a": 1}, models=["judge-*"])) as client:
        with pytest.raises(NoEndpoint):
            client.stream_chat_completion(chat(1), "gpt-9")
        with pytest.raises(ConfigError, match="on_interrupt must be 'raise' or 'restart', not 'ignore'"):
            ask(client, on_interrupt="ignore")
        with pytest.raises(ConfigError, match="max_concurrent_streams must be a whole number"):
            client.batch_stream_chat_completion([], MODEL, max_concurrent_streams=-1)
    assert wire.sent == []


@pytest.mark.parametrize("steps", [(), (0.5,), (OPENED, 0.5), (OPENED, "", 0.5)], ids=["refused", "late", "opened", "without output"])
async def test_a_failure_before_the_first_token_goes_elsewhere_unnoticed(steps: tuple[Step, ...]) -> None:
    wire = StreamWire(failing_at("a", *steps))
    async with client_of(wire, {"a": 1, "b": 1}) as client:
        client.mark_unhealthy("b")
        stream = ask(client)
        reading = asyncio.ensure_future(heard(stream))
        await asyncio.sleep(0)
        client.mark_healthy("b")
        assert await reading == ["re", ": ", "hi"]
        assert [name for name, _, _ in wire.sent] == ["a", "b"]
        assert [(attempt.endpoint, attempt.outcome) for attempt in stream.result.attempts] == [("a", "transient"), ("b", "ok")]


async def test_a_first_token_that_comes_together_with_the_failure_is_not_given_out() -> None:
    wire = StreamWire(lambda name, prompt: [OPENED, ("no", broken(name))] if name == "a" else spoken(name, prompt))
    async with client_of(wire, {"a": 1, "b": 1}) as client:
        client.mark_unhealthy("b")
        reading = asyncio.ensure_future(heard(ask(client)))
        await asyncio.sleep(0)
        client.mark_healthy("b")
        assert await reading == ["re", ": ", "hi"]


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
    wire._steps = lambda name, prompt: ["so", 1.0, " far", 1.0, broken(name)] if len(wire.sent) == 1 else spoken(name, prompt)
    async with client_of(wire, {"a": 1, "b": 1}) as client:
        stream = ask(client, on_interrupt="restart")
        first, second, event, *rest = await heard(stream.events())
        assert (first, second, rest) == ("so", " far", ["re", ": ", "hi"])
        assert isinstance(event, StreamRestarted)
        assert event.text == "so far"
        assert isinstance(event.error, ServerError)
        assert await stream.final() == stream.text == "re: hi"
        assert sorted(name for name, _, _ in wire.sent) == ["a", "b"]


async def test_restarts_end_with_the_attempts_and_the_last_text() -> None:
    wire = StreamWire(words(3, then=broken()))
    async with client_of(wire, {"a": 1}, retry=Retry(attempts=3)) as client:
        with pytest.raises(StreamInterrupted) as caught:
            await ask(client, on_interrupt="restart").final()
        assert (caught.value.text, len(caught.value.attempts), len(wire.sent)) == ("0 1 2 ", 3, 3)


async def test_a_stream_that_may_restart_is_not_read_by_a_loop_that_could_not_tell() -> None:
    wire = StreamWire()
    async with client_of(wire) as client:
        stream = ask(client, on_interrupt="restart")
        for read in (lambda: aiter(stream), stream.chunks):
            with pytest.raises(ConfigError, match=r"iterate events\(\)"):
                read()
    assert wire.sent == []


async def test_an_answer_without_any_output_is_an_answer() -> None:
    async with client_of(StreamWire(lambda *_: ["", 1.0, ""])) as client:
        stream = ask(client)
        assert await heard(stream.chunks()) == ["<>", "<>"]
        assert await stream.final() == ""
        assert len(stream.result.attempts) == 1


async def test_a_slow_consumer_stops_the_reading_and_all_comes_in_the_end() -> None:
    wire = StreamWire(words(1000, gap=0.0))
    async with client_of(wire, {"a": 1}) as client:
        stream = ask(client)
        reader = aiter(stream)
        assert await anext(reader) == "0 "
        await asyncio.sleep(500)  # longer than any pause a server may make
        assert AHEAD <= wire.reads["hi"] <= AHEAD + 2
        rest = await heard(reader)
        assert rest == [f"{number} " for number in range(1, 1000)]
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


async def test_final_alone_keeps_nothing_back() -> None:
    async with client_of(StreamWire(words(1000, gap=0.0)), {"a": 1}) as client:
        stream = ask(client)
        whole = await stream.final()
        assert whole.startswith("0 1 2 ")
        assert await heard(stream) == []


async def test_final_reads_on_what_had_stopped_for_a_slow_consumer() -> None:
    async with client_of(StreamWire(words(1000, gap=0.0)), {"a": 1}) as client:
        stream = ask(client)
        reader = aiter(stream)
        assert await anext(reader) == "0 "
        await asyncio.sleep(5)
        whole = await stream.final()
        assert whole.endswith(" 998 999 ")
        assert now() < 7


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
        client.mark_unhealthy("b")
        stream = ask(client)
        reading = asyncio.ensure_future(heard(stream))
        await asyncio.sleep(0.1)
        client.mark_healthy("b")
        assert await reading == ["re", ": ", "hi"]
        assert wire.cancelled == ["hi"]
        assert now() < 8
        assert [(record.endpoint, record.outcome) for record in stream.result.attempts] == [("a", "cancelled"), ("b", "ok")]


async def test_a_first_token_of_a_request_that_another_thread_has_just_given_up_is_not_given_out() -> None:
    wire = StreamWire(lambda name, prompt: [1.0, "late"] if name == "a" else spoken(name, prompt))
    async with client_of(wire, {"a": 1, "b": 1}) as client:
        client.mark_unhealthy("b")
        reading = asyncio.ensure_future(heard(ask(client)))
        await asyncio.sleep(0.5)
        client.mark_healthy("b")
        (attempt,) = client._runtime.fleet.sources()[0].attempts
        attempt.cancel_reason = CancelReason.OVERDUE  # and the command to cancel it has not reached this loop
        assert await reading == ["re", ": ", "hi"]


async def test_rate_limits_that_the_head_tells_are_heeded() -> None:
    wire = StreamWire()
    wire.limits = RateLimitInfo(requests=RateLimit(limit=60, remaining=0, reset=30.0))
    fleet = [Endpoint("http://a.example/v1", name="a", limits=Limits(max_concurrency=8))]
    async with client_of(wire, fleet) as client, ask(client, 0) as first:
        await first
        assert await ask(client, 1).final() == "re: 1"
    assert wire.sent[1][2] > 1.5  # the head of the first, which is still under way, said that no more may be sent


async def test_a_stream_over_its_timeout_says_how_far_it_came() -> None:
    async with client_of(StreamWire(words(100, gap=1.0)), {"a": 1}) as client:
        stream = ask(client, timeout=10)
        with pytest.raises(StreamInterrupted) as caught:
            await stream.final()
        assert isinstance(caught.value.__cause__, RequestTimeout)
        assert len(caught.value.text.split()) == 10
        assert 10 <= now() < 10.1
        with pytest.raises(RequestTimeout):
            await ask(client, timeout=0.5).final()
