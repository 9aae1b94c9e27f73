"""One async client for many LLM-judge and GPU reward endpoints.

This module only exports the public names. Each name is imported on first use.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

_HOMES = {
    "qreward.batching": ("batch", "BatchQueue", "QueueStats"),
    "qreward.batching.reward_buffer": ("RewardBuffer",),
    "qreward.bulk.outputs": ("BulkReport",),
    "qreward.client": ("QRewardClient",),
    "qreward.codecs.rewards.base": ("ListCodec", "MergeLimits", "RewardScore", "ServerKind"),
    "qreward.codecs.rewards.kinds": ("register_kind",),
    "qreward.decisions": ("Choice", "Decision", "DecisionAnswer", "Score", "YesNo"),
    "qreward.engine.streams": ("StreamRestarted",),
    "qreward.errors": (
        "AuthenticationFailed", "BadRequest", "BatchCancelled", "BudgetExceeded", "CircuitOpen", "ClientClosed", "ConfigError",
        "ConnectionFailed", "DeadlineExceeded", "InvalidResponse", "NoEndpoint", "QRewardError", "QueueFull", "RateLimited", "Rejected",
        "RequestError", "RequestTimeout", "ServerError", "StreamInterrupted",
    ),
    "qreward.functions.config": ("ScheduleConfig",),
    "qreward.functions.function": ("schedule", "ScheduleMetrics", "ScheduleStats"),
    "qreward.functions.watcher": ("ConfigWatcher",),
    "qreward.judge.agreement": ("agreement", "AgreementReport", "calibrate"),
    "qreward.judge.calibration": ("Calibration",),
    "qreward.judge.cascade": ("Cascade", "CascadeConfig", "SyncScorer"),
    "qreward.judge.config": ("JudgeConfig",),
    "qreward.judge.judge": ("Judge", "SyncJudge"),
    "qreward.judge.parsing": ("PreferenceVerdict", "ScoreVerdict", "YesNoVerdict"),
    "qreward.judge.ranking": ("Ranking",),
    "qreward.judge.reward_model": ("make_scorer", "RewardModelScorer"),
    "qreward.judge.rubric": ("Criterion", "Rubric"),
    "qreward.judge.types": ("Comparison", "CriterionResult", "Scorer", "Verdict", "Vote"),
    "qreward.live.snapshot": ("Snapshot",),
    "qreward.observers": ("MetricsCallback", "Observer"),
    "qreward.progress": ("Progress",),
    "qreward.results": (
        "AttemptRecord", "BatchFailed", "BatchInterrupted", "BatchResult", "BatchStats", "EndpointReason", "EndpointState", "EndpointStats",
        "Explanation", "FleetStats", "Result", "Usage",
    ),
    "qreward.runtime": ("tune_gc",),
    "qreward.settings.policies": (
        "ApiKey", "Endpoint", "Hedge", "Limits", "LoadBalanceStrategy", "PrefixAffinity", "Priority", "Retry", "RewardModel", "Route",
        "Timeouts",
    ),
    "qreward.streaming": ("BatchStream", "Stream", "SyncBatchStream", "SyncStream"),
    "qreward.sync_client": ("SyncQRewardClient",),
    "qreward.telemetry": ("Telemetry", "TelemetryExporter"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])  # noqa: PLE0605 - a test compares it with the imports under TYPE_CHECKING

if TYPE_CHECKING:  # the same names, because type checkers read only statements
    # fmt: off
    # isort: off
    from qreward.batching import batch as batch, BatchQueue as BatchQueue, QueueStats as QueueStats
    from qreward.batching.reward_buffer import RewardBuffer as RewardBuffer
    from qreward.bulk.outputs import BulkReport as BulkReport
    from qreward.client import QRewardClient as QRewardClient
    from qreward.codecs.rewards.base import ListCodec as ListCodec, MergeLimits as MergeLimits, RewardScore as RewardScore
    from qreward.codecs.rewards.base import ServerKind as ServerKind
    from qreward.codecs.rewards.kinds import register_kind as register_kind
    from qreward.decisions import Choice as Choice, Decision as Decision, DecisionAnswer as DecisionAnswer, Score as Score, YesNo as YesNo
    from qreward.engine.streams import StreamRestarted as StreamRestarted
    from qreward.errors import (
        AuthenticationFailed as AuthenticationFailed, BadRequest as BadRequest, BatchCancelled as BatchCancelled,
        BudgetExceeded as BudgetExceeded, CircuitOpen as CircuitOpen, ClientClosed as ClientClosed, ConfigError as ConfigError,
        ConnectionFailed as ConnectionFailed, DeadlineExceeded as DeadlineExceeded, InvalidResponse as InvalidResponse,
        NoEndpoint as NoEndpoint, QRewardError as QRewardError, QueueFull as QueueFull, RateLimited as RateLimited, Rejected as Rejected,
        RequestError as RequestError, RequestTimeout as RequestTimeout, ServerError as ServerError, StreamInterrupted as StreamInterrupted,
    )
    from qreward.functions.config import ScheduleConfig as ScheduleConfig
    from qreward.functions.function import schedule as schedule, ScheduleMetrics as ScheduleMetrics, ScheduleStats as ScheduleStats
    from qreward.functions.watcher import ConfigWatcher as ConfigWatcher
    from qreward.judge.agreement import agreement as agreement, AgreementReport as AgreementReport, calibrate as calibrate
    from qreward.judge.calibration import Calibration as Calibration
    from qreward.judge.cascade import Cascade as Cascade, CascadeConfig as CascadeConfig, SyncScorer as SyncScorer
    from qreward.judge.config import JudgeConfig as JudgeConfig
    from qreward.judge.judge import Judge as Judge, SyncJudge as SyncJudge
    from qreward.judge.parsing import PreferenceVerdict as PreferenceVerdict, ScoreVerdict as ScoreVerdict, YesNoVerdict as YesNoVerdict
    from qreward.judge.ranking import Ranking as Ranking
    from qreward.judge.reward_model import make_scorer as make_scorer, RewardModelScorer as RewardModelScorer
    from qreward.judge.rubric import Criterion as Criterion, Rubric as Rubric
    from qreward.judge.types import (
        Comparison as Comparison, CriterionResult as CriterionResult, Scorer as Scorer, Verdict as Verdict, Vote as Vote,
    )
    from qreward.live.snapshot import Snapshot as Snapshot
    from qreward.observers import MetricsCallback as MetricsCallback, Observer as Observer
    from qreward.progress import Progress as Progress
    from qreward.results import (
        AttemptRecord as AttemptRecord, BatchFailed as BatchFailed, BatchInterrupted as BatchInterrupted, BatchResult as BatchResult,
        BatchStats as BatchStats, EndpointReason as EndpointReason, EndpointState as EndpointState, EndpointStats as EndpointStats,
        Explanation as Explanation, FleetStats as FleetStats, Result as Result, Usage as Usage,
    )
    from qreward.runtime import tune_gc as tune_gc
    from qreward.settings.policies import (
        ApiKey as ApiKey, Endpoint as Endpoint, Hedge as Hedge, Limits as Limits, LoadBalanceStrategy as LoadBalanceStrategy,
        PrefixAffinity as PrefixAffinity, Priority as Priority, Retry as Retry, RewardModel as RewardModel, Route as Route,
        Timeouts as Timeouts,
    )
    from qreward.streaming import BatchStream as BatchStream, Stream as Stream, SyncBatchStream as SyncBatchStream, SyncStream as SyncStream
    from qreward.sync_client import SyncQRewardClient as SyncQRewardClient
    from qreward.telemetry import Telemetry as Telemetry, TelemetryExporter as TelemetryExporter
    # isort: on
    # fmt: on

    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("qreward")
    if name not in _HOME_OF:
        if not name.startswith("_") and importlib.util.find_spec(f"qreward.{name}") is not None:  # such as qreward.options
            return importlib.import_module(f"qreward.{name}")
        raise AttributeError(f"module 'qreward' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
