"""The responder ``synthetic``: a synthetic judge that writes its verdicts as JSON, in the form that the prompt describes.

This module reads the form that :class:`qreward.judge.Judge` puts into its prompts. The form has one line for each member, such as
``"score": number, from 0 to 10``. The module uses neither HTTP nor the code of ``Judge``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qreward.errors import ConfigError
from qreward.testing.next_token import NextToken, read_prompt
from qreward.testing.synthetic_judge import Asked, SyntheticJudge, text_of

REFUSAL = "I'm sorry, but I can't help with that."
_MEMBER = re.compile(r'^"(\w+)": (text|true or false|one of .*|(?:whole )?number\b.*|list of .*)', re.MULTILINE)
_RANGE = re.compile(r"from (-?[\d.]+) to (-?[\d.]+)")
_STEPS = 10  # number of equal steps in the range of a number, so a number has eleven possible values


def write_verdict(messages: Sequence[Mapping[str, Any]], judge: SyntheticJudge) -> str:
    """Return a judge's answer: a JSON object with the most probable value for each member of the form.

    Each member is a question, and the name of the member is the text of the question. A number is a :class:`~qreward.decisions.Score` with
    11 levels over its range. Yes and no (or true and false) are a ``YesNo``. Other members with options are a ``Choice``. If the prompt has
    no form, but lists labelled options, the answer is one label. If the judge refuses any of the questions, the answer is :data:`REFUSAL`.

    Raises:
        ConfigError: the prompt has neither a form nor labelled options, or the input has a truth that does not fit a question.

    Example:
        >>> form = 'Answer with one JSON object.\\n"reason": text\\n"score": number, from 0 to 5'
        >>> write_verdict([{"role": "user", "content": f"The answer is 4. truth=0.8\\n{form}"}], SyntheticJudge())
        '{"reason": "So it seems.", "score": 4.0}'
    """
    text = text_of(messages)
    members = _MEMBER.findall(text)
    if not members:
        prompt = read_prompt(text)
        if prompt is None:
            raise ConfigError("the responder 'synthetic' needs a prompt that describes a JSON object, or that lists labelled options")
        return NextToken.of(prompt, judge).content
    try:
        return json.dumps({name: _value(name, form, text, judge) for name, form in members})
    except _Refused:
        return REFUSAL


class _Refused(Exception):
    """The judge refuses a question."""


def _value(name: str, form: str, text: str, judge: SyntheticJudge) -> Any:
    if form == "text":
        return "So it seems."
    if form.startswith("list of"):
        return []
    options = re.findall(r'"([^"]*)"', form)
    if form == "true or false" or {*options} == {"yes", "no"}:
        true = _answer(Asked("yes_no", name, (True, False)), text, judge)
        return ("yes" if true else "no") if options else true
    if options:
        return _answer(Asked("choice", name, tuple(options)), text, judge)
    low, high = map(float, found.groups()) if (found := _RANGE.search(form)) else (0.0, 1.0)
    level = _answer(Asked("score", name, tuple(map(str, range(_STEPS + 1)))), text, judge)
    number = low + (high - low) * int(level) / _STEPS
    return round(number) if form.startswith("whole") else number


def _answer(asked: Asked, text: str, judge: SyntheticJudge) -> Any:
    """Return the most probable option of a question."""
    read = judge.read(text, asked)
    if read.refused:
        raise _Refused
    return asked.options[read.place]
