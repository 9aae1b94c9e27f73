"""Judges: answers of models in words, read into verdicts and settled into a score. A reward model has the same face."""

from __future__ import annotations

from qreward.judge.config import JudgeConfig
from qreward.judge.factory import make_scorer
from qreward.judge.judge import Judge
from qreward.judge.parsing import PreferenceVerdict, ScoreVerdict, YesNoVerdict
from qreward.judge.reward_model import RewardModelScorer
from qreward.judge.sync import SyncJudge
from qreward.judge.types import Comparison, Item, Pair, Scorer, Verdict, Vote

__all__ = [
    "Comparison",
    "Item",
    "Judge",
    "JudgeConfig",
    "Pair",
    "PreferenceVerdict",
    "RewardModelScorer",
    "ScoreVerdict",
    "Scorer",
    "SyncJudge",
    "Verdict",
    "Vote",
    "YesNoVerdict",
    "make_scorer",
]
