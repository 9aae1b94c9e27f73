"""Where a span hangs, and what is carried upstream: over queues, threads, tasks and merged requests."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import format_span_id, format_trace_id
from shared_tools import each
from telemetry_server import MODEL, Do, Judges, chat, client_of
from telemetry_tools import Seen, attributes, tree

from qreward import Hedge, Limits, Retry, SyncQRewardClient
from qreward.codecs.base import WireRequest
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.engine.driver import Single
from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import RequestOptions
from qreward.testing.virtual_time import run_in_virtual_time

ONE = Limits(max_concurrency=1, adaptive=False)


def carried(judges: Judges) -> list[str]:
    """Trace and span id of each request's ``traceparent``."""
    return [request.headers["traceparent"][3:-3] for request in judges.requests]


def ids(span: Any) -> str:
    return f"{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}"


async def test_each_retry_carries_the_span_in_which_it_is_sent() -> None:
    judges = Judges({"a": [Do(0.1, 500), Do(0.1, 500), Do(0.1)]})
    with Seen() as seen:
        async with client_of(judges, "a", telemetry=seen.telemetry, retry=Retry(base=0.01)) as client:
            await client.chat_completion(chat(), MODEL)
        assert carried(judges)[1:] == [ids(span) for span in seen.attempts()[1:]]


async def test_an_attempt_without_a_span_carries_that_of_its_call() -> None:
    judges = Judges({"a": [Do(60)]})
    with Seen() as seen:
        async with client_of(judges, telemetry=seen.telemetry, hedge=Hedge(after=1.0)) as client:
            await client.chat_completion(chat(), MODEL)
            await asyncio.sleep(0.01)
        (whole,), (_, hedge) = [span for span in seen.spans if span.parent is None], seen.attempts()
        assert carried(judges) == [ids(whole), ids(hedge)]  # nobody knew yet that there would be another


async def test_streams_carry_it_too_the_headers_of_the_call_win_and_nothing_is_carried_if_that_is_not_wanted() -> None:
    judges, silent = Judges(), Judges()
    own = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    with Seen() as seen:
        async with client_of(judges, "a", telemetry=seen.telemetry) as client:
            await client.stream_chat_completion(chat(), MODEL).final()
            await client.chat_completion(chat(), MODEL, extra_headers={"TraceParent": own, "x-mine": "1"})
        assert carried(judges) == [ids(seen.spans[0]), own[3:-3]]
        assert judges.requests[1].headers["x-mine"] == "1"
    with Seen(propagate=False) as seen:
        async with client_of(silent, "a", telemetry=seen.telemetry) as client:
            await client.chat_completion(chat(), MODEL)
    assert "traceparent" not in silent.requests[0].headers


async def test_baggage_and_the_context_of_a_program_without_an_sdk_are_passed_on() -> None:
    judges = Judges()
    headers = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", "tracestate": "x=1"}
    token = context.attach(baggage.set_baggage("run", "7", propagate.extract(headers)))
    try:
        async with client_of(judges, "a") as client:
            await client.chat_completion(chat(), MODEL)
    finally:
        context.detach(token)
    (request,) = judges.requests
    assert {name: request.headers[name] for name in headers} == headers
    assert request.headers["baggage"] == "run=7"


class Broken(TextMapPropagator):
    """A propagator that cannot, or writes what cannot be sent."""

    fields = {"x-bad"}  # noqa: RUF012 - as the API has it

    def __init__(self, text: str | None) -> None:
        self._text = text

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        return context

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        if self._text is None:
            raise RuntimeError("no")
        carrier["x-bad"] = self._text


@each("text", [None, "a\r\nb: c", "é"])
async def test_a_propagator_that_is_broken_breaks_no_call(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propagate, "get_global_textmap", lambda: Broken(text))
    monkeypatch.setattr(propagate, "inject", lambda carrier, context: Broken(text).inject(carrier, context))
    judges = Judges()
    with Seen() as seen:
        async with client_of(judges, "a", telemetry=seen.telemetry) as client:
            await client.chat_completion(chat(), MODEL)
        assert len(seen.spans) == 1
    assert "x-bad" not in judges.requests[0].headers


async def test_every_call_hangs_below_its_callers_span_over_the_queue_and_other_tasks() -> None:
    with Seen() as seen:
        tracer = seen.tracers.get_tracer("test")
        async with client_of(Judges(), "a", limits=ONE, telemetry=seen.telemetry) as client:

            async def caller(name: str, asking: Any) -> None:
                with tracer.start_as_current_span(name):
                    await asyncio.create_task(asking())

            def single() -> Any:
                return client.chat_completion(chat(), MODEL)

            def batch() -> Any:
                return client.batch_chat_completion([chat(), chat()], MODEL)

            async def streams() -> None:
                await client.batch_stream_chat_completion([chat(), chat()], MODEL).results()

            await asyncio.gather(caller("one", single), caller("two", batch), caller("three", streams), caller("four", single))
        children = {name: [child[0] for child in below] for name, _, _, below in tree(seen.spans)}
    assert children == {
        "one": [f"chat {MODEL}"],
        "two": 2 * [f"chat {MODEL}"],
        "three": 2 * [f"chat {MODEL}"],
        "four": [f"chat {MODEL}"],
    }


def test_blocking_calls_hang_below_the_span_of_the_thread_that_makes_them() -> None:
    judges = Judges({"a": [Do(0.0)]})
    with Seen() as seen, client_of(judges, "a", make=SyncQRewardClient, telemetry=seen.telemetry) as client:
        with seen.tracers.get_tracer("test").start_as_current_span("one"):
            client.chat_completion(chat(), MODEL)
            client.batch_chat_completion([chat(), chat()], MODEL)
            assert "".join(client.stream_chat_completion(chat(), MODEL)) == "the answer is 7"
        ((name, _, _, below),) = tree(seen.spans)
        assert (name, [child[0] for child in below]) == ("one", 4 * [f"chat {MODEL}"])


def test_an_instrumentation_of_the_http_client_finds_the_attempt_as_its_parent_and_the_caller_keeps_its_own() -> None:
    class Instrumented(Judges):
        """As opentelemetry-instrumentation-httpx wraps a transport."""

        async def handle_async_request(self, request: Any) -> Any:
            with seen.tracers.get_tracer("http").start_as_current_span("POST") as span:
                propagate.inject(request.headers)
                posts.append(span)
                return await super().handle_async_request(request)

    async def test() -> None:
        async with client_of(judges, "a", telemetry=seen.telemetry) as client:
            with seen.tracers.get_tracer("test").start_as_current_span("mine") as mine:
                await client.chat_completion(chat(), MODEL)
                assert trace.get_current_span() is mine
                await client.batch_chat_completion([chat()], MODEL)
                assert trace.get_current_span() is mine

    posts: list[Any] = []
    with Seen() as seen:
        judges = Instrumented()
        run_in_virtual_time(test())
        ((_, _, _, calls),) = tree(seen.spans)
        assert [(name, post) for name, _, _, ((post, *_),) in calls] == 2 * [(f"chat {MODEL}", "POST")]
        assert carried(judges) == [ids(span) for span in posts]


async def test_a_merged_request_is_one_span_that_links_to_its_items_and_alone_tells_what_was_used() -> None:
    with Seen() as seen:
        tracer = seen.tracers.get_tracer("test")
        async with client_of(Judges(), "a", telemetry=seen.telemetry) as client:
            driver, pool, options = client._runtime.engine.driver(), client._runtime.fleet.pool(MODEL), RequestOptions(5)
            items = []
            for number in range(3):
                with tracer.start_as_current_span(f"caller {number}"):
                    item = options.task(
                        WireRequest(EMBEDDINGS, MODEL, ["x"], {}, None), pool, SimpleNamespace(context=copy_context()), number
                    )
                    driver.watch.began(item)
                    items.append(item)
            sink = Single(driver)
            merged = options.task(WireRequest(EMBEDDINGS, MODEL, ["x", "y", "z"], {}, None), pool, sink, 0)
            merged.items = tuple(items)
            result = await sink.result(merged)
            for item in items:
                driver.watch.done(item, Answer(result._answer, 5), pool.sources[0])
        batch = seen.span("batch")
        assert batch.name == f"batch {MODEL}"
        callers = [span for span in seen.spans if span.name == f"embeddings {MODEL}"]
        assert [link.context.span_id for link in batch.links] == [span.context.span_id for span in callers]
        assert attributes(batch)["gen_ai.usage.input_tokens"] == 5
        assert attributes(batch)["gen_ai.operation.name"] == "embeddings"
        assert not any("gen_ai.usage.input_tokens" in attributes(span) for span in callers)
        assert sorted(node[0] for node in tree(seen.spans)) == [f"batch {MODEL}", "caller 0", "caller 1", "caller 2"]
        assert [point for point, _ in seen.points("gen_ai.client.token.usage")] == [1]
        assert seen.points("qreward.client.batch.size") == [(1, {"gen_ai.request.model": MODEL})]
        assert sum(count for count, _ in seen.points("gen_ai.client.operation.duration")) == 3
        assert sum(count for count, _ in seen.points("qreward.client.attempt.duration")) == 1


async def test_a_call_whose_caller_is_not_sampled_is_not_recorded_but_carries_that() -> None:
    judges = Judges()
    headers = {"traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"}
    with Seen() as seen:
        async with client_of(judges, "a", telemetry=seen.telemetry) as client:
            token = context.attach(propagate.extract(headers))
            await client.chat_completion(chat(), MODEL)
            context.detach(token)
        assert seen.spans == []
        assert seen.points("gen_ai.client.operation.duration")[0][0] == 1
    (sent,) = judges.requests
    assert sent.headers["traceparent"].startswith("00-0123456789abcdef0123456789abcdef-")
    assert sent.headers["traceparent"].endswith("-00")


def test_spans_end_too_when_the_loop_is_closed_under_their_calls(caplog: pytest.LogCaptureFixture) -> None:
    with Seen() as seen:
        client = client_of(Judges({"a": [Do(60)]}), "a", telemetry=seen.telemetry)
        loop = asyncio.new_event_loop()
        calls = [loop.create_task(client.chat_completion(chat(), MODEL)) for _ in range(6)]
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

        async def come_later() -> None:
            client._runtime.engine.driver()
            await client.aclose()

        asyncio.run(come_later())
        assert sorted(span.name for span in seen.spans) == 4 * ["attempt"] + 6 * [f"chat {MODEL}"]
        assert {span.status.status_code.name for span in seen.spans} == {"UNSET"}
        for call in calls:
            call._log_destroy_pending = False  # type: ignore[attr-defined]
        del calls
