"""From decoded tokens to what a judge should read: the response alone, without the tokens that end it. Knows no tokenizer."""

from __future__ import annotations

import re

_END = re.compile(r"(?:<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|</?s>|<(?:eos|pad|end_of_turn|unk)>|\[(?:PAD|EOS|/INST)\])\Z")
"""A special token of the usual families: ``<|im_end|>``, ``</s>``, ``<end_of_turn>``, DeepSeek's with wide bars."""
_LONGEST = 44
"""Characters of such a token."""

SHORTEST = 16
"""Characters, blanks not counted, of the end of a prompt that was cut from the left, by which it is still recognised."""


def without_end(text: str) -> str:
    """A text without the special tokens at its end.

    Example:
        >>> without_end("The answer is 4.<|im_end|>\\n<|endoftext|>")
        'The answer is 4.'
    """
    end = ink = _ink_end(text, len(text))
    while found := _END.search(text, max(0, ink - _LONGEST), ink):
        ink = _ink_end(text, found.start())
    return text if ink == end else text[:ink]


def _ink_end(text: str, end: int) -> int:
    """Where the blanks before ``end`` begin."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def response_in(query: str, prompt: str) -> str | None:
    """What follows the prompt in a text decoded from both; None if the prompt is not recognised in it.

    Blanks may differ (some tokenizers do not give them back as they were), a special token may come first, and the prompt may have
    been cut from the left to fit the model's context.

    Example:
        >>> response_in("<s> User: 2 + 2? Assistant: 4</s>", "User: 2 + 2?\\nAssistant:")
        ' 4</s>'
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    query = query.lstrip("\ufffd")  # a character of which a cut left a part
    shown, wanted = _ink(query), _ink(prompt)
    end = _end_of(shown, wanted)
    return None if end is None else _after_ink(query, end).removeprefix(prompt[_ink_end(prompt, len(prompt)) :])


def _ink(text: str) -> str:
    return "".join(text.split())


def _end_of(shown: str, wanted: str) -> int | None:
    """Where the prompt ends, counted without blanks."""
    begin = shown.find(wanted)
    if begin >= 0 and _is_special(shown[:begin]):
        return begin + len(wanted)
    overlap = _overlap(wanted, shown)
    return overlap if overlap >= min(SHORTEST, len(wanted)) and overlap else None


def _is_special(text: str) -> bool:
    return not without_end(text)


def _overlap(left: str, right: str) -> int:
    """Length of the longest end of ``left`` that ``right`` begins with; linear, by the prefix function of Knuth, Morris and Pratt."""
    pattern = right[: len(left)]
    borders = [0] * len(pattern)
    matched = 0
    for at in range(1, len(pattern)):
        matched = _extend(pattern, borders, matched, pattern[at])
        borders[at] = matched
    matched = 0
    for character in left:
        if matched == len(pattern) > 0:
            matched = borders[matched - 1]
        matched = _extend(pattern, borders, matched, character)
    return matched


def _extend(pattern: str, borders: list[int], matched: int, character: str) -> int:
    while matched and pattern[matched] != character:
        matched = borders[matched - 1]
    return matched + (matched < len(pattern) and pattern[matched] == character)


def _after_ink(text: str, count: int) -> str:
    """What follows the first ``count`` characters that are no blanks."""
    for at, character in enumerate(text):
        count -= not character.isspace()
        if count == 0:
            return text[at + 1 :]
    return ""
