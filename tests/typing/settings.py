"""Settings, and what is refused about them before the program runs; results and errors as reward code reads them. Checked, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_type

from pydantic import SecretStr

from qreward import (
    ApiKey,
    AttemptRecord,
    BatchInterrupted,
    BatchResult,
    BatchStats,
    ConfigError,
    Endpoint,
    EndpointStats,
    Limits,
    LoadBalanceStrategy,
    Priority,
    QRewardError,
    RequestError,
    RequestTimeout,
    Result,
    Retry,
    Route,
    Rubric,
    ScheduleConfig,
    Timeouts,
    Usage,
)
from qreward.integrations.trainers import RewardConfig
from qreward.judge import JudgeConfig
from qreward.server import ServerConfig
from qreward.settings.client import ClientConfig, config_from_env, load_config


def right() -> None:
    limits = Limits(max_concurrency=64, rpm=600, tpm=None)
    assert_type(limits.max_concurrency, int | None)
    assert_type(limits.rpm, float | None)
    endpoint = Endpoint("http://gpu-0:8000/v1", api_key="${JUDGE_KEY}", models=["judge-*"], limits=limits, timeouts=Timeouts(connect=5))
    assert_type(endpoint.name, str)
    assert_type(endpoint.api_key, SecretStr | ApiKey | None)
    assert_type(endpoint.models, tuple[str, ...])
    route = Route(pattern="judge-*", endpoints=("gpu-0",), strategy=LoadBalanceStrategy.LEAST_CONNECTIONS, weights={"gpu-0": 2})
    config = ClientConfig(endpoints=(endpoint,), routes=(route,), retry=Retry(attempts=2), timeout=None)
    assert_type(config.timeout, float | None)
    assert_type(load_config("qreward.yaml"), ClientConfig)
    assert_type(load_config({"endpoints": []}), ClientConfig)
    assert_type(config_from_env(), ClientConfig)


def what_settings_accept_and_what_they_are_read_as() -> int:
    """A setting may be given in several forms, as at run time, and is read in one."""
    judge = JudgeConfig(model="judge-7b", rubric="rubric.yaml", calibration=Path("calibration.json"), cache=Path("verdicts.sqlite"))
    assert_type(judge.model, tuple[str, ...])
    assert_type(judge.rubric, Rubric | None)
    assert_type(judge.cache, str | None)
    assert_type(JudgeConfig(model=["judge-7b", "judge-70b"], rubric={"right": "It is right."}).samples, int)
    assert_type(ScheduleConfig(priority="low").priority, int)
    assert_type(ScheduleConfig(priority=Priority.HIGH).retry_times, int)
    assert_type(ServerConfig(token="${TOKEN}").token, SecretStr | None)
    assert_type(RewardConfig(reward_model="rm-7b", priority="high").priority, int)
    assert_type(Route(pattern="judge-*", endpoints=["gpu-0"]).endpoints, tuple[str, ...])
    assert_type(ClientConfig(endpoints=[Endpoint("http://gpu-0:8000/v1")]).endpoints, tuple[Endpoint, ...])
    return Priority.HIGH


def refused(result: Result[str], stats: EndpointStats) -> None:
    JudgeConfig(model=7)  # type: ignore[arg-type]
    JudgeConfig(models="judge-7b")  # type: ignore[call-arg]
    ScheduleConfig(priority=None)  # type: ignore[arg-type]
    ServerConfig(token=7)  # type: ignore[arg-type]
    Limits(rpmm=600)  # type: ignore[call-arg]
    Limits(max_concurrency="many")  # type: ignore[arg-type]
    Timeouts(connect=None)  # type: ignore[arg-type]
    Route(pattern="judge-*")  # type: ignore[call-arg]
    Route(pattern="judge-*", endpoints=("gpu-0",), strategy="fastest")  # type: ignore[arg-type]
    load_config(None)  # type: ignore[arg-type]
    result.value = "x"  # type: ignore[misc]
    stats.sent = 1  # type: ignore[misc]


def rewards(batch: BatchResult[str]) -> list[float | None]:
    assert_type(batch[0], Result[str])
    assert_type(batch[:2], list[Result[str]])
    assert_type(batch.stats, BatchStats)
    assert_type(batch.stats.endpoints, Mapping[str, EndpointStats])
    assert_type(batch.stats.endpoints["gpu-0"].p95, float | None)
    results: Sequence[Result[str]] = batch
    return [float(result.text) if result.ok else None for result in results]


def one(result: Result[str]) -> float:
    assert_type(result.value, str)
    assert_type(result.error, QRewardError | None)
    assert_type(result.usage, Usage | None)
    assert_type(result.endpoint, str | None)
    assert_type(result.attempts, tuple[AttemptRecord, ...])
    return result.latency + result.queued


def errors(error: RequestError, late: RequestTimeout, interrupted: BatchInterrupted, wrong: ConfigError) -> tuple[TimeoutError, ValueError]:
    assert_type(error.attempts, tuple[AttemptRecord, ...])
    assert_type(error.status_code, int | None)
    assert_type(error.endpoint, str | None)
    results: BatchResult[object] | None = interrupted.results
    assert results
    return late, wrong
