"""One async client for many LLM-judge and GPU reward endpoints.

This module only exports the public names. Each name is imported on first use.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

_HOMES = {
    "qreward.batching": ("BatchQueue", "QueueStats", "batch"),
    "qreward.batching.reward_buffer": ("RewardBuffer",),
    "qreward.bulk.report": ("BulkReport",),
    "qreward.client": ("QRewardClient",),
    "qreward.functions.config": ("ScheduleConfig",),
    "qreward.functions.function": ("ScheduleMetrics", "ScheduleStats", "schedule"),
    "qreward.functions.watcher": ("ConfigWatcher",),
    "qreward.judge.agreement": ("AgreementReport", "agreement"),
    "qreward.judge.calibration": ("Calibration",),
    "qreward.judge.cascade": ("Cascade", "CascadeConfig", "SyncScorer"),
    "qreward.judge.config": ("JudgeConfig",),
    "qreward.judge.gold": ("calibrate",),
    "qreward.judge.judge": ("Judge", "SyncJudge"),
    "qreward.judge.parsing": ("PreferenceVerdict", "ScoreVerdict", "YesNoVerdict"),
    "qreward.judge.ranking": ("Ranking",),
    "qreward.judge.reward_model": ("RewardModelScorer", "make_scorer"),
    "qreward.judge.rubric": ("Criterion", "Rubric"),
    "qreward.judge.types": ("Comparison", "CriterionResult", "Scorer", "Verdict", "Vote"),
    "qreward.observers": ("MetricsCallback", "Observer"),
    "qreward.settings.api_key": ("ApiKey",),
    "qreward.settings.policies": (
        "Endpoint", "Hedge", "Limits", "LoadBalanceStrategy", "PrefixAffinity", "Priority", "Retry", "RewardModel", "Route", "Timeouts",
    ),
    "qreward.progress": ("Progress",),
    "qreward.reasons": ("EndpointReason", "Explanation"),
    "qreward.live.snapshot": ("Snapshot",),
    "qreward.results": (
        "AttemptRecord", "BatchFailed", "BatchInterrupted", "BatchResult", "BatchStats", "EndpointState", "EndpointStats", "FleetStats",
        "Result", "Usage",
    ),
    "qreward.streaming.handles": ("BatchStream", "Stream"),
    "qreward.streaming.sync": ("SyncBatchStream", "SyncStream"),
    "qreward.decisions": ("Choice", "Decision", "DecisionAnswer", "Score", "YesNo"),
    "qreward.engine.streams": ("StreamRestarted",),
    "qreward.sync_client": ("SyncQRewardClient",),
    "qreward.telemetry": ("Telemetry", "TelemetryExporter"),
    "qreward.tuning": ("tune_gc",),
    "qreward.codecs.rewards.base": ("ListCodec", "MergeLimits", "RewardScore", "ServerKind"),
    "qreward.codecs.rewards.kinds": ("register_kind",),
    "qreward.errors": (
        "AuthenticationFailed", "BadRequest", "BatchCancelled", "BudgetExceeded", "CircuitOpen", "ClientClosed", "ConfigError",
        "ConnectionFailed", "DeadlineExceeded", "InvalidResponse", "NoEndpoint", "QRewardError", "QueueFull", "RateLimited", "Rejected",
        "RequestError", "RequestTimeout", "ServerError", "StreamInterrupted",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])  # noqa: PLE0605 - a test compares it with the imports under TYPE_CHECKING

if TYPE_CHECKING:
    from qreward.batching import BatchQueue as BatchQueue
    from qreward.batching import QueueStats as QueueStats
    from qreward.batching import batch as batch
    from qreward.batching.reward_buffer import RewardBuffer as RewardBuffer
    from qreward.bulk.report import BulkReport as BulkReport
    from qreward.client import QRewardClient as QRewardClient
    from qreward.codecs.rewards.base import ListCodec as ListCodec
    from qreward.codecs.rewards.base import MergeLimits as MergeLimits
    from qreward.codecs.rewards.base import RewardScore as RewardScore
    from qreward.codecs.rewards.base import ServerKind as ServerKind
    from qreward.codecs.rewards.kinds import register_kind as register_kind
    from qreward.decisions import Choice as Choice
    from qreward.decisions import Decision as Decision
    from qreward.decisions import DecisionAnswer as DecisionAnswer
    from qreward.decisions import Score as Score
    from qreward.decisions import YesNo as YesNo
    from qreward.engine.streams import StreamRestarted as StreamRestarted
    from qreward.errors import AuthenticationFailed as AuthenticationFailed
    from qreward.errors import BadRequest as BadRequest
    from qreward.errors import BatchCancelled as BatchCancelled
    from qreward.errors import BudgetExceeded as BudgetExceeded
    from qreward.errors import CircuitOpen as CircuitOpen
    from qreward.errors import ClientClosed as ClientClosed
    from qreward.errors import ConfigError as ConfigError
    from qreward.errors import ConnectionFailed as ConnectionFailed
    from qreward.errors import DeadlineExceeded as DeadlineExceeded
    from qreward.errors import InvalidResponse as InvalidResponse
    from qreward.errors import NoEndpoint as NoEndpoint
    from qreward.errors import QRewardError as QRewardError
    from qreward.errors import QueueFull as QueueFull
    from qreward.errors import RateLimited as RateLimited
    from qreward.errors import Rejected as Rejected
    from qreward.errors import RequestError as RequestError
    from qreward.errors import RequestTimeout as RequestTimeout
    from qreward.errors import ServerError as ServerError
    from qreward.errors import StreamInterrupted as StreamInterrupted
    from qreward.functions.config import ScheduleConfig as ScheduleConfig
    from qreward.functions.function import ScheduleMetrics as ScheduleMetrics
    from qreward.functions.function import ScheduleStats as ScheduleStats
    from qreward.functions.function import schedule as schedule
    from qreward.functions.watcher import ConfigWatcher as ConfigWatcher
    from qreward.judge.agreement import AgreementReport as AgreementReport
    from qreward.judge.agreement import agreement as agreement
    from qreward.judge.calibration import Calibration as Calibration
    from qreward.judge.cascade import Cascade as Cascade
    from qreward.judge.cascade import CascadeConfig as CascadeConfig
    from qreward.judge.cascade import SyncScorer as SyncScorer
    from qreward.judge.config import JudgeConfig as JudgeConfig
    from qreward.judge.gold import calibrate as calibrate
    from qreward.judge.judge import Judge as Judge
    from qreward.judge.judge import SyncJudge as SyncJudge
    from qreward.judge.parsing import PreferenceVerdict as PreferenceVerdict
    from qreward.judge.parsing import ScoreVerdict as ScoreVerdict
    from qreward.judge.parsing import YesNoVerdict as YesNoVerdict
    from qreward.judge.ranking import Ranking as Ranking
    from qreward.judge.reward_model import RewardModelScorer as RewardModelScorer
    from qreward.judge.reward_model import make_scorer as make_scorer
    from qreward.judge.rubric import Criterion as Criterion
    from qreward.judge.rubric import Rubric as Rubric
    from qreward.judge.types import Comparison as Comparison
    from qreward.judge.types import CriterionResult as CriterionResult
    from qreward.judge.types import Scorer as Scorer
    from qreward.judge.types import Verdict as Verdict
    from qreward.judge.types import Vote as Vote
    from qreward.live.snapshot import Snapshot as Snapshot
    from qreward.observers import MetricsCallback as MetricsCallback
    from qreward.observers import Observer as Observer
    from qreward.progress import Progress as Progress
    from qreward.reasons import EndpointReason as EndpointReason
    from qreward.reasons import Explanation as Explanation
    from qreward.results import AttemptRecord as AttemptRecord
    from qreward.results import BatchFailed as BatchFailed
    from qreward.results import BatchInterrupted as BatchInterrupted
    from qreward.results import BatchResult as BatchResult
    from qreward.results import BatchStats as BatchStats
    from qreward.results import EndpointState as EndpointState
    from qreward.results import EndpointStats as EndpointStats
    from qreward.results import FleetStats as FleetStats
    from qreward.results import Result as Result
    from qreward.results import Usage as Usage
    from qreward.settings.api_key import ApiKey as ApiKey
    from qreward.settings.policies import Endpoint as Endpoint
    from qreward.settings.policies import Hedge as Hedge
    from qreward.settings.policies import Limits as Limits
    from qreward.settings.policies import LoadBalanceStrategy as LoadBalanceStrategy
    from qreward.settings.policies import PrefixAffinity as PrefixAffinity
    from qreward.settings.policies import Priority as Priority
    from qreward.settings.policies import Retry as Retry
    from qreward.settings.policies import RewardModel as RewardModel
    from qreward.settings.policies import Route as Route
    from qreward.settings.policies import Timeouts as Timeouts
    from qreward.streaming.handles import BatchStream as BatchStream
    from qreward.streaming.handles import Stream as Stream
    from qreward.streaming.sync import SyncBatchStream as SyncBatchStream
    from qreward.streaming.sync import SyncStream as SyncStream
    from qreward.sync_client import SyncQRewardClient as SyncQRewardClient
    from qreward.telemetry import Telemetry as Telemetry
    from qreward.telemetry import TelemetryExporter as TelemetryExporter
    from qreward.tuning import tune_gc as tune_gc

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
