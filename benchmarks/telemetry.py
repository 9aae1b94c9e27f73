"""CPU time that telemetry adds to a call: without an SDK, with an SDK that discards spans, with its batch processor, and with metrics.

There are two figures for each configuration. For *alone*, the telemetry hooks are called in a loop, as the engine calls them. For *in a
call*, the whole client runs over a backend without a network, so that telemetry shares the CPU caches with the engine. Each round measures
all configurations in turn, and the figure is the difference to ``off`` in the same round. Both are CPU time of the process, including the
thread of the batch processor.

    python benchmarks/telemetry.py                         # the table, about two minutes
    python benchmarks/telemetry.py --json telemetry.json
    python benchmarks/telemetry.py --json telemetry.json --markdown    # measures nothing; writes docs/benchmarks.md from that file
    python benchmarks/telemetry.py --quick                 # seconds
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass
from typing import Any

from _command import command, load, parsed, save
from _pages import PAGE, describe, machine, rewrite_section
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracerProvider

from qreward import Endpoint, QRewardClient
from qreward.codecs.base import WireRequest
from qreward.observers import with_carried
from qreward.scheduler.outcome import Answer
from qreward.scheduler.task import Attempt, RequestOptions
from qreward.telemetry import Telemetry

MODEL = "judge-7b"
IN_FLIGHT = 16
ENDPOINT = Endpoint("http://gpu-0.example/v1", name="gpu-0", limits={"max_concurrency": IN_FLIGHT, "adaptive": False})
BODY = json.dumps(
    {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "The answer is right. " * 20}}],
        "usage": {"prompt_tokens": 350, "completion_tokens": 120, "total_tokens": 470},
    }
).encode()


class Nowhere(SpanExporter):
    """A span exporter that discards all spans."""

    def export(self, _spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class QuietWire:
    """An HTTP backend that suspends once and responds. The response is decoded like one received over HTTP."""

    async def send(self, _endpoint: Endpoint, call: WireRequest) -> Answer:
        with_carried(call.headers)
        await asyncio.sleep(0)
        value = call.codec.decode(BODY, call)
        assert value.usage is not None
        return Answer(value, value.usage.prompt_tokens, value.usage.completion_tokens)

    async def aclose(self) -> None:
        pass


@dataclass(frozen=True)
class Way:
    """One row: the telemetry configuration of the client."""

    name: str
    make: Callable[[], Telemetry | None]


def spans_of(processor: bool) -> Telemetry:
    provider = TracerProvider(shutdown_on_exit=False)
    if processor:
        provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=65536))
    return Telemetry(tracer_provider=provider, meter_provider=NoOpMeterProvider())


def metrics_only() -> Telemetry:
    return Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False))


def everything() -> Telemetry:
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return Telemetry(tracer_provider=spans_of(True).tracer_provider, meter_provider=meters)


OFF = Way("off", lambda: None)
WAYS = (
    OFF,
    Way("no SDK", Telemetry),
    Way("SDK, no processor", lambda: spans_of(False)),
    Way("batch processor", lambda: spans_of(True)),
    Way("metrics", metrics_only),
    Way("all of it", everything),
)


async def drive(client: QRewardClient, calls: int) -> None:
    """Send ``calls`` calls with ``IN_FLIGHT`` workers, each of which has one call in flight."""
    left = iter(range(calls))

    async def work() -> None:
        for number in left:
            await client._runtime.one(_call(number), client._runtime.request_options({"timeout": 60.0}))

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


def _call(number: int) -> WireRequest:
    from qreward.codecs.chat import CHAT
    from qreward.options import preparer

    return preparer(CHAT, MODEL, {"temperature": 0, "max_tokens": 512}, None, None)([{"role": "user", "content": f"question {number}"}])


async def cpu_of(client: QRewardClient, calls: int) -> float:
    """Return the CPU time per call in microseconds."""
    gc.collect()
    begin = time.process_time()
    await drive(client, calls)
    return (time.process_time() - begin) / calls * 1e6


async def measure(rounds: int, calls: int) -> list[dict[str, dict[str, float]]]:
    """Return one record per round: for ``alone`` and for ``in_a_call``, the microseconds per call of each way."""
    given = {way.name: way.make() for way in WAYS}
    clients = {name: QRewardClient([ENDPOINT], telemetry=each, backend_factory=QuietWire) for name, each in given.items()}
    records = []
    try:
        for client in clients.values():
            await drive(client, calls // 4 + 1)
        for number in range(rounds):
            names = list(clients)[number % len(clients) :] + list(clients)[: number % len(clients)]
            by_itself = {name: alone(given[name], calls) for name in names}
            records.append({"alone": by_itself, "in_a_call": {name: await cpu_of(clients[name], calls) for name in names}})
    finally:
        for client in clients.values():
            await client.aclose()
        for telemetry in given.values():
            if telemetry is not None:
                telemetry.shutdown()
    return records


class NoSink:
    """The waiter of the calls in ``alone``."""

    context = copy_context()


def alone(telemetry: Telemetry | None, calls: int) -> float:
    """Return the CPU microseconds of the telemetry hooks for a call with one attempt."""
    client = QRewardClient([ENDPOINT], telemetry=telemetry)
    runtime, terms = client._runtime, RequestOptions(5)
    watch, pool, clock = runtime.engine.watch, runtime.fleet.pool(MODEL), runtime.clock
    call, source = _call(0), pool.sources[0]
    value = call.codec.decode(BODY, call)
    answer = Answer(value, 350, 120)
    gc.collect()
    begin = time.process_time()
    for _ in range(calls):
        task = terms.task(call, pool, NoSink, 0)
        attempt = Attempt(task, source, 0.0)
        if watch is not None:
            watch.began(task)
        task.number = task.sends = 1  # as the scheduler does
        task.sent_at = attempt.sent_at = clock()
        task.attempt = attempt
        if watch is not None:
            watch.sent(attempt)
        if attempt.span is not None:
            attempt.span.__enter__()
            with_carried(None)
            attempt.span.__exit__(None)
        attempt.won, task.attempt = True, None
        if watch is not None:
            watch.ended(attempt, answer)
            watch.done(task, answer, source)
    return (time.process_time() - begin) / calls * 1e6


@dataclass(frozen=True)
class Row:
    """The CPU time that one way adds to a call, in microseconds: median over the rounds, and minimum."""

    way: str
    alone: float
    alone_least: float
    in_a_call: float
    in_a_call_least: float


def rows(records: list[dict[str, dict[str, float]]]) -> list[Row]:
    """Return the rows of the table. A median is that of the differences within a round; a minimum is the difference of the minima."""
    return [Row(way.name, *_added(records, "alone", way), *_added(records, "in_a_call", way)) for way in WAYS]


def _added(records: list[dict[str, dict[str, float]]], what: str, way: Way) -> tuple[float, float]:
    own, off = [record[what][way.name] for record in records], [record[what][OFF.name] for record in records]
    return statistics.median(mine - base for mine, base in zip(own, off, strict=True)), min(own) - min(off)


def table(found: list[Row]) -> str:
    head = ["| telemetry | alone: median | least | in a call: median | least |", "| --- | --- | --- | --- | --- |"]
    line = "| {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |"
    return "\n".join(head + [line.format(*asdict(row).values()) for row in found])


def section(run: dict[str, Any]) -> str:
    """Return the section of the page for a run."""
    measured = f"Microseconds of CPU that a call costs more than with telemetry off, over {run['rounds']} rounds"
    return f"{measured}, measured on {describe(run['machine'])}\n\n{table([Row(**row) for row in run['rows']])}"


def main() -> None:
    parser = command(__doc__, "two short rounds")
    parser.add_argument("--rounds", type=int, default=21, help="how often all ways are measured (default %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls in one measurement (default %(default)s)")
    args = parsed(parser)
    if args.markdown:
        rewrite_section(PAGE, "telemetry", section(load(args.json)))
        return
    rounds, calls = (2, 100) if args.quick else (args.rounds, args.calls)
    records = asyncio.run(measure(rounds, calls))
    found = rows(records)
    run = {"machine": machine(), "rounds": rounds, "calls": calls, "records": records, "rows": [asdict(row) for row in found]}
    save(args.json, run)
    print(table(found))


if __name__ == "__main__":
    main()
