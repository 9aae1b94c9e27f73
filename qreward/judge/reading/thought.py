"""Takes what a judge thought off what it answered. Knows nothing of verdicts."""

from __future__ import annotations

import re

from qreward.judge.reading.unreadable import Unreadable

_TAG = re.compile(r"<(/?)(think|thinking|reasoning|thought)>", re.IGNORECASE)


def without_thought(text: str) -> tuple[str, str]:
    """``(thought before a stray closing tag or "", answer)``.

    A chat template may put the opening tag into the prompt, so that an answer holds the closing one alone. A closing tag after
    a block, or a second stray one, may be a judged text's: it is not known which side of it is the judge's.

    Raises:
        Unreadable: a block is not closed (the answer was cut while thinking), or the tags do not pair.

    Example:
        >>> without_thought("<think>7 or 8?</think>Score: 8")
        ('', 'Score: 8')
        >>> without_thought("7 or 8?\\n</think>\\nScore: 8")
        ('7 or 8?\\n', '\\nScore: 8')
    """
    kept: list[str] = []
    start, opened, blocks, before = 0, "", 0, ""
    for tag in _TAG.finditer(text):
        closing, name = bool(tag[1]), tag[2].lower()
        if opened:
            if closing and name == opened:
                start, opened, blocks = tag.end(), "", blocks + 1
        elif not closing:
            kept.append(text[start : tag.start()])
            opened = name
        elif blocks or before:
            raise Unreadable("The answer holds a closing tag of a thought that nothing opened.")
        else:
            kept.append(text[start : tag.start()])
            before, kept, start = "".join(kept) or " ", [], tag.end()
    if opened:
        raise Unreadable("The answer ends before its thinking does.")
    return before, "".join([*kept, text[start:]])
