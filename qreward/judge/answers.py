"""The form of a judge's answers: as it is declared, as a prompt shows it, and how a judge is asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from qreward.callables import load_object
from qreward.errors import ConfigError
from qreward.judge.parsing import Form, form_of

Answer = str | re.Pattern[str] | Callable[[str], Any] | Mapping[str, Any]
"""The form of an answer, as :class:`~qreward.judge.config.JudgeConfig` describes it."""

JSON = Form("json")

_SHOWN = (
    (re.compile(r"\[\[[^\[\]\n]{1,24}\]\]"), "{}"),
    (re.compile(r"\[RESULT\]", re.IGNORECASE), "{} 4"),
    (re.compile(r"\\boxed\{"), "{}7}}"),
    (
        re.compile(r"<((?:final_|overall_)?(?:score|rating|grade|verdict)|preferred|preference|winner|decision)>", re.IGNORECASE),
        "{0}7</{1}>",
    ),
    (
        re.compile(
            r"\b((?:final |overall )?(?:score|rating|grade|verdict|winner|judge?ment|decision)) ?: ?"
            r"(?=[\"'*_`]*(?:[<\[($]|[0-9XN]\b|(?P<letter>(?-i:[A-Z])\b)))",
            re.IGNORECASE,
        ),
        "{}7",
    ),
)
"""What shows a form in a prompt, and the example of this form."""


def declared(answer: object) -> Form | None:
    """Return the form that is declared; None if none is. Raises ``ConfigError``."""
    if answer is None or isinstance(answer, Form):
        return answer
    if answer == JSON.name:
        return JSON
    if isinstance(answer, str):
        try:
            return form_of(answer)
        except ValueError as error:
            raise ConfigError(f"answer: {error}") from None
    if isinstance(answer, re.Pattern):
        if not isinstance(answer.pattern, str) or answer.groups != 1:
            raise ConfigError(f"answer: the pattern {answer.pattern!r} must be a text with one group, which holds the value")
        return Form(answer.pattern, answer)
    if isinstance(answer, Mapping):
        return _of_settings(answer)
    if callable(answer):
        return Form(getattr(answer, "__qualname__", type(answer).__name__), reads=answer)
    raise ConfigError(f"answer must be an example such as '[[5]]', a pattern, a function or a mapping, not a {type(answer).__name__}")


def _of_settings(answer: Mapping[str, Any]) -> Form | None:
    names = {*answer}
    if names == {"pattern"}:
        try:
            return declared(re.compile(answer["pattern"]))
        except (re.error, TypeError) as error:
            raise ConfigError(f"answer.pattern: is no regular expression: {error}") from None
    if names == {"function"}:
        return declared(load_object(answer["function"], "answer.function", "my_judge:verdict_of"))
    values = answer.get("values")
    if names != {"form", "values"} or not isinstance(values, Mapping) or not values:
        raise ConfigError("answer: a mapping has 'pattern', 'function', or 'form' and 'values', such as {'C': 1, 'I': 0}")
    for grade, score in values.items():
        if not isinstance(grade, str) or isinstance(score, bool) or not isinstance(score, int | float) or not isfinite(score):
            raise ConfigError(f"answer.values: {grade!r} must be a grade with a finite score, such as 'C': 1")
    form = declared(answer["form"])
    assert form is not None
    return form._replace(values=tuple((grade, float(score)) for grade, score in values.items()))


def shown_in(prompt: object, *, pairs: bool = False) -> Form | None:
    """Return the form that a prompt shows; None if it shows none, or asks for JSON. Only a verdict on pairs may be a letter after a
    label."""
    turns = [prompt] if isinstance(prompt, str) else [turn.get("content") for turn in prompt] if isinstance(prompt, Sequence) else []
    text = "\n".join(turn for turn in turns if isinstance(turn, str)).replace("{{", "{").replace("}}", "}")
    if re.search(r"\bjson\b|\{answer_form\}", text, re.IGNORECASE):
        return None
    for shows, example in _SHOWN:
        if found := [one for one in shows.finditer(text) if pairs or not one.groupdict().get("letter")]:
            return form_of(example.format(found[-1][0], *found[-1].groups()))
    return None


def forms_of(answer: object, prompts: tuple[object, object], response_format: str, method: str, *, finds: bool) -> tuple[Form, Form]:
    form = declared(answer)
    if form is not None and form is not JSON:
        if response_format in ("json_schema", "json_object"):
            raise ConfigError(f"response_format={response_format!r} asks for JSON, and answer for {form.name!r}; leave out one of them")
        if method == "decide":
            raise ConfigError("answer has no effect with method='decide', as nothing is written; leave it out, or use method='write'")
        if form.example is None and prompts == (None, None):
            raise ConfigError(f"answer: the built-in prompt cannot say how to write for {form.name!r}; give your own prompt that says it")
    finds = finds and form is None and response_format in ("auto", "none") and method != "decide"
    single, pair = (shown_in(prompt, pairs=bool(place)) if finds else None for place, prompt in enumerate(prompts))
    return form or single or JSON, form or pair or JSON


def request_for(form: Form, scale: tuple[float, float], options: Sequence[str]) -> str:
    """Return the part of a prompt that asks for an answer in a form; ``""`` if only the user's prompt can do that."""
    if form.reads is not None or form.example is None:
        return ""
    options = [grade for grade, _ in form.values] or options
    first, *others = [form.example.replace("\0", option) for option in options or ["N"]]
    others = others if options else [f"where N is your score, from {scale[0]:g} to {scale[1]:g}"]
    said = ", ".join([first, *(f"or {each}" for each in others)] if options else [first, *others])
    return f"Give your reasons first. End with one line that is your verdict in this form, and nothing else: {said}."
