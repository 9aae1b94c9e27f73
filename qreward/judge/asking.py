"""``JudgeModel``: one question to one judge model, as the modules that build, send and share requests see it.

``writing`` and ``deciding`` hold the two ways of asking. This module knows neither prompts nor verdicts.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from qreward.codecs.base import WireRequest
from qreward.errors import QRewardError
from qreward.judge.codec import Reply
from qreward.judge.config import JudgeConfig
from qreward.judge.prompts import Messages
from qreward.judge.types import Vote

UNSENT = ("extra_headers", "extra_body", "hedge")
"""Parameters of a judge that are no members of the body."""


class JudgeModel(ABC):
    """One question to one judge model. With a rubric, a model has one for each request about an item.

    Attributes:
        model: name of the model.
        reasks: how often a request is sent again after an answer that cannot be read.
        format: the form of new requests. It may change, when servers do not accept it.
        cached_as: name of the model in the cache, including the namespace.
        identity: the part of the key that all its requests share. Headers are left out, as they may contain an API key.
        question: what follows the material in the prompt: what is asked, and how to answer. ``""`` for nothing.
    """

    model: str
    reasks: int
    format: str
    cached_as: str
    identity: bytes
    question: str

    def __init__(self, model: str, config: JudgeConfig) -> None:
        self.model = model
        self.cached_as = json.dumps([config.cache_namespace, model])

    @abstractmethod
    def asked(self, messages: Messages) -> Any:
        """What is sent about these messages, which end with the question. Raises ``BadRequest`` if it cannot be sent."""

    @abstractmethod
    def about(self, asked: Any) -> str:
        """The name of the criterion that a request is about, if it is one of several; else ``""``."""

    @abstractmethod
    def prepare(self, sample: int) -> Callable[[Any], WireRequest]:
        """The function that makes a request from what :meth:`asked` returned. Raises ``ConfigError`` or ``BadRequest``."""

    @abstractmethod
    def fall_back(self, form: str, error: QRewardError) -> bool:
        """Whether a request that failed in this form should be sent again in another. If so, new requests use the other form."""

    @abstractmethod
    def parse(self, answer: Any) -> Reply:
        """The reply in a decoded response."""

    @abstractmethod
    def vote(self, reply: Reply, *, swapped: bool) -> Vote:
        """The reply as a vote. Raises ``Unreadable`` and ``ScoreFunctionError``."""

    def divided(self, asked: Any, error: QRewardError) -> Sequence[Any]:  # noqa: ARG002 - for subclasses
        """The parts in which a request that failed is sent instead, one after the other; none if it is not."""
        return ()

    def joined(self, replies: Sequence[Reply]) -> Reply:
        """The reply to a request from those to its parts."""
        raise NotImplementedError

    @abstractmethod
    def repeated(self, asked: Any, reply: Reply, reason: str) -> Any:
        """What is sent after a reply that could not be read, for a reason."""

    def without_verdict(self, reply: Reply, reason: str, times: str) -> str:  # noqa: ARG002 - for subclasses
        """The message about a reply without a verdict. ``times`` says how many replies there were, if several."""
        return f"model {self.model!r} gave no verdict: {reason}"


_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def encoded(value: object) -> bytes:
    """JSON, equal for equal values. A lone surrogate cannot be encoded as UTF-8, so it is escaped, as in the request itself."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()
