"""``ModelReply``: the text of an answer with its reasoning, refusal, finish reason and server fingerprint."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed
from qreward.codecs.chat import ChatAnswer, joined
from qreward.codecs.finish_reason import is_whole


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


class _Message(msgspec.Struct, gc=False):
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None


class _Rest(msgspec.Struct, gc=False):
    choices: list[_Choice]
    model: Any = None
    system_fingerprint: Any = None
    metadata: Any = None


_DECODER = msgspec.json.Decoder(_Rest)


def fingerprint_of(model: object, system_fingerprint: object, metadata: object) -> str:
    """The fields by which servers identify the weights that wrote an answer, as one text. Equal texts mean equal weights, as far as known.

    Every API returns the ``model`` that answered. ``system_fingerprint`` is OpenAI's, ``metadata.weight_version`` SGLang's.

    Example:
        >>> fingerprint_of("judge-7b", None, {"weight_version": "step-200"})
        "('judge-7b', None, 'step-200')"
    """
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return repr(tuple([said if type(said) is str else None for said in (model, system_fingerprint, version)]))


def parse_reply(answer: ChatAnswer) -> ModelReply:
    """Parse an answer's body into a ``ModelReply``. Fields with unexpected types are read as far as possible."""
    text = answer.text()
    try:
        rest = _DECODER.decode(answer.body)
        choice = rest.choices[0]
    except (*jsonio.REFUSED, IndexError):
        return _parse_leniently(text, answer)
    message = choice.message or _Message()
    thought, refusal = message.reasoning_content or message.reasoning or "", message.refusal or ""
    return ModelReply(text, thought, refusal, answer.finish_reason, fingerprint_of(rest.model, rest.system_fingerprint, rest.metadata))


def _parse_leniently(text: str, answer: ChatAnswer) -> ModelReply:
    document: dict[str, Any] = {}
    try:
        document = jsonio.read_object(answer.body)
        message: Any = document["choices"][0]["message"]
    except (Malformed, LookupError, TypeError):
        message = {}
    if not isinstance(message, dict):
        message = {}
    fingerprint = fingerprint_of(*(document.get(name) for name in ("model", "system_fingerprint", "metadata")))
    refusal, reasoning = message.get("refusal"), message.get("reasoning_content") or message.get("reasoning")
    return ModelReply(text, joined(reasoning), joined(refusal), answer.finish_reason, fingerprint)
