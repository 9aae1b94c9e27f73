"""The dialect ``chat``: a decision of any chat model, from the log probabilities of the first token of its answer.

A request has one question. The question comes after the input, so that the requests about one input have a common prefix.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from qreward.codecs import finish_reason
from qreward.codecs import json as jsonio
from qreward.codecs.base import EmbeddedError, Malformed, Unfinished, WireRequest
from qreward.codecs.decisions.base import (
    DECLINED,
    DecisionInput,
    Dialect,
    InvalidAnswer,
    NoAnswer,
    as_text,
    described,
    distribution,
    mass,
    member,
    unique_names,
)
from qreward.decisions import Choice, FoundAnswer, Question, Score, YesNo
from qreward.settings.policies import Endpoint

TOP = 20
"""Number of the most probable first tokens whose log probabilities are requested. OpenAI returns at most 20 of them, and so does vLLM
without ``--max-logprobs``."""
UNSEEN = 0.05
"""Maximum probability (0 to 1) that a label which is missing from the returned tokens may have. If the label could have a higher
probability, the question has no answer. The last of 20 tokens has at most this probability, because its probability is at most 1/20."""

_LABELS = {Choice: tuple(string.ascii_uppercase[:TOP]), Score: tuple(string.digits), YesNo: ("yes", "no")}
_REPLY = {
    Choice: "Reply with the letter of one option, and nothing else.",
    Score: "Reply with the number of one level, and nothing else.",
    YesNo: "Reply with yes or no, and nothing else.",
}
_LEADS = {Choice: "Question", Score: "Rate", YesNo: "Is this true"}
_LEAST = -1e4  # lower log probabilities count as this one; vLLM writes -9999 for minus infinity
_ROUNDING = 1e-3  # maximum rounding error of a log probability in float32
_SPACES = string.whitespace + "▁Ġ"  # the last two stand for a space in tokens of SentencePiece and byte-level BPE
_THINKING = frozenset({"vllm", "sglang"})  # kinds of endpoints whose chat templates take enable_thinking


class ChatDialect(Dialect):
    """Asks for decisions with ``POST /chat/completions`` and ``logprobs``.

    The temperature is 1, because SGLang divides the logits by the temperature before it computes log probabilities
    (``srt/layers/sampler.py``).
    """

    name = "chat"
    path = "/chat/completions"
    most_questions = 1
    most_options = TOP
    reserved = frozenset({"model", "messages", "input", "questions", "logprobs", "stream", "n"})

    def __init__(self, extra: dict[str, Any]) -> None:
        super().__init__({"logprobs": True, "top_logprobs": TOP, "temperature": 1.0, **extra})

    def at(self, endpoint: Endpoint) -> Dialect:
        return CHAT_WITHOUT_THINKING if endpoint.kind in _THINKING else CHAT_DECISIONS

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
        found, seen, least = _sum_up(_tokens(row), labels_of(question))
        whole = mass(math.fsum(found.values()))
        if not whole:
            raise NoAnswer("the model's first token is none of the labels (this dialect does not work with a model that thinks first)")
        unseen = min(least, 1.0 - seen) if len(found) < len(question.options) else 0.0
        if unseen > UNSEEN:
            raise NoAnswer(f"the server returned too few tokens: a label that is missing may have a probability of {unseen:.2f}")
        numbers = [found.get(label, 0.0) / whole for label in labels_of(question)]
        return FoundAnswer(distribution(numbers, len(numbers)), label_mass=whole)


def labels_of(question: Question) -> tuple[str, ...]:
    """Return the label of each option: yes or no, the number of a level, or a letter.

    Example:
        >>> labels_of(YesNo("It is right.")), labels_of(Score("Clear?", levels=["no", "fairly", "very"]))
        (('yes', 'no'), ('0', '1', '2'))
    """
    return _LABELS[type(question)][: len(question.options)]


def asked(question: Question) -> str:
    """Return the text of a question for a model: the question, a line per option with its label, and how to reply.

    Example:
        >>> print(asked(Choice("Tone?", choices={"calm": "factual", "rude": ""})))
        Question: Tone?
        A: calm: factual
        B: rude
        Reply with the letter of one option, and nothing else.
    """
    options = list(zip(labels_of(question), unique_names(question.options), question.descriptions, strict=True))
    if isinstance(question, YesNo):
        lines = [f"{label}: {description}" for label, _, description in options if description]
    else:
        lines = [f"{label}: {described(name, description)}" for label, name, description in options]
    return "\n".join((f"{_LEADS[type(question)]}: {question.instructions}", *lines, _REPLY[type(question)]))


def _messages(inputs: DecisionInput) -> list[dict[str, str]]:
    """Return the messages of the request: one user message with the input and the question.

    If the input begins with a system message and has further messages, the system message comes first, as a message of its own.
    """
    given, question = inputs.input, asked(inputs.questions[0])
    if isinstance(given, str):
        return [{"role": "user", "content": f"{given}\n\n{question}"}]
    first = given[:1] if len(given) > 1 and given[0]["role"] == "system" else []
    return [*first, {"role": "user", "content": f"{as_text(given[len(first) :])}\n\n{question}"}]


def _tokens(choice: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the candidates for the first token, each with its log probability. Raises ``InvalidAnswer`` or ``NoAnswer``."""
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


def _sum_up(tokens: list[tuple[str, float]], labels: Sequence[str]) -> tuple[dict[str, float], float, float]:
    """Return three values: the probability of each label found, the sum over the probabilities of all tokens, and the smallest of them."""
    found: dict[str, float] = {}
    numbers = [math.exp(min(max(number, _LEAST), 0.0)) for _, number in tokens]
    wanted = {label.casefold(): label for label in labels}
    for (token, _), number in zip(tokens, numbers, strict=True):
        label = wanted.get(token.strip(_SPACES).casefold())
        if label is not None:
            found[label] = found.get(label, 0.0) + number
    return found, min(math.fsum(numbers), 1.0), min(numbers)


CHAT_DECISIONS = ChatDialect({})
CHAT_WITHOUT_THINKING = ChatDialect({"chat_template_kwargs": {"enable_thinking": False}})
