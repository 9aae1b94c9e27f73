"""Ask a model to write its verdict: the request, the response format that its servers accept, and the reading of the answer.

This is one way of asking. Another one, such as an endpoint that answers with probabilities, is a class with the public members of
:class:`JudgeModel`, through which the other modules send questions and read answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from qreward.codecs.base import WireRequest
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.judge.codec import JUDGE, ModelReply, parse_reply, refuses_format
from qreward.judge.config import JudgeConfig, ResponseFormat
from qreward.judge.prompts import Messages
from qreward.judge.types import Vote
from qreward.judge.verdict_parser import VerdictParser
from qreward.options import preparer

SENT_BACK = 4000
"""Characters of an unreadable answer that are sent back to the model: its end, where the verdict is."""
LADDER: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "none")
"""Response formats, from the strictest to the one that every server accepts."""


class JudgeModel:
    """One model of a judge, with the parser of its answers and the response format that its servers accept.

    ``auto`` starts with the first format of ``LADDER`` and moves to the next one when a server rejects it. If the endpoints of a route
    differ, all are sent the first format that every one of them accepts.

    Attributes:
        model: name of the model.
        reasks: how often a request is sent again after an answer that cannot be read.
        format: the response format of new requests.
        cached_as: name of the model in the cache, including the namespace.
        identity: the part of the key that all its requests share. Headers are left out, as they may contain an API key.

    Raises:
        ConfigError: the parameters cannot be sent.
    """

    def __init__(self, model: str, parser: VerdictParser, config: JudgeConfig) -> None:
        self.model, self.reasks, self._parser = model, config.reasks, parser
        self.cached_as = json.dumps([config.cache_namespace, model])
        self._is_auto = config.response_format == "auto"
        self.format: ResponseFormat = LADDER[0] if self._is_auto else config.response_format
        schema = {"name": parser.model.__name__, "schema": parser.schema, "strict": True}
        self._formats = {"json_schema": {"type": "json_schema", "json_schema": schema}, "json_object": {"type": "json_object"}}
        self._params = {name: value for name, value in config.params.items() if name not in ("extra_headers", "hedge")}
        self.identity = encoded([self.cached_as, config.response_format, self._params, parser.schema, parser.scale])
        self._headers, self._body = config.params.get("extra_headers"), self._params.pop("extra_body", None)
        seed = self._params.get("seed")
        self._seed = seed if isinstance(seed, int) else None
        self._prepare: dict[tuple[ResponseFormat, int], Callable[[Any], WireRequest]] = {}
        try:
            self.prepare(0)
        except BadRequest as error:
            raise ConfigError(str(error)) from None

    def prepare(self, sample: int) -> Callable[[Any], WireRequest]:
        """The function that makes a request from messages. Raises ``ConfigError`` or ``BadRequest`` for invalid parameters.

        A ``seed`` is increased by one for each sample, so that samples differ.
        """
        key = self.format, sample if self._seed is not None else 0
        if key not in self._prepare:
            form = {"response_format": self._formats[self.format]} if self.format in self._formats else {}
            seed = {} if self._seed is None else {"seed": self._seed + sample}
            self._prepare[key] = preparer(JUDGE, self.model, {**form, **self._params, **seed}, self._headers, self._body)
        return self._prepare[key]

    def fall_back(self, form: ResponseFormat, error: QRewardError) -> bool:
        """Whether a request that failed in this format should be sent again in the next one. If so, new requests use the next format."""
        if not self._is_auto or form == LADDER[-1] or not refuses_format(error, self.model):
            return False
        if self.format == form:
            self.format = LADDER[LADDER.index(form) + 1]
        return True

    parse = staticmethod(parse_reply)

    def vote(self, reply: ModelReply, *, swapped: bool) -> Vote:
        """The answer as a vote. Raises ``Unreadable`` and ``ScoreFunctionError``; see :meth:`VerdictParser.read`."""
        score, verdict = self._parser.read(reply)
        return Vote(1 - score if swapped else score, verdict, reply.text, self.model, swapped)

    def repeated(self, messages: Messages, reply: ModelReply, reason: str) -> Messages:
        """The messages of a repeated request, after an answer that could not be read.

        The conversation continues with the answer and the reason why it was rejected, so that the model corrects the form of its own
        answer. This succeeds more often than a new sample, also at temperature 0, and the server can reuse its prefix cache. An answer
        that is empty, refused or incomplete leaves nothing to correct: the original messages are sent again, with a note.
        """
        form = self._parser.instruction
        if reply.whole and not reply.refusal and reply.text.strip():
            note = f"This answer cannot be read: {reason}. Give your verdict again. {form}"
            return [*messages, {"role": "assistant", "content": reply.text[-SENT_BACK:]}, {"role": "user", "content": note}]
        return noted(messages, f"(An earlier answer could not be used: {reason}. Be brief. {form})")


def noted(messages: Messages, note: str) -> Messages:
    """The messages with a note: appended to the last message, or as a new one if the last is not a user message."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": note}]
    more = f"{content}\n\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    return [*messages[:-1], {**last, "content": more}]


_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def encoded(value: object) -> bytes:
    """JSON, equal for equal values. A lone surrogate cannot be encoded as UTF-8, so it is escaped, as in the request itself."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()
