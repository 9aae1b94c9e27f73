"""Build the requests for an item: which models, which messages, how many samples. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from qreward.codecs.chat import CHAT
from qreward.errors import ConfigError
from qreward.judge import prompts
from qreward.judge.aggregation import Decide, aggregate_comparisons, aggregate_scores
from qreward.judge.config import JudgeConfig
from qreward.judge.prompts import Messages, Prompt
from qreward.judge.sampling import JudgeModel, JudgeRequest, noted
from qreward.judge.verdict_parser import VerdictParser

ANSWER_FORM = "answer_form"
"""The template field that is replaced by the instruction how to answer."""

_ENCODER = msgspec.json.Encoder(enc_hook=repr)

POINT_NAMES = ("prompt", "response", "reference")
PAIR_NAMES = ("prompt", "first", "second", "reference")
_NOT_HERE = {
    "n": "use samples",
    "stream": "leave it out",
    "response_format": "it is an argument of the judge",
    "timeout": "give it with each call",
    "deadline": "give it with each batch",
    "priority": "give it with each call",
    "tenant": "give it with each call",
}


def fields_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any]:
    """The fields of an item: a mapping, or a tuple of the values of ``names``, perhaps without the last. Raises ``ConfigError``."""
    if isinstance(item, Mapping):
        for name in names[:-1]:
            if name not in item:
                raise ConfigError(f"the item has no {name!r}: it has {', '.join(map(repr, item)) or 'nothing'}")
        return item
    if isinstance(item, tuple | list) and len(names) - 1 <= len(item) <= len(names):
        return dict(zip(names, item, strict=False))
    given = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    raise ConfigError(f"an item is ({', '.join(names[:-1])}), perhaps with {names[-1]}, or a mapping of these, not {given}")


def extra_of(item: object, names: Sequence[str] = POINT_NAMES) -> Mapping[str, Any] | None:
    """The fields of an item that are not judged, such as an ``id``; None if there are none."""
    if not isinstance(item, Mapping):
        return None
    return {name: value for name, value in item.items() if name not in names} or None


class RequestBuilder:
    """Builds the requests of one judge, for single responses or for pairs.

    Args:
        prompt: the user's prompt; None is the built-in one.
        parser: parser of the answers.
        config: models, samples, aggregation and request parameters.
        pairs: compare two responses, each pair in both orders.

    Attributes:
        names: the fields of an item, the reference last.
        judge_models: the judge models.
        per_item: requests per item.
        decide: aggregates the votes of an item.
    """

    def __init__(self, prompt: object, parser: VerdictParser, config: JudgeConfig, *, pairs: bool = False) -> None:
        self._pairs, self._parser, self._samples = pairs, parser, config.samples
        self.names = names = PAIR_NAMES if pairs else POINT_NAMES
        self._prompt = Prompt(
            (prompts.pair if pairs else prompts.point) if prompt is None else prompt,
            config.system,
            needed=names[:-1] if prompt is None else names[1:-1],  # the built-in prompts show the task
            known=None if callable(prompt) else names,
            what="pair_prompt" if pairs else "prompt",
        )
        self._names_form = ANSWER_FORM in self._prompt.names
        self._tells_form = not self._names_form and (prompt is None or config.response_format != "none")
        self.judge_models = judge_models(config, parser)
        self.per_item = len(self.judge_models) * config.samples * (2 if pairs else 1)
        self.decide: Decide = partial(aggregate_comparisons if pairs else aggregate_scores, how=config.settle)
        self._identities = {judge_model: _identity(judge_model, config) for judge_model in self.judge_models}

    def requests(self, fields: Mapping[str, Any], *, extra: bool = False) -> list[JudgeRequest]:
        """The requests for an item. Raises ``ConfigError`` for a missing or, without ``extra``, an unused field; and ``BadRequest``."""
        orders = [(self._messages(fields, extra), False)]
        if self._pairs:
            orders.append((self._messages({**fields, "first": fields["second"], "second": fields["first"]}, extra), True))
        digests = [(messages, swapped, blake2b(_encoded(messages), digest_size=16).digest()) for messages, swapped in orders]
        return [
            JudgeRequest(judge_model, messages, sample, swapped, _key(self._identities[judge_model], sample, digest))
            for judge_model in self.judge_models
            for sample in range(self._samples)
            for messages, swapped, digest in digests
        ]

    def _messages(self, fields: Mapping[str, Any], extra: bool) -> Messages:
        form = self._parser.instruction
        messages = self._prompt.messages({**fields, ANSWER_FORM: form} if self._names_form else fields, extra=extra)
        validated: Messages = CHAT.validate(messages)
        return noted(validated, form) if self._tells_form else validated


def judge_models(config: JudgeConfig, parser: VerdictParser) -> tuple[JudgeModel, ...]:
    """The models of a judge. Raises ``ConfigError`` for a repeated model, or a parameter that a judge does not allow."""
    for name, instead in _NOT_HERE.items():
        if name in config.params:
            raise ConfigError(f"{name} cannot be set as a parameter of a judge's requests: {instead}")
    if len(set(config.model)) < len(config.model):
        raise ConfigError("model lists a model twice; to ask a model several times, set samples")
    return tuple(JudgeModel(model, parser, config) for model in config.model)


def _identity(judge_model: JudgeModel, config: JudgeConfig) -> bytes:
    """The part of the key that all requests to a model share. Headers are left out, as they may contain an API key."""
    parser = judge_model.parser
    shared = {name: value for name, value in config.params.items() if name not in ("extra_headers", "hedge")}
    return _encoded([judge_model.cached_as, config.response_format, shared, parser.schema, parser.scale])


def _encoded(value: object) -> bytes:
    """JSON, equal for equal values. A lone surrogate cannot be encoded as UTF-8, so it is escaped, as in the request itself."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()


def _key(identity: bytes, sample: int, digest: bytes) -> bytes:
    return blake2b(identity + sample.to_bytes(4, "big") + digest, digest_size=16).digest()
