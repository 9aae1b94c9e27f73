"""The input of a decision and its questions: what is valid, what options are called, and the text in which a chat model is asked."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from unicodedata import category

from qreward.codecs.chat import CHAT, joined
from qreward.decisions import MIN_LABEL_MASS, Choice, Question, Score, YesNo, check_questions
from qreward.errors import BadRequest

Input = str | list[dict[str, str]]
"""A text, or messages whose content is text."""
ROLES = ("system", "developer", "user", "assistant")
_EXAMPLE = "[{'role': 'user', 'content': '...'}]"


class DecisionInput(NamedTuple):
    input: Input
    questions: tuple[Question, ...]
    min_label_mass: float = MIN_LABEL_MASS


def valid_input(inputs: Any) -> DecisionInput:
    checked = inputs if isinstance(inputs, DecisionInput) else DecisionInput(inputs[0], check_questions(inputs[1]))
    given: object = checked.input
    if isinstance(given, str):
        if not given.strip():
            raise BadRequest("the input is empty; pass the text that the questions are about")
        return checked
    if not isinstance(given, list | tuple):
        raise BadRequest(f"the input is a {type(given).__name__}; give a text, or messages such as {_EXAMPLE}")
    return checked._replace(input=[_text_message(message, place) for place, message in enumerate(CHAT.validate(list(given)))])


def _text_message(message: dict[str, Any], place: int) -> dict[str, str]:
    role, content = message["role"], message.get("content")
    if role in ROLES and type(content) is str and len(message) == 2 and content.strip():
        return message
    if role not in ROLES:
        raise BadRequest(f"messages[{place}] has the role {role!r}; the messages of an input have the role {', '.join(ROLES)}")
    parts = content if isinstance(content, list) else []
    text = joined(content)
    if any(not isinstance(part, dict) or not isinstance(part.get("text"), str) for part in parts) or not text.strip():
        raise BadRequest(f"messages[{place}] has no content that is a text; the input of decisions holds texts only")
    return {"role": role, "content": text}


MOST_LETTERS = 20
"""Maximum number of options of a ``Choice`` that a chat model is asked. OpenAI returns at most 20 log probabilities."""
_LABELS = {Choice: tuple(string.ascii_uppercase[:MOST_LETTERS]), Score: tuple(string.digits), YesNo: ("yes", "no")}
_LEADS = {Choice: "Question", Score: "Rate", YesNo: "Is this true"}
_REPLIES = {Choice: "the letter of one option", Score: "the number of one level", YesNo: "yes or no"}
SPELLINGS: Mapping[str, str] = {
    blank + spelled: label
    for labels in _LABELS.values()
    for label in labels
    for spelled in (label, label.capitalize(), label.upper())
    for blank in ("", " ", "▁", "Ġ")
}
"""Token -> the label that it spells. Tokenizers write a space before a word as a space, as SentencePiece's sign or as that of byte-level
BPE. A letter in lower case is no label, because ``a`` is a word."""


def labels_of(question: Question) -> tuple[str, ...]:
    return _LABELS[type(question)][: len(question.options)]


def unique_names(options: Sequence[str | bool]) -> list[str]:
    """Return a name for each option. A name is one line. Names differ by more than case, because some APIs require this."""
    names: list[str] = []
    seen: set[str] = set()
    for option in options:
        text = ("false", "true")[option] if isinstance(option, bool) else option
        name = base = " ".join("".join(" " if category(char) == "Cc" else char for char in text).split()) or "?"
        number = 1
        while name.casefold() in seen:
            number += 1
            name = f"{base} ({number})"
        seen.add(name.casefold())
        names.append(name)
    return names


def described(question: Question) -> list[tuple[str, str]]:
    return list(zip(unique_names(question.options), question.descriptions, strict=True))


def option_texts(question: Question) -> list[str]:
    return [f"{name}: {text}" if text else name for name, text in described(question)]


def asked(question: Question) -> str:
    """Return the text of a question for a model: the question, a line per option with its label, and how to reply."""
    kind = type(question)
    texts = [text or None for text in question.descriptions] if kind is YesNo else option_texts(question)
    lines = [f"{label}: {text}" for label, text in zip(labels_of(question), texts, strict=True) if text is not None]
    return "\n".join((f"{_LEADS[kind]}: {question.instructions}", *lines, f"Reply with {_REPLIES[kind]}, and nothing else."))


def as_text(messages: Sequence[Mapping[str, str]]) -> str:
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def shown(question: Question) -> str:
    text = question.name or question.instructions
    return repr(text if len(text) <= 60 else text[:60] + "...")
