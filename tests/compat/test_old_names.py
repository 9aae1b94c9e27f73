"""The old names of QReward 0.1.7: where they are found, what they say, and what of their behaviour is kept."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import MagicMock, Mock, call

import httpx
import pytest

import qreward
from qreward import BadRequest, CircuitOpen, ClientClosed, ConfigError, QRewardClient
from qreward.compat import GONE, KEPT
from qreward.compat.functions import (
    OldConfigWatcher,
    OldOptions,
    OldScheduleConfig,
    OldScheduleMetrics,
    OldTelemetryExporter,
    PriorityTaskQueue,
    schedule,
)
from qreward.compat.proxies import REPLACED, ModelRouter, OpenAIChatProxy, OpenAIChatProxyManager
from qreward.functions.config import ScheduleConfig
from qreward.functions.function import ScheduledFunction, ScheduleMetrics
from qreward.settings import policies
from qreward.testing import FakeEndpoint, FakeFleet, Latency

OLD_PATHS = {
    "qreward.client": {"LoadBalanceStrategy", "ModelRouter", "OpenAIChatProxy", "OpenAIChatProxyManager"},
    "qreward.client.load_balancer": {"LoadBalanceStrategy"},
    "qreward.client.manager": {"OpenAIChatProxyManager"},
    "qreward.client.model_router": {"ModelRouter"},
    "qreward.client.openai": {"OpenAIChatProxy"},
    "qreward.utils": {
        "RequestsTCPKeepAliveAdapter", "aiohttp_keepalive_socket_factory", "httpx_keepalive_socket", "patch_httpx", "retry", "schedule",
    },
    "qreward.utils.scheduler": {
        "AdaptiveRateLimiter", "AsyncRunner", "BaseRunner", "CircuitBreaker", "CircuitState", "ConfigWatcher", "ExecutionContext",
        "LimiterPool", "OverloadChecker", "Priority", "PriorityTaskQueue", "RunningTaskPool", "ScheduleConfig", "ScheduleMetrics",
        "SyncRunner", "TelemetryExporter", "schedule",
    },
}  # fmt: skip
"""What the modules of 0.1.7 exported."""
SAME_PLACE = ("qreward.client", "LoadBalanceStrategy")
"""An import that needs no change: the module of today has the name too."""


def deprecations(action: Callable[[], object]) -> list[str]:
    """The texts of the warnings of an action. All must be deprecations at a line of this file."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    assert all(each.category is DeprecationWarning and each.filename in (__file__, "<old>") for each in seen), seen
    return [str(each.message) for each in seen]


def imported(module: str, name: str) -> Callable[[], None]:
    return lambda: exec(compile(f"from {module} import {name}", "<old>", "exec"), {})


def test_every_name_of_0_1_7_is_found_with_one_warning_or_says_its_replacement() -> None:
    assert set().union(*OLD_PATHS.values()) == set(KEPT) | set(GONE)
    for module, names in OLD_PATHS.items():
        for name in sorted(names & set(GONE)):
            with pytest.raises(ImportError, match="was dropped") as raised:
                imported(module, name)()
            assert GONE[name] in str(raised.value)
        for name in sorted(names & set(KEPT)):
            texts = deprecations(imported(module, name))
            assert len(texts) == (name != "schedule" and (module, name) != SAME_PLACE), (module, name, texts)
            assert all(text.startswith(f"{module}.{name} is deprecated: {KEPT[name][1]}; see documentation page ") for text in texts)
        with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
            imported(module, "nonsense")()


def test_an_old_name_warns_at_each_use_and_is_the_object_of_today_where_nothing_has_changed() -> None:
    import qreward.client.load_balancer
    import qreward.utils.scheduler

    for _ in range(2):
        assert len(deprecations(lambda: qreward.utils.scheduler.Priority)) == 1
    assert qreward.utils.scheduler.schedule is schedule
    with pytest.deprecated_call():
        assert qreward.utils.scheduler.Priority is policies.Priority
    with pytest.deprecated_call():
        assert qreward.client.load_balancer.LoadBalanceStrategy is policies.LoadBalanceStrategy
    assert not hasattr(qreward.client, "nonsense")


def test_programs_that_use_no_old_name_load_none_of_this() -> None:
    script = "import sys, qreward; qreward.QRewardClient; print([name for name in sys.modules if 'compat' in name and 'qreward' in name])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


NEW_FORMS: list[tuple[dict[str, Any], str]] = [
    ({}, "()"),
    ({"timeout": 0, "limit_size": 0, "hedged_request_time": 0, "circuit_breaker_threshold": 0, "retry_times": 0}, "()"),
    ({"timeout": 30, "priority": policies.Priority.HIGH}, "(timeout=30.0, priority=Priority.HIGH)"),
    ({"retry_times": 5}, "(retry_times=5, retry_max_interval=1.0, speed_up_max_multiply=5)"),
    ({"retry_times": 2, "speed_up_max_multiply": 0, "retry_interval": 0}, "(retry_times=2, retry_interval=0.0)"),
    ({"adaptive_limit_min": 10}, "()"),
    ({"circuit_breaker_threshold": 2, "circuit_breaker_recovery": 0}, "(circuit_breaker_threshold=2, circuit_breaker_recovery=1e-06)"),
    ({"hedged_request_time": 3}, "(hedged_request_time=3.0, hedged_request_max_times=2)"),
    ({"adaptive_limit": True}, "()"),
    ({"adaptive_limit": True, "limit_size": 9}, "(limit_size=9, adaptive_limit=True, adaptive_latency_threshold=5.0)"),
    ({"exception_types": (ValueError, BaseException)}, "()"),
    ({"exception_types": TimeoutError}, "(exception_types=(TimeoutError,))"),
    ({"default_result": None}, "(default_result=None)"),
    ({"adaptive_window_seconds": 5.0}, "(); adaptive_window_seconds has no effect any more"),
]


def decorate(made: list[Any], old: dict[str, Any]) -> None:
    made.append(schedule(**old)(lambda: 1))


def test_the_warning_of_schedule_says_the_new_form_which_is_what_runs() -> None:
    for old, form in NEW_FORMS:
        made: list[Any] = []
        (text,) = deprecations(partial(decorate, made, old))
        assert f"and @schedule{form}; see documentation page" in text, old
        written, _, _ = form.partition(";")
        with warnings.catch_warnings():
            new = eval(f"qreward.ScheduleConfig{written}", {"qreward": qreward, "Priority": qreward.Priority, "TimeoutError": TimeoutError})
        runs = {**made[0].config.snapshot(), "default_result": new.default_result}
        ineffective = set() if new.retry_times else {"retry_interval", "retry_max_interval"}
        assert {name: runs[name] for name in runs if name not in ineffective} == {
            name: value for name, value in new.snapshot().items() if name not in ineffective
        }, old


def test_positional_settings_keep_their_order_and_wrong_ones_are_refused() -> None:
    with pytest.deprecated_call():
        function = schedule(5, 3)(lambda: 1)
    assert (function.config.timeout, function.config.hedged_request_time) == (5, 3)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"timeout": -1}, "timeout"),
        ({"retry_time": 1}, "retry_times"),
        ({"exception_types": "all"}, "exception_types"),
    ]
    for wrong, match in wrongs:
        with pytest.raises(ConfigError, match=match):
            schedule(**wrong)
    with pytest.raises(ConfigError, match="at most 24"):
        schedule(*range(25))


def old_schedule(**settings: Any) -> Any:
    with pytest.deprecated_call():
        return schedule(**settings)


def test_a_function_of_0_1_7_can_be_pickled_with_the_errors_that_it_retries() -> None:
    function = ScheduledFunction(max, ScheduleConfig(retry_times=3), partial(OldOptions, (KeyboardInterrupt,)))
    again = pickle.loads(pickle.dumps(function))  # as in a closure
    assert (again.options.exception_types, again.config.retry_times) == ((KeyboardInterrupt,), 3)
    assert again.call_blocking((1, 2), {}) == 2


async def test_an_open_circuit_is_the_error_of_then_and_of_now_also_where_there_is_a_default() -> None:
    @old_schedule(circuit_breaker_threshold=1, default_result="fallback")
    async def fails() -> str:
        raise OSError("away")

    assert await fails() == "fallback"
    with pytest.raises(RuntimeError) as raised:
        await fails()
    assert isinstance(raised.value, CircuitOpen)


async def test_what_ends_a_task_or_a_program_and_what_is_not_named_is_neither_retried_nor_replaced() -> None:
    class Stop(BaseException): ...

    tries: list[type[BaseException]] = []

    @old_schedule(retry_times=3, default_result=0)
    async def ends(error: BaseException) -> None:
        tries.append(type(error))
        raise error

    with pytest.raises(asyncio.CancelledError):
        await ends(asyncio.CancelledError())
    for settings, kinds in ({"default_result": 0}, (KeyboardInterrupt, SystemExit)), ({"exception_types": ValueError}, (Stop,)):
        for kind in kinds:

            @old_schedule(retry_times=3, **settings)
            def ends_blocking(error: BaseException) -> None:
                tries.append(type(error))
                raise error

            with pytest.raises(kind):
                ends_blocking(kind())
    assert tries == [asyncio.CancelledError, KeyboardInterrupt, SystemExit, Stop]


def test_a_default_replaces_every_failure_of_the_function_and_never_work_that_was_not_awaited() -> None:
    async def work() -> int:
        return 7

    class Scorer:
        @old_schedule(exception_types=OSError, default_result=lambda scorer, kind: (kind, 0))
        def score(self, kind: str) -> Any:
            if kind == "key":
                raise KeyError(kind)
            return work() if kind == "work" else 1

        @old_schedule(default_result=0)
        @staticmethod
        def of_none() -> int:
            return 1 // 0

    assert (Scorer().score("key"), Scorer().score("one"), Scorer().of_none()) == (("key", 0), 1, 0)
    with pytest.raises(ConfigError, match="async function"):
        Scorer().score("work")


def test_the_numbers_of_a_call_are_in_milliseconds_and_a_span_ends_with_them() -> None:
    of_today = ScheduleMetrics("f", None, "ok", None, False, tries=4, retries=2, hedges=1, queued=0.1, latency=0.5)
    numbers = OldScheduleMetrics.of(of_today)
    assert numbers == OldScheduleMetrics(4, 1, 3, 2, 500.0, 125.0)
    span = Mock()
    OldTelemetryExporter().end_span(span, numbers)
    named = {"total_calls": 4, "success_count": 1, "failure_count": 3, "retry_count": 2, "total_latency_ms": 500.0}
    assert span.mock_calls == [*(call.set_attribute(f"qreward.{name}", value) for name, value in named.items()), call.end()]
    with pytest.raises(ConfigError, match="telemetry_exporter="):
        OldTelemetryExporter().record(numbers)


def test_a_task_that_waited_for_the_threshold_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("qreward.compat.functions.monotonic", lambda: now[0])
    queue = PriorityTaskQueue(starvation_threshold=10)
    queue.put("low", priority=9)
    now[0] = 9.0
    queue.put("high", priority=0)
    assert queue.peek() == "high"
    now[0] = 10.0
    assert [queue.get(), queue.get(), queue.get()] == ["low", "high", None]
    with pytest.raises(ConfigError, match=r"priority must be in \[0, 9\]"):
        queue.put("x", priority=10)
    with pytest.raises(ConfigError, match="starvation_threshold must be >= 0"):
        PriorityTaskQueue(-1)


def test_a_parameter_of_a_proxy_that_cannot_be_kept_says_its_replacement() -> None:
    for name, text in REPLACED.items():
        wrong: dict[str, Any] = {name: lambda request: None}
        with pytest.raises(ConfigError) as raised:
            OpenAIChatProxy("http://gpu-0:8000/v1", api_key="secret-1", **wrong)
        assert text in str(raised.value)
        assert "secret-1" not in str(raised.value)
    with pytest.raises(ConfigError, match="never was a parameter"):
        OpenAIChatProxy("http://gpu-0:8000/v1", max_concurrency=3)
    assert "observers" in deprecations(lambda: OpenAIChatProxy("http://gpu-0:8000/v1", debug=True))[0]


async def test_a_manager_has_a_proxy_once_closes_those_it_removes_and_knows_no_other_key() -> None:
    manager = OpenAIChatProxyManager().add_proxies_with_default({"a": ("http://a/v1", "x"), "b": ("http://b/v1", "x")})
    proxies = manager.proxies()
    with pytest.raises(ConfigError, match="'a' exists already"):
        manager.add_proxy_with_default("a", "http://c/v1", "x")
    await manager.remove_proxy("a")
    await manager.remove_proxy("a")
    with pytest.raises(ClientClosed):
        await proxies["a"].chat_completion([{"role": "user", "content": "hi"}], "m")
    for unknown in (manager.proxy, manager.mark_healthy, manager.mark_unhealthy):
        with pytest.raises(KeyError):
            unknown("a")
    router = ModelRouter()
    router.register("m", {"b": proxies["b"]})
    for mark in (router.mark_healthy, router.mark_unhealthy):  # a router ignores what it does not know
        mark("m", "unknown")
        mark("other", "b")
    assert router.list_routes()[0]["healthy_count"] == 1
    await manager.close()
    assert manager.proxies() == {}
    with pytest.raises(ClientClosed):
        await proxies["b"].chat_completion([{"role": "user", "content": "hi"}], "m")


def test_the_limits_of_a_proxy_are_those_of_0_1_7_and_certificates_are_verified() -> None:
    proxy = OpenAIChatProxy("http://gpu-0:8000/v1", api_key="x", timeout=20)
    (endpoint,) = proxy.with_max_concurrent(8).client.config.endpoints
    assert (endpoint.limits.max_concurrency, endpoint.limits.rpm, endpoint.timeouts.attempt, endpoint.verify) == (8, None, 20, True)
    for timeout, seconds in ((httpx.Timeout(5), 5), (httpx.Timeout(None), 60), (None, 60)):
        assert OpenAIChatProxy("http://gpu-0:8000/v1", timeout=timeout).client.config.endpoints[0].timeouts.attempt == seconds


@pytest.mark.real_time
async def test_a_timeout_that_is_set_between_two_calls_applies_to_the_second() -> None:
    with FakeFleet([FakeEndpoint("a", latency=Latency(base=0.3))]) as fleet:
        async with OpenAIChatProxy(fleet.urls["a"], api_key="x") as proxy:
            chat = [{"role": "user", "content": "hi"}]
            assert await proxy.chat_completion(chat, "m")
            proxy.with_timeout(0.05)
            (error,) = await proxy.batch_chat_completion([chat], "m")
            assert isinstance(error, TimeoutError)
            assert await proxy.with_timeout(30).chat_completion(chat, "m")


async def test_a_proxy_sends_its_bucket_at_once_and_then_as_many_per_period(monkeypatch: pytest.MonkeyPatch) -> None:
    now = asyncio.get_running_loop().time
    sent: list[float] = []

    async def one(*_: object, **__: object) -> Any:
        sent.append(now())
        return MagicMock()

    async def batch(_self: object, conversations: Any, *_: object, **__: object) -> list[Any]:
        return [await one() async for _ in conversations]

    monkeypatch.setattr(QRewardClient, "chat_completion", one)
    monkeypatch.setattr(QRewardClient, "batch_chat_completion", batch)
    chat: Any = [{"role": "user", "content": "hi"}]
    for single in (True, False):
        sent.clear()
        proxy = OpenAIChatProxy("http://gpu-0:8000/v1", api_key="x", rate_limiter_bucket_size=50, rate_limiter_bucket_period=1)
        began = now()
        if single:
            await asyncio.gather(*(proxy.chat_completion(chat, "m") for _ in range(100)))
        else:
            await proxy.batch_chat_completion([chat] * 100, "m")
        assert sum(at - began < 0.01 for at in sent) == 50
        assert sent[-1] - began == pytest.approx(1.0, abs=0.05)


def test_a_watcher_changes_nothing_while_it_cools_down_and_looks_as_often_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [0.0]
    monkeypatch.setattr("qreward.compat.functions.monotonic", lambda: time[0])
    given: Iterator[Any] = iter([None, {"timeout": 1}, {"timeout": 2}, {"timeout": 3}])
    config = OldScheduleConfig()
    watcher = OldConfigWatcher(config, callback=lambda: next(given), poll_interval=0.5, cooldown=10)
    assert watcher._interval == 0.5
    polled = []
    for time[0] in (0.0, 1.0, 2.0, 10.9, 11.0):
        polled.append((watcher.poll_once(), config.timeout))
    assert polled == [(False, None), (True, 1), (False, 1), (False, 1), (True, 2)]


def test_a_zero_in_the_environment_switches_off_and_the_other_variables_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"TIMEOUT": "0", "LIMIT_SIZE": "0", "HEDGED_REQUEST_TIME": "0.0", "RETRY_TIMES": "7"}.items():
        monkeypatch.setenv(f"QREWARD_SCHEDULE_{name}", text)
    config = OldScheduleConfig(timeout=5, limit_size=9, hedged_request_time=3)
    assert OldConfigWatcher(config, source="env").poll_once()
    assert config == OldScheduleConfig(retry_times=7)


def test_a_function_of_today_follows_a_configuration_of_0_1_7() -> None:
    tries: list[None] = []

    def fails() -> None:
        tries.append(None)
        raise ValueError

    config = OldScheduleConfig(retry_interval=1e-3)
    function = qreward.schedule(config)(fails)
    for most in (0, 2):
        config.update(retry_times=most)
        with pytest.raises(ValueError):  # noqa: PT011 - it has no message
            function()
    assert len(tries) == 1 + 3


def test_a_setting_that_has_no_effect_any_more_does_not_hinder_the_others() -> None:
    config = OldScheduleConfig(timeout=5, adaptive_window_seconds=10.0)
    assert config.update(retry_times=4, adaptive_window_seconds=3.0) == {"retry_times"}
    answers: Iterator[Any] = iter([{"timeout": 6, "adaptive_window_seconds": 5.0}, {"timeout": 7}])
    watcher = OldConfigWatcher(config, callback=lambda: next(answers), cooldown=0)
    assert [watcher.poll_once(), watcher.poll_once()] == [True, True]
    assert config == OldScheduleConfig(timeout=7, retry_times=4)


def test_a_callback_of_0_1_7_may_return_only_what_changed() -> None:
    config = OldScheduleConfig(timeout=5)
    answers: Iterator[Any] = iter([{"timeout": 10}, {"retry_times": 3}])
    watcher = OldConfigWatcher(config, callback=lambda: next(answers), cooldown=0)
    assert [watcher.poll_once(), watcher.poll_once()] == [True, True]
    assert config == OldScheduleConfig(timeout=10, retry_times=3)


def test_a_configuration_computes_waits_and_calls_per_hedge_as_0_1_7_did() -> None:
    config = OldScheduleConfig(hedged_request_time=1, hedged_request_proportion=0.1)
    assert config.hedged_request_multiply == pytest.approx(9.0)
    assert OldScheduleConfig().hedged_request_multiply == 0
    for given, wait in {
        (2, 3, 10): 2,
        (2, 9, 10): 1,
        (2, 11, 10): 0.01,
        (-1, 0, 0): 0.01,
        (5, 100, 0): 5,
        (5, 100, -1): 5,
        (5, 5, 10): 5,
    }.items():
        assert config.adjust_wait_time(*given) == wait, given
    assert deprecations(lambda: config.get_max_wait_time(2, 0, 10)) == ["get_max_wait_time is deprecated, use adjust_wait_time instead"]


def test_telemetry_of_0_1_7_is_off_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = OldScheduleMetrics(1, 1, 0, 0, 1.0, 1.0)
    for text, on in {"false": False, "0": False, "No": False, "off": False, "true": True, "1": True}.items():
        monkeypatch.setenv("QREWARD_OTEL_ENABLED", text)
        assert OldTelemetryExporter.is_available() is on, text
        exporter, span = OldTelemetryExporter(), Mock()
        exporter._instruments = Mock()
        exporter.export(ScheduleMetrics("f", None, "ok", None, False, 1, 0, 0, 0.0, 0.1))
        exporter.end_span(span, numbers)
        assert (bool(exporter._instruments.mock_calls), bool(span.mock_calls)) == (on, on), text
        if not on:
            numbers.export_to_otel(exporter)
            exporter.end_span(exporter.start_span("f"), numbers)
    with pytest.raises(ConfigError, match="telemetry_exporter="):
        numbers.export_to_otel(OldTelemetryExporter())
    recorder = Mock()
    numbers.export_to_otel(recorder)
    numbers.export_to_otel()
    recorder.record.assert_called_once_with(numbers)


def test_a_queue_is_shown_in_its_order_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [0.0]
    monkeypatch.setattr("qreward.compat.functions.monotonic", lambda: time[0])
    queue = PriorityTaskQueue(starvation_threshold=10)
    queue.put("low", priority=9)
    time[0] = 5.0
    queue.put("normal")
    shown = [{"priority": 5, "sequence": 1, "wait_seconds": 0.0, "cancelled": False}]
    assert queue.snapshot() == [*shown, {"priority": 9, "sequence": 0, "wait_seconds": 5.0, "cancelled": False}]
    time[0] = 10.0
    assert [entry["priority"] for entry in queue.snapshot()] == [0, 5]
    queue.clear()
    assert (queue.is_empty, queue.get(), queue.snapshot()) == (True, None, [])


def test_threads_share_a_queue_and_each_item_is_taken_once() -> None:
    def put(begin: int) -> None:
        for number in range(begin, begin + 300):
            queue.put(number, number % 10)

    def get(_: int) -> list[Any]:
        return [queue.get() for _ in range(300)]

    queue, interval = PriorityTaskQueue(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            puts, gets = threads.map(put, (0, 300)), threads.map(get, range(2))
            assert list(puts) == [None, None]
            taken = [item for items in gets for item in items]
    finally:
        sys.setswitchinterval(interval)
    taken += [queue.get() for _ in range(queue.queue_size)]
    assert sorted(item for item in taken if item is not None) == list(range(600))


def test_misspelled_methods_of_0_1_7_work_and_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    assert OpenAIChatProxy.get_openai_key() == "key-1"
    proxy = OpenAIChatProxy("http://gpu-0:8000/v1")
    made: list[Any] = []
    assert "with_error_process_func" in deprecations(lambda: made.append(proxy.with_error_process_fuc(str)))[0]
    assert (made, proxy._process_error) == ([proxy], str)


async def test_an_empty_conversation_is_refused_with_what_to_send() -> None:
    async with OpenAIChatProxy("http://gpu-0:8000/v1", api_key="x") as proxy:
        (error,) = await proxy.batch_chat_completion([[]], "m")
        with pytest.raises(BadRequest, match="send at least one message"):
            await proxy.chat_completion([], "m")
    assert isinstance(error, BadRequest)


async def test_a_stream_takes_a_place_in_the_bucket_and_is_closed_when_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class FakeStream:
        async def __aenter__(self) -> FakeStream:
            seen.append("opened")
            return self

        async def __aexit__(self, *_: object) -> None:
            seen.append("closed")

        async def __aiter__(self) -> Any:
            for token in "ab":
                yield token

    monkeypatch.setattr(QRewardClient, "stream_chat_completion", lambda *_, **__: FakeStream())
    proxy = OpenAIChatProxy("http://gpu-0:8000/v1", api_key="x", rate_limiter_bucket_size=1, rate_limiter_bucket_period=10)
    began = asyncio.get_running_loop().time()
    stream: Any = proxy.stream_chat_completion([{"role": "user", "content": "hi"}], "m")
    assert await anext(stream) == "a"
    await stream.aclose()
    assert seen == ["opened", "closed"]
    assert [token async for token in proxy.stream_chat_completion([], "m")] == ["a", "b"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(10.0, abs=0.1)
