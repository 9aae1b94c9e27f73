"""The codec of a judge's written verdicts: their encoding, the refusal of a response format; and what is read from all answers.

This module knows no prompt and no verdict.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, WireRequest
from qreward.codecs.chat import ChatAnswer, ChatCodec, joined
from qreward.codecs.finish_reason import ABORTED, is_whole
from qreward.decisions import AnswerTable
from qreward.errors import BadRequest, QRewardError

_ABOUT_FORM = re.compile(r"(?i)response.?format|json.?schema|json.?object|guided|structured.?output|grammar|xgrammar|outlines")


def refuses_format(error: QRewardError, model: str) -> bool:
    """Whether an endpoint rejects a request because of its response format."""
    if not isinstance(error, BadRequest) or error.status_code not in (400, 422):
        return False
    _, _, reason = str(error).partition(f" for model {model!r}: ")  # before it stand names, such as the endpoint's, that could match
    return _ABOUT_FORM.search(reason or str(error)) is not None


class JudgeCodec(ChatCodec):
    """``ChatCodec`` for requests whose parameters, including the JSON schema, were checked when the judge was created."""

    def encode(self, call: WireRequest, model: str) -> bytes:
        """The JSON body. Raises ``BadRequest`` for values that JSON cannot represent."""
        if all(_is_text(message) for message in call.inputs):
            try:
                return _ENCODER.encode({"model": model, "messages": call.inputs, **call.params})
            except (TypeError, ValueError):
                pass  # lone surrogates in a text, or objects in the parameters: the slower encoder handles them
        return super().encode(call, model)

    def takes(self, ending: str) -> bool:
        """Only an answer that the server gave up is rejected, so that the engine retries it unchanged. The judge handles other incomplete
        answers itself: it does not parse them, and sends the request again.
        """
        return ending not in ABORTED


_ENCODER = msgspec.json.Encoder()


def _is_text(message: Any) -> bool:
    return all(type(value) is str for value in message.values())


JUDGE = JudgeCodec()


class ModelReply(NamedTuple):
    """One answer.

    Attributes:
        text: its content.
        reasoning: the reasoning that the server returned separately, else ``""``.
        refusal: the refusal message if the model declined, else ``""``.
        ending: its ``finish_reason``; None if the server sent none.
        fingerprint: identifies the weights that wrote it; see :func:`fingerprint_of`.
    """

    text: str
    reasoning: str = ""
    refusal: str = ""
    ending: str | None = None
    fingerprint: str = ""

    @property
    def whole(self) -> bool:
        """True if the model ended the answer itself and nothing is missing. Other answers are not parsed."""
        return is_whole(self.ending)


class DecidedReply:
    """The decisions in one response; see :class:`ModelReply`.

    Attributes:
        table: the answers.
    """

    __slots__ = ("fingerprint", "table")
    reasoning = refusal = ""
    ending = None
    whole = True

    def __init__(self, table: AnswerTable, fingerprint: str) -> None:
        self.table, self.fingerprint = table, fingerprint

    @property
    def text(self) -> str:
        """Its form in the cache, the same for all dialects: of each answer the confidence, the label mass and the probabilities."""
        rows = [[each.confidence, each.label_mass, *each.probabilities.values()] for each in self.table.answers()]
        return msgspec.json.encode(rows).decode()


Reply = ModelReply | DecidedReply
"""What a judge reads from a response."""


def fingerprint_of(model: object, system_fingerprint: object, metadata: object) -> str:
    """Return the fields by which servers identify the weights that wrote an answer, as one text.

    Equal texts mean equal weights, if the server reports its weights at all.

    Every API returns the ``model`` that answered. ``system_fingerprint`` is OpenAI's, ``metadata.weight_version`` SGLang's.

    Example:
        >>> fingerprint_of("judge-7b", None, {"weight_version": "step-200"})
        "('judge-7b', None, 'step-200')"
    """
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return repr(tuple([value if type(value) is str else None for value in (model, system_fingerprint, version)]))


def parse_reply(answer: ChatAnswer) -> ModelReply:
    """Parse an answer's body into a ``ModelReply``. Fields with unexpected types are read as far as possible."""
    document: Any = {}
    message: Any = None
    try:
        document = _decoded(answer.body)
        message = document["choices"][0]["message"]
    except (Malformed, LookupError, TypeError):
        pass
    message = message if isinstance(message, dict) else {}
    fingerprint = fingerprint_of(*(document.get(name) for name in ("model", "system_fingerprint", "metadata")))
    refusal, reasoning = message.get("refusal"), message.get("reasoning_content") or message.get("reasoning")
    return ModelReply(answer.text(), joined(reasoning), joined(refusal), answer.finish_reason, fingerprint)


def _decoded(body: bytes) -> dict[str, Any]:
    """A JSON object, read leniently only if it is not strict JSON, as that is slower."""
    try:
        document = msgspec.json.decode(body)
    except jsonio.REFUSED:
        document = None
    return document if isinstance(document, dict) else jsonio.read_object(body)
