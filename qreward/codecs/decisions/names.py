"""What options of questions are called: in requests, in prompts, in answers, and as the first token of an answer."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from unicodedata import category

from qreward.decisions import Choice, Question, Score, YesNo

MOST_LETTERS = 20
"""Maximum number of options of a ``Choice`` that a chat model is asked. OpenAI returns at most 20 log probabilities."""
_LABELS = {Choice: tuple(string.ascii_uppercase[:MOST_LETTERS]), Score: tuple(string.digits), YesNo: ("yes", "no")}
_REPLY = {
    Choice: "Reply with the letter of one option, and nothing else.",
    Score: "Reply with the number of one level, and nothing else.",
    YesNo: "Reply with yes or no, and nothing else.",
}
_LEADS = {Choice: "Question", Score: "Rate", YesNo: "Is this true"}
_SPELLED = {word: (word, word.capitalize(), word.upper()) for word in _LABELS[YesNo]}
SPELLINGS: Mapping[str, str] = {
    blank + spelled: label
    for labels in _LABELS.values()
    for label in labels
    for spelled in _SPELLED.get(label, (label,))
    for blank in ("", " ", "▁", "Ġ")
}
"""Token -> the label that it spells. Tokenizers write a space before a word as a space, as SentencePiece's sign or as that of byte-level
BPE. A letter in lower case is no label, because ``a`` is a word."""


def labels_of(question: Question) -> tuple[str, ...]:
    return _LABELS[type(question)][: len(question.options)]


def names_of(question: Question) -> tuple[str, ...]:
    return tuple(unique_names(question.options)) if isinstance(question, Choice) else labels_of(question)


def unique_names(options: Sequence[str | bool]) -> list[str]:
    """Return a name for each option. A name is one line. The names differ by more than upper and lower case, because some APIs require
    this."""
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


def described(name: str, description: str) -> str:
    """Return the text of an option, with the description if the option has a description."""
    return f"{name}: {description}" if description else name


def asked(question: Question) -> str:
    """Return the text of a question for a model: the question, a line per option with its label, and how to reply."""
    options = list(zip(labels_of(question), unique_names(question.options), question.descriptions, strict=True))
    if isinstance(question, YesNo):
        lines = [f"{label}: {description}" for label, _, description in options if description]
    else:
        lines = [f"{label}: {described(name, description)}" for label, name, description in options]
    return "\n".join((f"{_LEADS[type(question)]}: {question.instructions}", *lines, _REPLY[type(question)]))


def as_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Return messages as one text, for APIs that take no conversation. A single message is returned without its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def shown(question: Question) -> str:
    text = question.name or question.instructions
    return repr(text if len(text) <= 60 else text[:60] + "...")
