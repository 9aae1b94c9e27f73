"""``JudgeModel``, the interface of one question to one judge model. The modules that build, send and share requests use this interface."""

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


class JudgeModel(ABC):
    """Makes the requests for one question to one judge model, and reads the answers."""

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
    def input_of(self, messages: Messages) -> Any:
        """Return the input of a request with these messages. Raises ``BadRequest`` if the messages cannot be sent."""

    @abstractmethod
    def criterion_of(self, inputs: Any) -> str:
        """Return the name of the criterion that a request asks about; ``""`` if the request asks about several criteria or has no
        rubric."""

    @abstractmethod
    def prepare(self, sample: int, room: int = 1) -> Callable[[Any], WireRequest]:
        """Return the function that makes a request from the return value of :meth:`input_of`. Raises ``ConfigError`` or ``BadRequest``."""

    def has_more_room(self, room: int) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether an answer that was cut off may become longer if ``room`` is doubled."""
        return False

    @abstractmethod
    def fall_back(self, form: str, error: QRewardError, reply: Reply | None = None) -> bool:
        """Return whether a request that failed in the form ``form`` should be sent again in another form."""

    @abstractmethod
    def parse(self, answer: Any) -> Reply: ...

    @abstractmethod
    def vote(self, reply: Reply, *, swapped: bool) -> Vote:
        """Return the vote of a reply. Raises ``Unreadable`` and ``ScoreFunctionError``."""

    def divided(self, inputs: Any, error: QRewardError) -> Sequence[Any]:  # noqa: ARG002 - for subclasses
        """Return the parts into which a failed request is divided; empty if it cannot be divided."""
        return ()

    def joined(self, replies: Sequence[Reply]) -> Reply:
        raise NotImplementedError

    @abstractmethod
    def repeated(self, inputs: Any, reply: Reply, reason: str) -> Any:
        """Return the input of the next request, after a reply that could not be read. ``reason`` says why it could not be read."""

    def without_verdict(self, reply: Reply, reason: str, times: str) -> str:  # noqa: ARG002 - for subclasses
        """Return the error message for a reply without a verdict. ``times`` is, for example, ``" in 2 answers"``; ``""`` for one reply."""
        return f"model {self.model!r} gave no verdict: {reason}"


_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def encoded(value: object) -> bytes:
    """Return a value as JSON, for use in a key. A lone surrogate is escaped, because UTF-8 cannot encode it."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()
