"""What an answer to a judge's request says, besides its words: thoughts, a refusal, how it ended, and what the server says of itself."""

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
        text: its words.
        reasoning: what the server gave apart as thoughts, ``""`` if nothing.
        refusal: the model's words if it declined, else ``""``.
        ending: its ``finish_reason``, None if the server did not say.
        fingerprint: what the server says of the model that wrote it; see :func:`fingerprint_of`.
    """

    text: str
    reasoning: str = ""
    refusal: str = ""
    ending: str | None = None
    fingerprint: str = ""

    @property
    def whole(self) -> bool:
        """The model ended it itself, and nothing of it is missing. Nothing else is read as a verdict."""
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
    """What servers say of the weights that wrote an answer, as one text: equal texts, as far as they tell, are equal weights.

    The ``model`` that answered is in every dialect, ``system_fingerprint`` is OpenAI's, ``metadata.weight_version`` SGLang's.

    Example:
        >>> fingerprint_of("judge-7b", None, {"weight_version": "step-200"})
        "('judge-7b', None, 'step-200')"
    """
    version = metadata.get("weight_version") if isinstance(metadata, dict) else None
    return repr(tuple([said if type(said) is str else None for said in (model, system_fingerprint, version)]))


def hear(answer: ChatAnswer) -> ModelReply:
    """Read what stands around the words of an answer; servers that put odd things there are read as far as can be."""
    text = answer.text()
    try:
        rest = _DECODER.decode(answer.body)
        choice = rest.choices[0]
    except (*jsonio.REFUSED, IndexError):
        return _oddly(text, answer)
    message = choice.message or _Message()
    thought, refusal = message.reasoning_content or message.reasoning or "", message.refusal or ""
    return ModelReply(text, thought, refusal, answer.finish_reason, fingerprint_of(rest.model, rest.system_fingerprint, rest.metadata))


def _oddly(text: str, answer: ChatAnswer) -> ModelReply:
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
