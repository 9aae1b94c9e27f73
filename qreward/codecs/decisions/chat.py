"""The dialects that ask about the next token: ``chat`` and ``generative_scoring``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from qreward.codecs import finish_reason
from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, Unfinished, WireRequest
from qreward.codecs.decisions.base import (
    DECLINED,
    MOST_LETTERS,
    SPELLINGS,
    DecisionInput,
    Dialect,
    InvalidAnswer,
    Kind,
    NoAnswer,
    as_text,
    asked,
    distribution,
    labels_of,
    mass,
    member,
    probability,
)
from qreward.decisions import Choice, FoundAnswer, Question, Score, YesNo
from qreward.errors import BadRequest
from qreward.settings.policies import Endpoint

TOPS = (20, 10, 5)
"""Numbers of the most probable first tokens whose log probabilities are requested. OpenAI returns at most 20 of them. A server that allows
fewer (vLLM: ``--max-logprobs``) is asked for the next number."""
UNSEEN = 0.05
"""Maximum share (0 to 1) that the labels which are missing from the returned tokens may have of the probability of all labels. If their
share could be higher, the question has no answer."""

_LEAST = -1e4  # lower log probabilities count as this one; vLLM writes -9999 for minus infinity
_ROUNDING = 1e-3  # maximum rounding error of a log probability in float32
_THINKING = frozenset({"vllm", "sglang"})  # kinds of endpoints whose chat templates take enable_thinking


class ChatDialect(Dialect):
    """Asks with ``POST /chat/completions`` and ``logprobs``. The question comes after the input, so that requests share a prefix. The
    temperature is 1, because SGLang divides the logits by it before it computes log probabilities (``srt/layers/sampler.py``)."""

    name = "chat"
    path = "/chat/completions"
    most_questions = 1
    most_options = MOST_LETTERS
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "yes_no", Score: "score", Choice: "choice"}
    reserved = frozenset({"model", "messages", "input", "questions", "logprobs", "stream", "n"})

    def __init__(self, extra: Mapping[str, Any], top: int = TOPS[0]) -> None:
        super().__init__({"logprobs": True, "top_logprobs": top, "temperature": 1.0, **extra})

    def variants(self, endpoint: Endpoint) -> Sequence[Dialect]:
        return _WITHOUT_THINKING if endpoint.kind in _THINKING else _CHATS

    def write(self, question: Question) -> str:
        return asked(question)

    def encode(self, call: WireRequest, model: str) -> bytes:
        inputs: DecisionInput = call.inputs
        self.check(inputs.questions, call.params)
        length = {} if "max_completion_tokens" in call.params else {"max_tokens": 1}
        return jsonio.write(model, "messages", _messages(inputs), {**length, **self.extra, **call.params}, all_text=True)

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:  # noqa: ARG002 - always one
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise Malformed("the answer has no choices")
        if choices[0].get("error"):
            raise EmbeddedError(choices[0]["error"])
        ending = finish_reason.ending_of(choices[0].get("finish_reason"))
        if ending in finish_reason.ABORTED:
            raise Unfinished(str(ending))
        return choices[:1]

    def read(self, question: Question, row: Any) -> FoundAnswer:
        message = row.get("message")
        withheld = finish_reason.ending_of(row.get("finish_reason")) in finish_reason.WITHHELD
        if withheld or (isinstance(message, dict) and message.get("refusal")):
            raise NoAnswer(DECLINED)
        labels, found = labels_of(question), dict[str, float]()
        numbers: list[float] = []
        for token, logprob in _tokens(row):
            numbers.append(number := math.exp(min(max(logprob, _LEAST), 0.0)))
            label = SPELLINGS.get(token)
            if label in labels:
                found[label] = found.get(label, 0.0) + number
        whole = mass(math.fsum(found.values()))
        if not whole:
            raise NoAnswer("the model's first token is none of the labels (this dialect does not work with a model that thinks first)")
        if missing := len(labels) - len(found):
            # no other token is more probable than the least of the most probable ones
            unseen = min(max(1.0 - math.fsum(numbers), 0.0), missing * min(numbers))
            if unseen > UNSEEN * (whole + unseen):
                share = f"{unseen / (whole + unseen):.2f} of the probability of all labels"
                raise NoAnswer(f"the server returned too few tokens: the labels that are missing may have {share}")
        shares = [found.get(label, 0.0) / whole for label in labels]
        return FoundAnswer(distribution(shares, len(shares)), label_mass=whole)


def _messages(inputs: DecisionInput) -> list[dict[str, str]]:
    given, question = inputs.input, asked(inputs.questions[0])
    if isinstance(given, str):
        return [{"role": "user", "content": f"{given}\n\n{question}"}]
    first = given[:1] if len(given) > 1 and given[0]["role"] == "system" else []
    return [*first, {"role": "user", "content": f"{as_text(given[len(first) :])}\n\n{question}"}]


def _tokens(choice: dict[str, Any]) -> list[tuple[str, float]]:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not content:
        raise NoAnswer("the server returned no log probabilities")
    chosen = member(content[0], "token"), content[0].get("logprob")
    top = content[0].get("top_logprobs")
    pairs = [(member(each, "token"), each.get("logprob")) for each in top] if isinstance(top, list) else []
    if all(token != chosen[0] for token, _ in pairs):
        pairs.append(chosen)
    for token, number in pairs:
        if not isinstance(token, str) or type(number) not in (int, float) or not number <= _ROUNDING:
            raise InvalidAnswer("a token has no valid log probability")
    return pairs


class GenerativeScoringDialect(Dialect):
    """Sends ``YesNo`` questions as items of one query. The server compares the probabilities that the next token is yes or no."""

    name = "generative_scoring"
    path = "/generative_scoring"
    native = True
    most_questions = 64
    most_options = 2
    input_member = "query"
    questions_member = "items"
    types: ClassVar[Mapping[Kind, str]] = {YesNo: "yes_no"}
    reserved = frozenset({"model", "query", "items", "label_token_ids", "apply_softmax", "item_first"})

    def __init__(self, labels: tuple[int, int] | None = None) -> None:
        super().__init__({"label_token_ids": labels, "apply_softmax": True})
        self.labels = labels

    def variants(self, endpoint: Endpoint) -> Sequence[Dialect]:
        return (_with_labels(endpoint.decision_labels),)

    def write(self, question: Question) -> str:
        return f"\n\n{asked(question)}\nAnswer:"

    def check(self, questions: Sequence[Question], params: Mapping[str, Any]) -> None:
        super().check(questions, params)
        if self.labels is None:
            raise BadRequest(f"{self.path} needs the ids of the tokens for yes and no; set Endpoint(decision_labels=(yes, no))")

    def rows(self, document: dict[str, Any], count: int) -> Sequence[Any]:
        found = document.get("data")
        if not isinstance(found, list) or [row.get("index") if isinstance(row, dict) else None for row in found] != list(range(count)):
            raise Malformed(f"the answer has no list of scores of {count} items")
        return found

    def read(self, question: Question, row: Any) -> FoundAnswer:  # noqa: ARG002 - all questions are alike
        yes = probability(row.get("score"))
        return FoundAnswer((yes, 1.0 - yes))


@lru_cache(maxsize=256)
def _with_labels(labels: tuple[int, int] | None) -> GenerativeScoringDialect:
    return GENERATIVE_SCORING if labels is None else GenerativeScoringDialect(labels)


_CHATS = CHAT_DECISIONS, *_ = [ChatDialect({}, top) for top in TOPS]
_WITHOUT_THINKING = CHAT_WITHOUT_THINKING, *_ = [ChatDialect({"chat_template_kwargs": {"enable_thinking": False}}, top) for top in TOPS]
GENERATIVE_SCORING = GenerativeScoringDialect()
