"""What may be set, by whom it is heard, and when: providers, the line that sets up the SDK, and clients that come and go."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from pydantic import ConfigDict, create_model
from shared_tools import each
from telemetry_server import MODEL, Do, Judges, chat, client_of
from telemetry_tools import Seen, attributes

from qreward import ConfigError, Endpoint, QRewardClient, SyncQRewardClient
from qreward.telemetry import Telemetry, configure
from qreward.telemetry.telemetry import METRICS


def run_fresh(script: str, **environment: str) -> str:
    """What a fresh interpreter prints in which each warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True, text=True, check=False, timeout=60, env={**environment, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_name_keeps_the_rules_of_the_conventions() -> None:
    metrics = METRICS.values()
    assert len({metric.name for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert not metric.name.endswith(("_total", ".total")), "the exporter adds it"
        assert metric.name.startswith(("gen_ai.client.", "qreward."))
        assert metric.unit == "s" or (metric.unit[0], metric.unit[-1]) == ("{", "}")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_telemetry_may_be_a_field_of_the_settings_of_a_program() -> None:
    settings = create_model("Settings", __config__=ConfigDict(arbitrary_types_allowed=True), telemetry=(Telemetry, ...))
    telemetry = Telemetry(provider="vllm", providers=None)
    assert settings(telemetry=telemetry).telemetry is telemetry  # type: ignore[attr-defined]


def test_a_setting_that_is_none_of_its_values_is_refused() -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "capture_content": ("all", "no_content", 1),
        "tracer_provider": (NoOpMeterProvider(), "otlp"),
        "meter_provider": (NoOpTracerProvider(), True),
        "provider": (None, 3),
        "providers": ("vllm", ["vllm"], {"a": 1}, {1: "vllm"}),
        "propagate": (None, "no"),
        "content_length": (None, "4096", 4096.0, True, -1),
    }
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ConfigError, match=f"telemetry: {name} must be .*, not "):
            Telemetry(**{name: value})
    for telemetry, observers in ((True, ()), (NoOpTracerProvider(), ()), (None, "mine"), (None, 1)):
        with pytest.raises(ConfigError, match=r"telemetry|observers"):
            QRewardClient(["http://a.example/v1"], telemetry=telemetry, observers=observers)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="exporter"):
        configure("jaeger", everywhere=False)  # type: ignore[arg-type]


async def test_providers_that_do_nothing_switch_spans_or_metrics_off() -> None:
    with Seen() as seen:
        for spans, metrics in ((NoOpTracerProvider(), seen.meters), (seen.tracers, NoOpMeterProvider())):
            telemetry = Telemetry(tracer_provider=spans, meter_provider=metrics)
            async with client_of(Judges(), "a", telemetry=telemetry) as client:
                await client.chat_completion(chat(), MODEL)
        assert len(seen.spans) == 1
        assert seen.points("gen_ai.client.operation.duration")[0][0] == 1


def test_a_client_imports_the_api_alone_and_sets_no_provider_and_without_telemetry_imports_nothing() -> None:
    loaded = run_fresh("""
        import sys
        from qreward import QRewardClient
        QRewardClient(["http://a.example/v1"], telemetry=None)
        print([name for name in sys.modules if name.startswith("opentelemetry")])
        QRewardClient(["http://a.example/v1"])
        from opentelemetry import metrics, trace
        print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
        print(type(trace.get_tracer_provider()).__name__, type(metrics.get_meter_provider()).__name__)
    """)
    assert loaded.splitlines() == ["[]", "[]", "ProxyTracerProvider _ProxyMeterProvider"]


async def test_the_provider_may_be_told_by_endpoint() -> None:
    with Seen(provider="azure.ai.openai", providers={"b": "vllm"}) as seen:
        async with client_of(Judges({"a": [Do(0.1, breaks=True)]}), "ab", telemetry=seen.telemetry) as client:
            await client.stream_chat_completion(chat(), MODEL).final()
        assert attributes(seen.span("chat"))["gen_ai.provider.name"] == "vllm"
        assert seen.points("gen_ai.client.operation.duration")[0][1]["gen_ai.provider.name"] == "vllm"


def test_the_state_of_all_clients_is_added_up_and_a_client_that_is_gone_is_not_held() -> None:
    with Seen() as seen:
        clients = [client_of(Judges(), "a", telemetry=seen.telemetry) for _ in range(3)]
        (point,) = seen.points("qreward.client.concurrency.limit")
        assert point == (12, {"qreward.endpoint": "a", "server.address": "a.example", "server.port": 8000})
        assert {state["qreward.endpoint.state"]: count for count, state in seen.points("qreward.client.endpoint.count")} == {
            "available": 3, "ejected": 0, "probing": 0,
        }  # fmt: skip
        clients[0].mark_unhealthy("a")
        assert (1, {"qreward.endpoint.state": "ejected"}) in seen.points("qreward.client.endpoint.count")
        del clients[1:]
        gc.collect()
        ((limit, _),) = seen.points("qreward.client.concurrency.limit")
        assert limit == 4


async def test_a_closed_client_has_no_state_and_a_function_of_the_process_has_no_address() -> None:
    with Seen() as seen:
        async with QRewardClient([Endpoint.local(lambda _: "hi", name="mine")], telemetry=seen.telemetry) as client:
            await client.chat_completion(chat(), MODEL)
            ((_, point),) = seen.points("qreward.client.active_requests")
            assert point == {"qreward.endpoint": "mine"}
        assert seen.points("qreward.client.endpoint.count") == []


async def test_the_queue_is_seen_while_requests_wait() -> None:
    with Seen() as seen:
        async with client_of(Judges(), "a", telemetry=seen.telemetry, max_queued=100) as client:
            calls = [asyncio.ensure_future(client.chat_completion(chat(), MODEL)) for _ in range(10)]
            await asyncio.sleep(0.1)
            assert seen.points("qreward.client.queue.size") == [(6, {"qreward.queue.name": "*"})]
            assert seen.points("qreward.client.active_requests")[0][0] == 4
            await asyncio.gather(*calls)


def test_a_client_pickles_with_the_plain_settings_of_its_telemetry() -> None:
    with Seen(propagate=False, provider="x") as seen:
        client = QRewardClient(["http://a.example/v1"], telemetry=seen.telemetry)
        kept = pickle.loads(pickle.dumps(client))._runtime.telemetry
        assert (kept.propagate, kept.provider, kept.tracer_provider) == (False, "x", None)
    for make in (QRewardClient, SyncQRewardClient):
        without = pickle.loads(
            pickle.dumps(make.from_config({"endpoints": [{"base_url": "http://a.example/v1"}]}, telemetry=None, observers=[]))
        )
        assert getattr(without, "_async", without)._runtime.telemetry is None


# the line that sets up the SDK


def test_configure_sets_the_global_providers_that_clients_use_from_then_on_those_made_before_too() -> None:
    out = run_fresh(f"""
        import asyncio, sys
        sys.path[:0] = {[path for path in sys.path if "tests" in path]!r}
        from telemetry_server import MODEL, Judges, chat, client_of, Do
        from qreward.telemetry import configure

        async def main():
            async with client_of(Judges({{"a": [Do(0)]}}), "a") as client:
                await client.chat_completion(chat(), MODEL)
                try:
                    configure("console", service="rewards")
                except TypeError:
                    pass  # and no provider is set
                telemetry = configure("console", service_name="rewards")
                await asyncio.sleep(0.06)
                await client.chat_completion(chat(), MODEL)
                async with client_of(Judges({{"a": [Do(0)]}}), "a") as later:
                    await later.chat_completion(chat(), MODEL)
                telemetry.flush()

        asyncio.run(main())
        try:
            configure("console")
        except Exception as error:
            print("refused:", error)
    """)
    assert out.count(f'"name": "chat {MODEL}"') == 2, "and not the call that was made before"
    for metric in ("gen_ai.client.operation.duration", "qreward.client.active_requests"):
        assert f'"name": "{metric}"' in out
    assert '"service.name": "rewards"' in out
    assert "refused: telemetry: a global tracer provider is already set" in out


@each(
    "exporter, missing, named",
    [
        ("console", "opentelemetry.sdk", "opentelemetry-sdk"),
        ("otlp", "opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry-exporter-otlp-proto-http"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(exporter: Any, missing: str, named: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith(missing)]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, missing, None)
        with pytest.raises(ConfigError, match=f"pip install .*{named}"):
            configure(exporter, everywhere=False)
