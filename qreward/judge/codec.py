"""The codec of a judge. It encodes requests for written verdicts, recognises a rejected response format, and reads answers."""

from __future__ import annotations

import json
import logging
import re
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import ABORTED, Malformed, WireRequest, described
from qreward.codecs.chat import ChatAnswer, ChatCodec, first_of, joined
from qreward.decisions import AnswerTable
from qreward.errors import BadRequest, QRewardError

LOG = logging.getLogger("qreward")

_ENCODER = msgspec.json.Encoder()
_KEYS = msgspec.json.Encoder(enc_hook=repr)


def encoded(value: object) -> bytes:
    """Return a value as JSON, for use in a key. A lone surrogate is escaped, because UTF-8 cannot encode it."""
    try:
        return _KEYS.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()


_ABOUT_FORM = re.compile(r"(?i)response.?format|json.?schema|json.?object|guided|structured.?output|grammar|xgrammar|outlines")


def refuses_format(error: QRewardError, model: str) -> bool:
    if not isinstance(error, BadRequest) or error.status_code not in (400, 422):
        return False
    _, _, reason = str(error).partition(f" for model {model!r}: ")  # the text before ``reason`` has names that could match
    return _ABOUT_FORM.search(reason or str(error)) is not None


class JudgeCodec(ChatCodec):
    """Encodes faster than ``ChatCodec``. The parameters are not checked here, because they were checked when the judge was created."""

    failures = ABORTED  # the engine tries them again; a judge reads what else was cut off

    def encode(self, call: WireRequest, model: str) -> bytes:
        for message in call.inputs:
            for value in message.values():
                if type(value) is not str:
                    return super().encode(call, model)
        try:
            return _ENCODER.encode({"model": model, "messages": call.inputs, **call.params})
        except (TypeError, ValueError):  # lone surrogates in a text, or objects in the parameters
            return super().encode(call, model)


JUDGE = JudgeCodec()


class ModelReply(NamedTuple):
    """A written answer."""

    text: str
    reasoning: str = ""
    refusal: str = ""
    ending: str | None = None
    fingerprint: str = ""


class DecidedReply:
    """The decisions in one response, with the attributes of :class:`ModelReply`."""

    __slots__ = ("fingerprint", "table")
    reasoning = refusal = ""
    ending = None

    def __init__(self, table: AnswerTable, fingerprint: str) -> None:
        self.table, self.fingerprint = table, fingerprint

    @property
    def text(self) -> str:
        rows = [[each.confidence, each.label_mass, *each.probabilities.values()] for each in self.table.answers()]
        return msgspec.json.encode(rows).decode()


@lru_cache(maxsize=64)
def log_unknown(ending: str) -> None:
    """Log, once for each ``finish_reason``, that a judge does not read answers with it."""
    LOG.warning("%s: a judge does not read such answers; if they are complete, set finish_reasons=[%r]", described(ending), ending[:40])


Reply = ModelReply | DecidedReply
"""An answer of a judge model."""


def fingerprint_of(model: object, system_fingerprint: object, metadata: object) -> str:
    """Return one text for the fields with which a server identifies the weights that wrote an answer: ``model``, ``system_fingerprint``
    (OpenAI) and ``metadata.weight_version`` (SGLang)."""
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    model, system_fingerprint = model if type(model) is str else None, system_fingerprint if type(system_fingerprint) is str else None
    return repr((model, system_fingerprint, version if type(version) is str else None))


def parse_reply(answer: ChatAnswer) -> ModelReply:
    """Parse the body of an answer into a ``ModelReply``. A field with an unexpected type is not an error."""
    document: Any = None
    message: Any = None
    try:
        try:
            document = msgspec.json.decode(answer.body)
        except jsonio.REFUSED:
            document = jsonio.read_object(answer.body)  # lenient, and slower
        choices = document["choices"]
        message = (choices[0] if len(choices) == 1 else first_of(choices, [choice.get("index") for choice in choices]))["message"]
    except (Malformed, LookupError, TypeError, AttributeError):
        message = None
    document, message = document if isinstance(document, dict) else {}, message if isinstance(message, dict) else {}
    fingerprint = fingerprint_of(document.get("model"), document.get("system_fingerprint"), document.get("metadata"))
    refusal, reasoning = message.get("refusal"), message.get("reasoning_content") or message.get("reasoning")
    return ModelReply(answer.text(), joined(reasoning), joined(refusal), answer.finish_reason, fingerprint)
