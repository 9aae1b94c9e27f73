"""The form in which a judge ends its answer, such as ``[[5]]``: as it is declared, or as a prompt shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from qreward.callables import load_object
from qreward.errors import ConfigError
from qreward.judge.parsing.text import WIDE, is_number

Answer = str | re.Pattern[str] | Callable[[str], Any] | Mapping[str, Any]
"""The form of an answer, as :class:`~qreward.judge.config.JudgeConfig` describes it."""

_DELIMITED = (
    (re.compile(r".*?\[\[(.+)\]\]", re.DOTALL), r"\[\[ ?([^\[\]\n]{1,60}?) ?\]\]"),
    (re.compile(r".*?\\boxed\{(.+)\}", re.DOTALL), r"\$?\\boxed\{ ?(?:\\text\{)?([^{}\n]{1,60})\}?\}\$?"),
    (re.compile(r".*?<(?P<tag>[A-Za-z][\w-]*)>(.+)</(?P=tag)>", re.DOTALL), r"<{tag}>\s*([^<]{{1,60}}?)\s*</{tag}>"),
)
_LABELLED = re.compile(
    r"(?P<label>.*?)(?P<separator>\s*[:=]?\s*)(?P<value>[0-9][0-9.]*|[AB][<>=]+[AB]|[^\W\d]+)(?:\s*/\s*[0-9]+|[分点점])?[.]?"
)


class Form(NamedTuple):
    """Describes a form."""

    name: str
    marked: re.Pattern[str] | None = None
    label: str = ""
    example: str | None = None
    values: tuple[tuple[str, float], ...] = ()
    reads: Callable[[str], Any] | None = None

    def instruction(self, scale: tuple[float, float], options: Sequence[str]) -> str:
        """Return the part of a prompt that asks for an answer in this form; ``""`` if only the user's prompt can do that."""
        if self.example is None:
            return ""
        options = [grade for grade, _ in self.values] or options
        first, *others = [self.example.replace("\0", option) for option in options or ["N"]]
        said = [first, *(f"or {each}" for each in others)]
        if not options:
            said.append(f"where N is your score, from {scale[0]:g} to {scale[1]:g}")
        return f"Give your reasons first. End with one line that is your verdict in this form, and nothing else: {', '.join(said)}."


JSON = Form("json")


def form_of(example: str) -> Form:
    """Return the form that an example shows. Raises ``ConfigError``."""
    shown = example.strip().translate(WIDE)
    for shape, pattern in _DELIMITED:
        if found := shape.fullmatch(shown):
            tag = re.escape(found.groupdict().get("tag") or "")
            begin, end = found.span(found.lastindex or 1)
            template = f"{shown[:begin]}\0{shown[end:]}"
            return Form(example, re.compile(pattern.format(tag=tag) if tag else pattern, re.IGNORECASE), example=template)
    labelled = _LABELLED.fullmatch(shown)
    if not labelled or (labelled["label"] and not re.search(r"[^\W\d]", labelled["label"])):
        raise ConfigError(f"answer: {example!r} shows no form: write an example, such as '[[5]]', '[[A]]' or 'Score: 7'")
    label = re.sub(r"(?:\\ )+", " ", re.escape(labelled["label"]))
    separator = r"(?: ?(?:[:=]|->) ?| is:? )" if labelled["separator"].strip() else " ?:? ?"
    return Form(example, label=label + separator if label else "", example=f"{labelled['label']}{labelled['separator']}\0")


def declared(answer: object) -> Form | None:
    """Return the form that is declared; None if none is. Raises ``ConfigError``."""
    if answer is None or isinstance(answer, Form):
        return answer
    if isinstance(answer, str):
        return JSON if answer == JSON.name else form_of(answer)
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
    names, values = {*answer}, answer.get("values")
    if names == {"pattern"}:
        try:
            return declared(re.compile(answer["pattern"]))
        except (re.error, TypeError) as error:
            raise ConfigError(f"answer.pattern: is no regular expression: {error}") from None
    if names == {"function"}:
        return declared(load_object(answer["function"], "answer.function", "my_judge:verdict_of"))
    if names != {"form", "values"} or not isinstance(values, Mapping) or not values:
        raise ConfigError("answer: a mapping has 'pattern', 'function', or 'form' and 'values', such as {'C': 1, 'I': 0}")
    for grade, score in values.items():
        if not isinstance(grade, str) or not is_number(score):
            raise ConfigError(f"answer.values: {grade!r} must be a grade with a finite score, such as 'C': 1")
    form = declared(answer["form"])
    assert form is not None
    return form._replace(values=tuple((grade, float(score)) for grade, score in values.items()))


_SHOWN = tuple(
    (re.compile(shows, re.IGNORECASE), example)
    for shows, example in (
        (r"\[\[[^\[\]\n]{1,24}\]\]", "{}"),
        (r"\[RESULT\]", "{} 4"),
        (r"\\(?-i:boxed)\{", "{}7}}"),
        (r"<((?:final_|overall_)?(?:score|rating|grade|verdict)|preferred|preference|winner|decision)>", "{0}7</{1}>"),
        (
            (
                r"\b((?:final |overall )?(?:score|rating|grade|verdict|winner|judge?ment|decision))"
                r" ?: ?(?=[\"'*_`]*(?:[<\[($]|[0-9XN]\b|(?P<letter>(?-i:[A-Z])\b)))"
            ),
            "{}7",
        ),
    )
)
"""What shows a form in a prompt, and the example of this form."""


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


def forms_of(
    answer: object, prompts: tuple[object, object], response_format: str, method: str, *, finds: bool, of: str = "answer"
) -> tuple[Form, Form]:
    """Return the forms for one response and for a pair. ``of`` says in errors what declares ``answer``."""
    form = declared(answer)
    if form is not None and form is not JSON:
        if response_format in ("json_schema", "json_object"):
            raise ConfigError(f"response_format={response_format!r} asks for JSON, and answer for {form.name!r}; leave out one of them")
        if method != "write":
            raise ConfigError(
                f"{of} has no effect with method={method!r}, as a decision is not written; leave it out, or use method='write'"
            )
        if form.example is None and prompts == (None, None):
            raise ConfigError(f"answer: the built-in prompt cannot say how to write for {form.name!r}; give your own prompt that says it")
    finds = finds and form is None and response_format in ("auto", "none") and method != "decide"
    single, pair = (shown_in(prompt, pairs=bool(place)) if finds else None for place, prompt in enumerate(prompts))
    return form or single or JSON, form or pair or JSON
