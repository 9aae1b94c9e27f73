"""LLM judges: ask one or more models, parse their answers into verdicts, and aggregate the verdicts into a score."""

from __future__ import annotations

from qreward.judge.agreement import AgreementReport, agreement, calibrate
from qreward.judge.calibration import Calibration
from qreward.judge.cascade import Cascade, CascadeConfig, SyncScorer
from qreward.judge.config import JudgeConfig
from qreward.judge.judge import Judge, SyncJudge
from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, YesNoVerdict
from qreward.judge.ranking import Ranking
from qreward.judge.reward_model import RewardModelScorer, make_scorer
from qreward.judge.rubric import Criterion, Rubric
from qreward.judge.types import Comparison, CriterionResult, Item, Pair, Scorer, Verdict, Vote

__all__ = [
    "AgreementReport",
    "Calibration",
    "Cascade",
    "CascadeConfig",
    "Comparison",
    "Criterion",
    "CriterionResult",
    "Item",
    "Judge",
    "JudgeConfig",
    "Pair",
    "PreferenceVerdict",
    "Ranking",
    "RewardModelScorer",
    "Rubric",
    "ScoreVerdict",
    "Scorer",
    "SyncJudge",
    "SyncScorer",
    "Verdict",
    "Vote",
    "YesNoVerdict",
    "agreement",
    "calibrate",
    "make_scorer",
]
