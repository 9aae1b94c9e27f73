"""``JudgeModel``, the interface of one question to one judge model. The modules that build, send and share requests use this interface.

``writing`` implements the interface for written answers, and ``deciding`` implements it for decisions. This module does not build prompts
or parse verdicts.
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


class JudgeModel(ABC):
    """Makes the requests for one question to one judge model, and reads the answers.

    Attributes:
        model: name of the model.
        reasks: how often a request is sent again after an answer that cannot be read.
        format: the form of new requests, such as a response format. The form changes when servers reject it.
        cached_as: name of the model in the cache, including the namespace.
        identity: the part of the request key that all requests of this object share. Headers are left out, because they may contain an API
            key.
        question: the text at the end of the prompt that asks the question and says how to answer; ``""`` for no such text.
        reads: how an answer is read, if the questions of two rubrics are equal, but their names, weights or values differ. Only calls with
            equal ``reads`` share an answer.
    """

    model: str
    reasks: int
    format: str
    cached_as: str
    identity: bytes
    question: str
    reads: str = ""

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
    def prepare(self, sample: int, room: int = 1, cut_at: int = 0) -> Callable[[Any], WireRequest]:
        """Return the function that makes a request from the return value of :meth:`input_of`. Raises ``ConfigError`` or ``BadRequest``.

        ``room`` is the factor by which a limit of tokens is raised: the user's limit, or ``cut_at`` if the user set none.
        """

    def has_more_room(self, room: int, cut_at: int) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether an answer that was cut off may become longer if ``room`` is doubled."""
        return False

    @abstractmethod
    def fall_back(self, form: str, error: QRewardError, reply: Reply | None = None) -> bool:
        """Return whether a request that failed in the form ``form`` should be sent again in another form.

        ``reply`` is the reply that could not be read, if there was one. If the method returns True, new requests use the other form too.
        """

    @abstractmethod
    def parse(self, answer: Any) -> Reply: ...

    @abstractmethod
    def vote(self, reply: Reply, *, swapped: bool) -> Vote:
        """Return the vote of a reply. Raises ``Unreadable`` and ``ScoreFunctionError``."""

    def divided(self, inputs: Any, error: QRewardError) -> Sequence[Any]:  # noqa: ARG002 - for subclasses
        """Return the parts into which a failed request is divided; empty if it cannot be divided.

        The parts are sent one after the other.
        """
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
