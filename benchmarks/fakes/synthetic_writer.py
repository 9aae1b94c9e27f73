"""The responder ``synthetic``: a synthetic judge that writes its verdicts as JSON, in the form that the prompt describes.

This module reads the form that :class:`qreward.judge.Judge` puts into its prompts. The form has one line for each member, such as
``"score": number, from 0 to 10``. The module uses neither HTTP nor the code of ``Judge``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fakes.next_token import NextToken, read_prompt
from qreward.errors import ConfigError
from qreward.testing.bodies import text_of
from qreward.testing.responders import MEMBER, Asked, SyntheticJudge, range_of

REFUSAL = "I'm sorry, but I can't help with that."
_ASKS = r"^Question(?:, to be answered yes or no)?: "
_QUESTION = re.compile(rf"{_ASKS}(.*)((?:\n(?!{_ASKS}).*)*?)\n\nAnswer with one JSON object", re.MULTILINE)
_OPTION = re.compile(r"^([0-9A-Z]): (.*)$", re.MULTILINE)
_STEPS = 10  # number of equal steps in the range of a number, so a number has eleven possible values


def write_verdict(messages: Sequence[Mapping[str, Any]], judge: SyntheticJudge) -> str:
    """Return a judge's answer: a JSON object with the most probable value for each member of the form.

    Each member is a question, and the name of the member is the text of the question. If a question is directly before the form, as in the
    prompt of a criterion, a truth may also name the first line of this question. A number is a :class:`~qreward.decisions.Score` with the
    levels that the question lists, or else with 11 levels over its range. Yes and no (or true and false) are a ``YesNo``. Other members
    with options are a ``Choice``. If the prompt has no form, but lists labelled options, the answer is one label. If the judge refuses any
    of the questions, the answer is :data:`REFUSAL`.

    Raises:
        ConfigError: the prompt has neither a form nor labelled options, or the input has a truth that does not fit a question.

    Example:
        >>> form = 'Answer with one JSON object.\\n"reason": text\\n"score": number, from 0 to 5'
        >>> write_verdict([{"role": "user", "content": f"The answer is 4. truth=0.8\\n{form}"}], SyntheticJudge())
        '{"reason": "So it seems.", "score": 4.0}'
    """
    text = text_of(messages)
    members = MEMBER.findall(text)
    if not members:
        prompt = read_prompt(text)
        if prompt is None:
            raise ConfigError("the responder 'synthetic' needs a prompt that describes a JSON object, or that lists labelled options")
        return NextToken.of(prompt, judge).content
    try:
        asked = _asked_in(text)
        return json.dumps({name: _value(name, form, asked, text, judge) for name, form in members})
    except _Refused:
        return REFUSAL


class _Refused(Exception):
    """The judge refuses a question."""


def _asked_in(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the first line of the question before the form, and the mark and the text of each option that the question lists.

    The first line is ``""`` if no question is before the form.
    """
    questions = _QUESTION.findall(text)
    return (questions[-1][0].strip(), _OPTION.findall(questions[-1][1])) if questions else ("", [])


def _value(name: str, form: str, question: tuple[str, list[tuple[str, str]]], text: str, judge: SyntheticJudge) -> Any:
    if form == "text":
        return "So it seems."
    if form.startswith("list of"):
        return []
    first_line, listed = question
    marks, labels = [mark for mark, _ in listed], tuple(label for _, label in listed)
    options = re.findall(r'"([^"]*)"', form)
    if form == "true or false" or {*options} == {"yes", "no"}:
        true = _answer(Asked("yes_no", name, (True, False), first_line), text, judge)
        return ("yes" if true else "no") if options else true
    if options:
        place = _place(Asked("choice", name, labels if marks == options else tuple(options), first_line), text, judge)
        return options[place]
    low, high = range_of(form) or (0.0, 1.0)
    if marks == [str(level) for level in range(len(marks))] and (low, high) == (0, len(marks) - 1):  # the levels of a criterion
        return _place(Asked("score", name, labels, first_line), text, judge)
    level = _place(Asked("score", name, tuple(map(str, range(_STEPS + 1))), first_line), text, judge)
    number = low + (high - low) * level / _STEPS
    return round(number) if form.startswith("whole") else number


def _answer(asked: Asked, text: str, judge: SyntheticJudge) -> Any:
    """Return the most probable option of a question."""
    return asked.options[_place(asked, text, judge)]


def _place(asked: Asked, text: str, judge: SyntheticJudge) -> int:
    """Return the index of the most probable option of a question."""
    read = judge.read(text, asked)
    if read.refused:
        raise _Refused
    return read.place
